//! Bar charts: a few quantities, each of the same few systems.
//!
//! Bars are horizontal, with name and value beside them in words, so nothing has to be read off an axis and
//! no information is in colour alone. Text has the colour of the surrounding page (`currentColor`). The
//! picture's description has all of it in words, for screen readers.

use crate::{COLOURS, escape};
use std::fmt::Write as _;

const WIDTH: f64 = 760.0;
/// Left end of the bars; the names stand left of it.
const LEFT: f64 = 108.0;
/// The longest bar; its figure stands right of it.
const LENGTH: f64 = 400.0;
const BAR: f64 = 16.0;
const STEP: f64 = 20.0;
/// Height of a group's name and the space below it.
const HEAD: f64 = 24.0;
const GAP: f64 = 12.0;

/// One bar.
#[derive(Debug, Clone)]
pub struct Bar {
    /// Name in the legend; bars of one name have one colour in all groups.
    pub name: String,
    /// Its length, in the unit of the chart.
    pub value: f64,
    /// Least and greatest sample, `value` being the median; drawn as a thin line.
    pub range: (f64, f64),
    /// Text beside the bar: the value in words.
    pub text: String,
}

/// Bars compared with each other, on a scale of their own.
#[derive(Debug, Clone)]
pub struct Group {
    /// Quantity and unit.
    pub name: String,
    /// From top to bottom.
    pub bars: Vec<Bar>,
}

/// A picture.
#[derive(Debug, Clone)]
pub struct Bars {
    /// Title above the bars.
    pub title: String,
    /// From top to bottom.
    pub groups: Vec<Group>,
}

impl Bars {
    /// The picture.
    pub fn svg(&self) -> String {
        let height: f64 = self.groups.iter().map(Group::height).sum();
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
             font-size=\"12\" fill=\"currentColor\" role=\"img\">\n<title>{}</title>\n<desc>{}</desc>\n",
            escape(&self.title),
            escape(&self.words())
        );
        let names = self.names();
        let mut top = 0.0;
        for group in &self.groups {
            group.draw(&mut out, top, &names);
            top += group.height();
        }
        out.push_str("</svg>\n");
        out
    }

    /// The names of all bars, in order of first use.
    fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for bar in self.groups.iter().flat_map(|group| &group.bars) {
            if !names.contains(&bar.name.as_str()) {
                names.push(&bar.name);
            }
        }
        names
    }

    /// The whole chart in words.
    fn words(&self) -> String {
        let group = |group: &Group| {
            let bars: Vec<String> =
                group.bars.iter().map(|bar| format!("{} {}", bar.name, bar.text)).collect();
            format!("{}: {}.", group.name, bars.join(", "))
        };
        self.groups.iter().map(group).collect::<Vec<_>>().join(" ")
    }
}

impl Group {
    fn height(&self) -> f64 {
        HEAD + self.bars.len() as f64 * STEP + GAP
    }

    fn draw(&self, out: &mut String, top: f64, names: &[&str]) {
        let high = self.bars.iter().map(|bar| bar.range.1.max(bar.value)).fold(f64::MIN_POSITIVE, f64::max);
        let length = |value: f64| (value / high).clamp(0.0, 1.0) * LENGTH;
        let _ = writeln!(
            out,
            "<text x=\"0\" y=\"{}\" font-weight=\"bold\">{}</text>",
            top + HEAD - 8.0,
            escape(&self.name)
        );
        for (i, bar) in self.bars.iter().enumerate() {
            let y = top + HEAD + i as f64 * STEP;
            let colour = names.iter().position(|name| *name == bar.name).unwrap_or(0) % COLOURS.len();
            let (base, middle) = (y + 12.0, y + BAR / 2.0);
            let (low, high) = (LEFT + length(bar.range.0), LEFT + length(bar.range.1));
            let _ = writeln!(
                out,
                "<text x=\"{}\" y=\"{base}\" text-anchor=\"end\">{}</text>\
                 <rect x=\"{LEFT}\" y=\"{y}\" width=\"{:.1}\" height=\"{BAR}\" fill=\"{}\"/>\
                 <path d=\"M{low:.1} {middle}H{high:.1}\" stroke=\"currentColor\" stroke-width=\"1.5\"/>\
                 <text x=\"{:.1}\" y=\"{base}\">{}</text>",
                LEFT - 8.0,
                escape(&bar.name),
                length(bar.value),
                COLOURS[colour],
                high.max(LEFT + length(bar.value)) + 8.0,
                escape(&bar.text),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    //! Tests of the text of a picture.

    use super::*;

    #[test]
    fn every_bar_is_drawn_to_scale_and_described_in_words() {
        let bar = |name: &str, value: f64| Bar {
            name: name.to_owned(),
            value,
            range: (value, value),
            text: format!("{value} Gbit/s"),
        };
        let group = Group { name: "up1 & more".to_owned(), bars: vec![bar("a", 10.0), bar("b", 5.0)] };
        let svg = Bars { title: "Rates".to_owned(), groups: vec![group.clone(), group] }.svg();
        assert_eq!(svg.matches("width=\"400.0\"").count(), 2, "{svg}");
        assert_eq!(svg.matches("width=\"200.0\"").count(), 2, "{svg}");
        assert!(svg.contains("<desc>up1 &amp; more: a 10 Gbit/s, b 5 Gbit/s. up1"), "{svg}");
        assert_eq!(svg.matches(COLOURS[0]).count(), 2);
    }
}
