//! One figure: expectation, measurement, and verdict.

/// Unit of a figure. Values are held in the base unit and shown in the customary one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Bytes per second, shown as Mbit/s.
    MegabitPerS,
    /// Bytes per second, shown as Gbit/s.
    GigabitPerS,
    /// Bytes per second, shown as MB/s.
    MegabytePerS,
    /// Seconds, shown as seconds.
    Second,
    /// Seconds, shown as milliseconds.
    Millisecond,
    /// Bytes, shown as such.
    Byte,
    /// Bytes, shown as KiB.
    Kibibyte,
    /// Bytes, shown as MB.
    Megabyte,
    /// A number of things.
    Count,
    /// A ratio, shown in per cent.
    Percent,
}

impl Unit {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::MegabitPerS => "Mbit/s",
            Self::GigabitPerS => "Gbit/s",
            Self::MegabytePerS => "MB/s",
            Self::Second => "s",
            Self::Millisecond => "ms",
            Self::Byte => "B",
            Self::Kibibyte => "KiB",
            Self::Megabyte => "MB",
            Self::Count => "",
            Self::Percent => "%",
        }
    }

    /// The value as shown, without the unit; a time without end is "never".
    pub fn show(self, value: f64) -> String {
        let (factor, decimals) = match self {
            Self::MegabitPerS => (8e-6, 2),
            Self::GigabitPerS => (8e-9, 2),
            Self::MegabytePerS | Self::Megabyte => (1e-6, 2),
            Self::Second => (1.0, 3),
            Self::Millisecond => (1e3, 2),
            Self::Kibibyte => (1.0 / 1024.0, 1),
            Self::Byte | Self::Count => (1.0, 0),
            Self::Percent => (100.0, 1),
        };
        if value.is_finite() { format!("{:.decimals$}", value * factor) } else { "never".to_owned() }
    }
}

/// Expectation of a figure, in base units.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Expected {
    /// This, within so many per cent.
    About(f64, f64),
    /// Between this divided by and multiplied with a factor.
    Factor(f64, f64),
    /// At least this, less so many per cent.
    AtLeast(f64, f64),
    /// At most this, and so many per cent.
    AtMost(f64, f64),
    /// From one to the other.
    Between(f64, f64),
    /// No expectation: for information.
    Shown,
}

impl Expected {
    /// Whether `value` is within the tolerance; `None` without an expectation.
    pub fn passes(self, value: f64) -> Option<bool> {
        let (low, high) = match self {
            Self::About(v, percent) => (v * (1.0 - percent / 100.0), v * (1.0 + percent / 100.0)),
            Self::Factor(v, factor) => (v / factor, v * factor),
            Self::AtLeast(v, percent) => (v * (1.0 - percent / 100.0), f64::INFINITY),
            Self::AtMost(v, percent) => (f64::NEG_INFINITY, v * (1.0 + percent / 100.0)),
            Self::Between(low, high) => (low, high),
            Self::Shown => return None,
        };
        Some(low <= value && value <= high)
    }

    /// The expectation as shown, without its tolerance.
    pub fn show(self, unit: Unit) -> String {
        match self {
            Self::About(v, _) | Self::Factor(v, _) => unit.show(v),
            Self::AtLeast(v, _) => format!(">= {}", unit.show(v)),
            Self::AtMost(v, _) => format!("<= {}", unit.show(v)),
            Self::Between(low, high) => format!("{} to {}", unit.show(low), unit.show(high)),
            Self::Shown => String::new(),
        }
    }

    /// The tolerance as shown.
    pub fn tolerance(self) -> String {
        match self {
            Self::About(_, percent) => format!("±{percent} %"),
            Self::AtLeast(_, percent) if percent > 0.0 => format!("-{percent} %"),
            Self::AtMost(_, percent) if percent > 0.0 => format!("+{percent} %"),
            Self::Factor(_, factor) => format!("×/÷ {factor}"),
            _ => String::new(),
        }
    }

    /// Deviation of `value` from the expected value, in per cent; `None` for a bound.
    pub fn deviation(self, value: f64) -> Option<f64> {
        match self {
            Self::About(v, _) | Self::Factor(v, _) if v != 0.0 && value.is_finite() => {
                Some((value / v - 1.0) * 100.0)
            }
            _ => None,
        }
    }
}

/// One figure of a row.
#[derive(Debug, Clone)]
pub struct Figure {
    /// Case of the row: its parameter. Empty for a single case.
    pub case: String,
    /// Name of the quantity.
    pub what: &'static str,
    /// Unit of the value.
    pub unit: Unit,
    /// Expected value or bound.
    pub expected: Expected,
    /// Measured value.
    pub value: f64,
    /// Controls by name: the same figure under other rules; `None` where it has none.
    pub controls: Vec<(String, Option<f64>)>,
}

impl Figure {
    /// Whether it is within the tolerance; `None` without an expectation.
    pub fn passes(&self) -> Option<bool> {
        self.expected.passes(self.value)
    }
}
