//! Prometheus' text format, version 0.0.4: families of a HELP line, a TYPE line and samples.
//!
//! Library weighed: prometheus-client writes OpenMetrics from metric objects that it owns; here values are
//! copied from workers at each scrape, and the text format is the thirty lines of [`Text`].

use brodo_core::metric::Kind;
use std::fmt::{Display, Write};

/// A text under construction.
#[derive(Default)]
pub(crate) struct Text(String);

impl Text {
    /// One family. Its samples are their labels and their values.
    pub(crate) fn family<L, V>(
        &mut self,
        name: &str,
        kind: Kind,
        help: &str,
        samples: impl IntoIterator<Item = (L, V)>,
    ) where
        L: AsRef<[(&'static str, String)]>,
        V: Display,
    {
        // Writing to a string cannot fail.
        let help = help.trim().trim_end_matches('.').replace('\\', "\\\\").replace('\n', "\\n");
        let _ = write!(self.0, "# HELP {name} {help}.\n# TYPE {name} {}\n", kind.name());
        for (labels, value) in samples {
            self.0.push_str(name);
            for (number, (label, text)) in labels.as_ref().iter().enumerate() {
                let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
                let _ = write!(self.0, "{}{label}=\"{text}\"", if number == 0 { "{" } else { "," });
            }
            if !labels.as_ref().is_empty() {
                self.0.push('}');
            }
            let _ = writeln!(self.0, " {value}");
        }
    }

    /// A family of one sample.
    pub(crate) fn one(&mut self, name: &str, kind: Kind, help: &str, value: impl Display) {
        self.family(name, kind, help, [([], value)]);
    }

    /// The text so far.
    pub(crate) fn into_string(self) -> String {
        self.0
    }
}
