//! Charts as SVG: lines over an axis for the guide, and [`bars`] for the benchmark's report.
//!
//! A [`Chart`] is a stack of panels over one x axis, each with its own y axis; a series has one colour in all
//! of them and stands in the legend once. The colours and the grey of the text are of middling lightness on a
//! transparent ground, so that a page may be light or dark. The output depends on the values alone, and
//! points on the line between their neighbours are left out, so that pictures are small and change only with
//! the values.
//!
//! Library weighed: plotters lays out one chart per area, so panels over one axis with one legend, and the
//! dropping of points, would be written here just the same.

pub mod axis;
pub mod bars;

pub use axis::{Axis, Scale};
use axis::{Span, label};
use std::fmt::Write as _;
use std::ops::Range;

const WIDTH: f64 = 760.0;
const LEFT: f64 = 66.0;
const RIGHT: f64 = 16.0;
/// Room for the title, and for the legend below it.
const HEAD: f64 = 58.0;
const PANEL: f64 = 150.0;
const GAP: f64 = 22.0;
const FOOT: f64 = 44.0;
/// Colours in order of the series, and that of text and axes.
const COLOURS: [&str; 6] = ["#3584d4", "#d9822b", "#3a9d5d", "#b45fc9", "#cf5050", "#7d8590"];
const GREY: &str = "#7d8590";

/// Stroke of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stroke {
    /// An unbroken line.
    Solid,
    /// Dashed: an expected or derived value, not a measured one.
    Dashed,
    /// Solid with a mark at every point, for few points.
    Marked,
}

/// One line of a panel.
#[derive(Debug, Clone)]
pub struct Series {
    /// Its name in the legend; series of one name have one colour.
    pub name: String,
    /// Stroke of the line.
    pub stroke: Stroke,
    /// Its points, x in order.
    pub points: Vec<(f64, f64)>,
}

/// One panel of a chart.
#[derive(Debug, Clone)]
pub struct Panel {
    /// Its y axis.
    pub y: Axis,
    /// Its lines.
    pub series: Vec<Series>,
}

/// A picture.
#[derive(Debug, Clone)]
pub struct Chart {
    /// Title above the panels.
    pub title: String,
    /// The x axis of all panels.
    pub x: Axis,
    /// From top to bottom.
    pub panels: Vec<Panel>,
}

impl Chart {
    /// The picture.
    pub fn svg(&self) -> String {
        let height = HEAD + self.panels.len() as f64 * (PANEL + GAP) + FOOT - GAP;
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
             font-size=\"12\" fill=\"{GREY}\" role=\"img\">\n<title>{0}</title>\n\
             <text x=\"{LEFT}\" y=\"18\" font-size=\"14\" font-weight=\"bold\">{0}</text>\n",
            escape(&self.title)
        );
        let names = self.names();
        legend(&mut out, &names);
        let points = self.panels.iter().flat_map(|p| &p.series).flat_map(|s| &s.points);
        let x = Span::over(self.x.scale, points.map(|p| p.0), 1.0, LEFT, WIDTH - RIGHT);
        for (i, panel) in self.panels.iter().enumerate() {
            let top = HEAD + i as f64 * (PANEL + GAP);
            draw_panel(&mut out, panel, &x, top, i + 1 == self.panels.len(), &names);
        }
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            f64::midpoint(LEFT, WIDTH - RIGHT),
            height - 8.0,
            escape(&self.x.label)
        );
        out.push_str("</svg>\n");
        out
    }

    /// The names of all series, each with the stroke of its first use.
    fn names(&self) -> Vec<(&str, Stroke)> {
        let mut names: Vec<(&str, Stroke)> = Vec::new();
        for series in self.panels.iter().flat_map(|p| &p.series) {
            if !names.iter().any(|(name, _)| *name == series.name) {
                names.push((&series.name, series.stroke));
            }
        }
        names
    }
}

/// One panel with its lines, from `top` down; the last one has the numbers of the x axis.
fn draw_panel(out: &mut String, panel: &Panel, x: &Span, top: f64, last: bool, names: &[(&str, Stroke)]) {
    let bottom = top + PANEL;
    let values = panel.series.iter().flat_map(|s| &s.points).map(|p| p.1);
    let y = Span::over(panel.y.scale, values, 1.06, bottom, top);
    grid(out, &y.ticks(5), |v| y.place(v), LEFT..WIDTH - RIGHT, true);
    grid(out, &x.ticks(8), |v| x.place(v), top..bottom, false);
    if last {
        let ticks = x.ticks(8);
        for tick in &ticks {
            let text = label(*tick, &ticks);
            let at = x.place(*tick);
            let _ = writeln!(
                out,
                "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{text}</text>",
                bottom + 16.0
            );
        }
    }
    let ticks = y.ticks(5);
    for tick in &ticks {
        let text = label(*tick, &ticks);
        let at = y.place(*tick) + 4.0;
        let _ = writeln!(out, "<text x=\"{}\" y=\"{at:.1}\" text-anchor=\"end\">{text}</text>", LEFT - 6.0);
    }
    let middle = f64::midpoint(top, bottom);
    let _ = writeln!(
        out,
        "<text transform=\"translate(14 {middle:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
        escape(&panel.y.label)
    );
    // The first series is the subject of the picture, and is drawn above the others.
    for series in panel.series.iter().rev() {
        let colour = names.iter().position(|(name, _)| *name == series.name).unwrap_or(0);
        let width = if colour == 0 { 2.4 } else { 1.6 };
        line(out, series, COLOURS[colour % COLOURS.len()], width, |(px, py)| (x.place(px), y.place(py)));
    }
}

/// Thin lines across a panel at every tick.
fn grid(out: &mut String, ticks: &[f64], place: impl Fn(f64) -> f64, along: Range<f64>, level: bool) {
    let Range { start: from, end: to } = along;
    for tick in ticks {
        let at = place(*tick);
        let (a, b) = if level {
            (format!("{from} {at:.1}"), format!("{to} {at:.1}"))
        } else {
            (format!("{at:.1} {from}"), format!("{at:.1} {to}"))
        };
        let _ = writeln!(out, "<path d=\"M{a}L{b}\" stroke=\"{GREY}\" stroke-opacity=\".25\"/>");
    }
}

fn legend(out: &mut String, names: &[(&str, Stroke)]) {
    let mut x = LEFT;
    for (i, (name, stroke)) in names.iter().enumerate() {
        let (colour, dash) = (COLOURS[i % COLOURS.len()], dash(*stroke));
        let _ = writeln!(
            out,
            "<path d=\"M{x} 38H{}\" stroke=\"{colour}\" stroke-width=\"2.5\"{dash}/><text x=\"{}\" y=\"42\">{}</text>",
            x + 22.0,
            x + 28.0,
            escape(name)
        );
        x += 48.0 + 6.6 * name.chars().count() as f64;
    }
}

const fn dash(stroke: Stroke) -> &'static str {
    match stroke {
        Stroke::Dashed => " stroke-dasharray=\"5 4\"",
        Stroke::Solid | Stroke::Marked => "",
    }
}

fn line(
    out: &mut String,
    series: &Series,
    colour: &str,
    width: f64,
    place: impl Fn((f64, f64)) -> (f64, f64),
) {
    let points: Vec<(f64, f64)> = series.points.iter().map(|p| place(*p)).collect();
    let kept = if series.stroke == Stroke::Marked { points.clone() } else { thin(&points) };
    let mut path = String::new();
    for (i, (x, y)) in kept.iter().enumerate() {
        let _ = write!(path, "{}{x:.1} {y:.1}", if i == 0 { "M" } else { "L" });
    }
    let dash = dash(series.stroke);
    let _ = writeln!(
        out,
        "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\" stroke-linejoin=\"round\"{dash}/>"
    );
    if series.stroke == Stroke::Marked {
        for (x, y) in points {
            let _ = writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.2\" fill=\"{colour}\"/>");
        }
    }
}

/// Leaves out points that lie within a third of a pixel of the line through their neighbours (Ramer, Douglas,
/// Peucker).
fn thin(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    const NEAR: f64 = 0.33;
    let [first, .., last] = points else { return points.to_vec() };
    let (dx, dy) = (last.0 - first.0, last.1 - first.1);
    let length = dx.hypot(dy).max(f64::MIN_POSITIVE);
    let away = |p: &(f64, f64)| ((p.0 - first.0) * dy - (p.1 - first.1) * dx).abs() / length;
    let inner = &points[1..points.len() - 1];
    let far = inner.iter().map(away).enumerate().max_by(|a, b| a.1.total_cmp(&b.1));
    match far {
        Some((i, distance)) if distance > NEAR => {
            let mut kept = thin(&points[..i + 2]);
            kept.pop();
            kept.extend(thin(&points[i + 1..]));
            kept
        }
        _ => vec![*first, *last],
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    //! Tests of the points left out of a line, and of the text of a picture.

    use super::*;

    #[test]
    fn a_straight_line_needs_two_points_and_a_corner_is_kept() {
        let straight: Vec<(f64, f64)> = (0..100).map(|i| (f64::from(i), 5.0)).collect();
        assert_eq!(thin(&straight), [(0.0, 5.0), (99.0, 5.0)]);
        let corner = [(0.0, 0.0), (1.0, 0.1), (2.0, 0.0), (3.0, 50.0), (4.0, 50.1)];
        assert_eq!(thin(&corner), [(0.0, 0.0), (2.0, 0.0), (3.0, 50.0), (4.0, 50.1)]);
    }

    #[test]
    fn a_picture_has_its_words_and_every_series() {
        let series = |name: &str, stroke| Series {
            name: name.to_owned(),
            stroke,
            points: vec![(1.0, 1.0), (10.0, 20.0)],
        };
        let chart = Chart {
            title: "A < B".to_owned(),
            x: Axis::log("queue, frames"),
            panels: vec![Panel {
                y: Axis::linear("throughput, Mbit/s"),
                series: vec![series("measured", Stroke::Marked), series("expected", Stroke::Dashed)],
            }],
        };
        let svg = chart.svg();
        for part in ["A &lt; B", "queue, frames", "throughput, Mbit/s", ">measured<", ">expected<", "<circle"]
        {
            assert!(svg.contains(part), "{part} is not in\n{svg}");
        }
        assert_eq!(svg.matches("stroke-linejoin").count(), 2);
    }
}
