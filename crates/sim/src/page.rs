//! Rows as text: columns aligned for a terminal, or Markdown for the guide.

use crate::pictures::{PICTURES, Picture};
use crate::tables::{Figure, Measured};
use std::fmt::Write as _;

/// Format of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Columns aligned with spaces.
    Terminal,
    /// A Markdown table.
    Markdown,
}

/// Opens the page of the guide.
const OPENING: &str = "\
# The tables

Scenarios with expected figures, measured in virtual time by `cargo run --release -p brodo-sim -- tables`. The stack is
the real one; guest, path, host sockets and clock are simulated, so that these figures are the same on every machine and
a test compares them byte for byte. *Ours* is the judged figure; the columns after the verdict show the same scenario
under each rule of buffer sizes ([compared](buffers.md#other-rules-and-why-not)), or under the row's other controls.

";

/// Opening of the output: in Markdown the beginning of the page of the guide.
pub const fn opening(style: Style) -> &'static str {
    match style {
        Style::Terminal => "",
        Style::Markdown => OPENING,
    }
}

/// Closing of the output: number of figures and failures, and on the page the pictures.
pub fn closing(all: &[Measured], style: Style) -> String {
    let judged: usize = all.iter().flat_map(|m| &m.figures).filter(|f| f.passes().is_some()).count();
    let failed: usize = all.iter().map(Measured::failures).sum();
    let mut text = format!("{} of {judged} figures within tolerance\n", judged - failed);
    if style == Style::Markdown {
        text.push_str("\n## Over time\n\nDrawn by `brodo-sim plots`.\n");
        for Picture { file, title, .. } in PICTURES {
            let _ = write!(text, "\n![{title}](images/{file})\n");
        }
    }
    text
}

/// One row with its set-up and figures.
pub fn row(measured: &Measured, style: Style) -> String {
    let row = measured.row;
    let mut text = match style {
        Style::Terminal => format!("Row {}: {}\n{}\n\n", row.id, row.title, wrap(row.setup, 110, "   ")),
        Style::Markdown => format!("## Row {}: {}\n\n{}\n\n", row.id, row.title, row.setup),
    };
    let cells = cells(&measured.figures);
    match style {
        Style::Terminal => aligned(&mut text, &cells),
        Style::Markdown => markdown(&mut text, &cells),
    }
    text.push('\n');
    text
}

/// The table: the head, then one line for each figure. Columns that are empty throughout are left out.
fn cells(figures: &[Figure]) -> Vec<Vec<String>> {
    let mut controls: Vec<&str> = Vec::new();
    for (name, _) in figures.iter().flat_map(|f| &f.controls) {
        if !controls.contains(&name.as_str()) {
            controls.push(name);
        }
    }
    let head = ["case", "figure", "unit", "expected", "tolerance", "ours", "deviation", "verdict"];
    let mut lines = vec![head.iter().copied().chain(controls.iter().copied()).map(str::to_owned).collect()];
    for figure in figures {
        let mut line = vec![
            figure.case.clone(),
            figure.what.to_owned(),
            figure.unit.name().to_owned(),
            figure.expected.show(figure.unit),
            figure.expected.tolerance(),
            figure.unit.show(figure.value),
            figure.expected.deviation(figure.value).map_or_else(String::new, percent),
            figure.passes().map_or("", |ok| if ok { "ok" } else { "OUT" }).to_owned(),
        ];
        for name in &controls {
            let value = figure.controls.iter().find(|(n, _)| n == name).and_then(|(_, v)| *v);
            line.push(value.map_or_else(String::new, |v| figure.unit.show(v)));
        }
        lines.push(line);
    }
    let used: Vec<bool> =
        (0..lines[0].len()).map(|i| lines[1..].iter().any(|line| !line[i].is_empty())).collect();
    for line in &mut lines {
        let mut used = used.iter();
        line.retain(|_| used.next() == Some(&true));
    }
    lines
}

/// A deviation with its sign; zero has none.
fn percent(deviation: f64) -> String {
    if deviation.abs() < 0.05 { "0.0 %".to_owned() } else { format!("{deviation:+.1} %") }
}

/// Whether a column is text, which stands to the left; numbers stand to the right.
fn is_text(head: &str) -> bool {
    matches!(head, "case" | "figure" | "unit" | "verdict")
}

fn aligned(text: &mut String, lines: &[Vec<String>]) {
    let width = |i: usize| lines.iter().map(|line| line[i].chars().count()).max().unwrap_or(0);
    for (n, line) in lines.iter().enumerate() {
        let mut out = String::from("  ");
        for (i, cell) in line.iter().enumerate() {
            let pad = " ".repeat(width(i) - cell.chars().count());
            let cell = if is_text(&lines[0][i]) { format!("{cell}{pad}") } else { format!("{pad}{cell}") };
            let _ = write!(out, " {cell} ");
        }
        let _ = writeln!(text, "{}", out.trim_end());
        if n == 0 {
            let rule: Vec<String> = (0..line.len()).map(|i| "-".repeat(width(i))).collect();
            let _ = writeln!(text, "   {}", rule.join("  "));
        }
    }
}

fn markdown(text: &mut String, lines: &[Vec<String>]) {
    for (n, line) in lines.iter().enumerate() {
        let _ = writeln!(text, "| {} |", line.join(" | "));
        if n == 0 {
            let rule: Vec<&str> = line.iter().map(|h| if is_text(h) { "---" } else { "---:" }).collect();
            let _ = writeln!(text, "|{}|", rule.join("|"));
        }
    }
}

/// Words in lines of at most `width` characters, each begun with `indent`.
fn wrap(words: &str, width: usize, indent: &str) -> String {
    let mut lines = vec![String::from(indent)];
    for word in words.split_whitespace() {
        let line = lines.last_mut().expect("never empty");
        if line.chars().count() + word.chars().count() + 1 > width {
            lines.push(format!("{indent}{word}"));
        } else {
            if line.len() > indent.len() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines.join("\n")
}
