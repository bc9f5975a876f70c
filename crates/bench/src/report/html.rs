//! A document as one page of HTML: no script, nothing loaded from elsewhere, light or dark as the reader's
//! system is.
//!
//! Charts are SVG in the page, with their figures in words inside and in a table beside; tables say which of
//! their cells are headers, and wide ones scroll by themselves. The page is well-formed XML too, so that any
//! tool can read it.

use super::{Block, Document, Table};
use std::fmt::Write as _;

const STYLE: &str = "
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #57606a; --line: #d0d7de; --paper: #fff; --warn: #9a6700; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --soft: #9ea7b3; --line: #30363d; --paper: #0d1117; --warn: #e3b341; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line); }
.wide { overflow-x: auto; margin: 1rem 0 1.5rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 14px; }
caption { text-align: left; color: var(--soft); padding-bottom: .3rem; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th { font-weight: 600; }
th:first-child, td:first-child { text-align: left; }
svg { max-width: 48rem; width: 100%; height: auto; }
svg text { fill: currentColor; }
.warning { border-left: 4px solid var(--warn); padding-left: .8rem; }
";

pub(super) fn write(document: &Document) -> String {
    let title = escape(&document.title);
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>{title}</title>\n\
         <style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
    );
    for block in &document.blocks {
        match block {
            Block::Heading(level, text) => {
                let _ = writeln!(out, "<h{level}>{}</h{level}>", inline(text));
            }
            Block::Text(text) => {
                let _ = writeln!(out, "<p>{}</p>", inline(text));
            }
            Block::Warning(text) => {
                let _ = writeln!(out, "<p class=\"warning\"><strong>{}</strong></p>", inline(text));
            }
            Block::Table(rows) => table(&mut out, rows),
            Block::Bars(bars) => {
                let _ = writeln!(out, "<figure>\n{}</figure>", bars.svg());
            }
            Block::Lines(chart) => {
                let _ = writeln!(out, "<figure>\n{}</figure>", chart.svg());
            }
        }
    }
    out.push_str("</body>\n</html>\n");
    out
}

fn table(out: &mut String, table: &Table) {
    out.push_str("<div class=\"wide\" tabindex=\"0\">\n<table>\n");
    if !table.caption.is_empty() {
        let _ = writeln!(out, "<caption>{}</caption>", inline(&table.caption));
    }
    out.push_str("<thead><tr>");
    for name in &table.head {
        let _ = write!(out, "<th scope=\"col\">{}</th>", inline(name));
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for cells in &table.rows {
        let mut cells = cells.iter().map(|cell| inline(cell));
        let _ = write!(out, "<tr><th scope=\"row\">{}</th>", cells.next().unwrap_or_default());
        for cell in cells {
            let _ = write!(out, "<td>{cell}</td>");
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody>\n</table>\n</div>\n");
}

/// Text with code in backticks.
fn inline(text: &str) -> String {
    let parts = text.split('`').enumerate();
    parts
        .map(|(i, part)| if i % 2 == 1 { format!("<code>{}</code>", escape(part)) } else { escape(part) })
        .collect()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
