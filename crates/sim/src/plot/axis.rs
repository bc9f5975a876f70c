//! Axes: from values to places, and the round numbers at which they are labelled.

/// How values are spread over an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Evenly, from 0.
    Linear,
    /// Each power of ten as long as the next.
    Log,
}

/// One axis.
#[derive(Debug, Clone)]
pub struct Axis {
    /// What it shows, with the unit.
    pub label: String,
    /// How.
    pub scale: Scale,
}

impl Axis {
    /// An even axis from 0.
    pub fn linear(label: &str) -> Self {
        Self { label: label.to_owned(), scale: Scale::Linear }
    }

    /// A logarithmic axis.
    pub fn log(label: &str) -> Self {
        Self { label: label.to_owned(), scale: Scale::Log }
    }
}

/// An axis with its range and its place on the picture.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    scale: Scale,
    low: f64,
    high: f64,
    /// Where `low` and `high` stand, pixels.
    from: f64,
    to: f64,
}

impl Span {
    /// The span that holds `values`, from `from` to `to` on the picture. `margin` leaves room above the highest.
    pub(super) fn over(
        scale: Scale,
        values: impl Iterator<Item = f64>,
        margin: f64,
        (from, to): (f64, f64),
    ) -> Self {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for v in values {
            (low, high) = (low.min(v), high.max(v));
        }
        match scale {
            Scale::Linear => (low, high) = (0.0, if high > 0.0 { high * margin } else { 1.0 }),
            Scale::Log => {
                (low, high) = (10f64.powf(low.log10().floor()), 10f64.powf(high.log10().ceil()));
            }
        }
        Self { scale, low, high, from, to }
    }

    /// Where `value` stands, pixels.
    pub(super) fn place(&self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => (value / self.low).log10() / (self.high / self.low).log10(),
        };
        self.from + share.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// The values that are labelled: steps of 1, 2 or 5 times a power of ten, or the powers of ten.
    pub(super) fn ticks(&self, about: usize) -> Vec<f64> {
        match self.scale {
            Scale::Log => {
                let (low, high) = (self.low.log10().round() as i32, self.high.log10().round() as i32);
                (low..=high).map(|e| 10f64.powi(e)).collect()
            }
            Scale::Linear => {
                let rough = (self.high - self.low) / about as f64;
                let power = 10f64.powf(rough.log10().floor());
                let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|s| *s >= rough);
                let step = step.unwrap_or(10.0 * power);
                let count = ((self.high - self.low) / step + 1e-9) as usize;
                (0..=count).map(|i| self.low + i as f64 * step).collect()
            }
        }
    }
}

/// A tick's label: no more decimals than the distance to its neighbour asks for.
pub(super) fn label(value: f64, step: f64) -> String {
    let decimals = if step >= 1.0 { 0 } else { (-step.log10()).ceil() as usize };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    //! Round numbers.

    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        let span = Span::over(Scale::Linear, [0.0, 119.5].into_iter(), 1.05, (0.0, 100.0));
        assert_eq!(span.ticks(5), [0.0, 50.0, 100.0]);
        let span = Span::over(Scale::Linear, [0.03].into_iter(), 1.0, (0.0, 100.0));
        let labels: Vec<String> = span.ticks(3).iter().map(|t| label(*t, 0.01)).collect();
        assert_eq!(labels, ["0.00", "0.01", "0.02", "0.03"]);
        let span = Span::over(Scale::Log, [10.0, 5000.0].into_iter(), 1.0, (0.0, 100.0));
        assert_eq!(span.ticks(5), [10.0, 100.0, 1000.0, 10_000.0]);
        assert!((span.place(100.0) - 100.0 / 3.0).abs() < 1e-9);
    }
}
