//! A document as Markdown without its charts, readable in a terminal as it is.

use super::{Block, Document, Table};
use std::fmt::Write as _;

pub(super) fn write(document: &Document) -> String {
    let mut out = String::new();
    if !document.title.is_empty() {
        let _ = writeln!(out, "# {}", document.title);
    }
    for block in &document.blocks {
        if !out.is_empty() {
            out.push('\n');
        }
        let _ = match block {
            Block::Heading(level, text) => writeln!(out, "{} {text}", "#".repeat(usize::from(*level))),
            Block::Text(text) => writeln!(out, "{text}"),
            Block::Warning(text) => writeln!(out, "**{text}**"),
            Block::Table(rows) => {
                table(&mut out, rows);
                Ok(())
            }
            // Charts are left out, as tables have their figures; the empty line before them goes too.
            Block::Bars(_) | Block::Lines(_) => {
                out.pop();
                Ok(())
            }
        };
    }
    out
}

fn table(out: &mut String, table: &Table) {
    if !table.caption.is_empty() {
        let _ = writeln!(out, "{}:\n", table.caption);
    }
    row(out, &table.head);
    let _ = writeln!(out, "|{}", "---|".repeat(table.head.len()));
    for cells in &table.rows {
        row(out, cells);
    }
}

fn row(out: &mut String, cells: &[String]) {
    out.push('|');
    for cell in cells {
        let _ = write!(out, " {} |", cell.replace('|', "\\|"));
    }
    out.push('\n');
}
