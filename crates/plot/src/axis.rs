//! Axes: positions of values on the picture, and round numbers as labels.

/// Scale of an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Linear, from 0.
    Linear,
    /// Logarithmic: every power of ten has the same length.
    Log,
}

/// One axis.
#[derive(Debug, Clone)]
pub struct Axis {
    /// Quantity and unit.
    pub label: String,
    /// Linear or logarithmic.
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
    /// Positions of `low` and `high`, pixels.
    from: f64,
    to: f64,
}

impl Span {
    /// The span that holds `values`, from `from` to `to` on the picture. `margin` leaves room above the
    /// highest.
    pub(super) fn over(
        scale: Scale,
        values: impl Iterator<Item = f64>,
        margin: f64,
        from: f64,
        to: f64,
    ) -> Self {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for v in values {
            (low, high) = (low.min(v), high.max(v));
        }
        match scale {
            Scale::Linear => (low, high) = (0.0, if high > 0.0 { high * margin } else { 1.0 }),
            Scale::Log => (low, high) = (round_down(low), -round_down(-high)),
        }
        Self { scale, low, high, from, to }
    }

    /// Position of `value`, pixels.
    pub(super) fn place(&self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => (value / self.low).log10() / (self.high / self.low).log10(),
        };
        self.from + share.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// The values that are labelled: steps of 1, 2 or 5 times a power of ten, or those numbers themselves.
    pub(super) fn ticks(&self, about: usize) -> Vec<f64> {
        match self.scale {
            Scale::Log => {
                let powers = self.low.log10().floor() as i32..=self.high.log10().floor() as i32;
                let ticks = powers.flat_map(|e| [1.0, 2.0, 5.0].map(|m| m * 10f64.powi(e)));
                ticks.filter(|t| (self.low * 0.999..=self.high * 1.001).contains(t)).collect()
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

/// The round number nearest to `value` on the side of zero or, for a negative one, on the other side.
fn round_down(value: f64) -> f64 {
    let power = 10f64.powf(value.abs().log10().floor());
    let share = value.abs() / power;
    let steps = [1.0, 2.0, 5.0, 10.0];
    let near = if value > 0.0 {
        steps.into_iter().rev().find(|s| *s <= share * 1.001)
    } else {
        steps.into_iter().find(|s| *s >= share * 0.999)
    };
    near.unwrap_or(1.0) * power * value.signum()
}

/// A tick's label, with as many decimals as the smallest tick needs.
pub(super) fn label(value: f64, ticks: &[f64]) -> String {
    let least = ticks.iter().copied().filter(|t| *t > 0.0).fold(f64::INFINITY, f64::min);
    let decimals =
        if least >= 1.0 || !least.is_finite() { 0 } else { (-least.log10() - 1e-9).ceil() as usize };
    let decimals = if value >= 1.0 && ticks.windows(2).any(|t| t[1] - t[0] >= 1.0) { 0 } else { decimals };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    //! Round numbers.

    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        let span = Span::over(Scale::Linear, [0.0, 119.5].into_iter(), 1.05, 0.0, 100.0);
        assert_eq!(span.ticks(5), [0.0, 50.0, 100.0]);
        let span = Span::over(Scale::Linear, [0.03].into_iter(), 1.0, 0.0, 100.0);
        let ticks = span.ticks(3);
        let labels: Vec<String> = ticks.iter().map(|t| label(*t, &ticks)).collect();
        assert_eq!(labels, ["0.00", "0.01", "0.02", "0.03"]);
        let span = Span::over(Scale::Log, [0.9, 180.0].into_iter(), 1.0, 0.0, 100.0);
        let ticks = span.ticks(5);
        let labels: Vec<String> = ticks.iter().map(|t| label(*t, &ticks)).collect();
        assert_eq!(labels, ["0.5", "1", "2", "5", "10", "20", "50", "100", "200"]);
        let span = Span::over(Scale::Log, [10.0, 1000.0].into_iter(), 1.0, 0.0, 100.0);
        assert!((span.place(100.0) - 50.0).abs() < 1e-9);
    }
}
