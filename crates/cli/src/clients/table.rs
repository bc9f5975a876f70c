//! Tables for people: columns as wide as their content, and a table no wider than the terminal.
//!
//! A table that is too wide loses columns, the highest rank first; then its widest column is cut. A table
//! that goes to a file or a pipe is as wide as it needs to be.
//!
//! Libraries weighed: comfy-table and tabled wrap or cut cells to fit a width; leaving out columns by rank,
//! which is most of this file, would stay own code.

use rustix::termios::tcgetwinsize;
use std::fmt::Write as _;

/// A column.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Column {
    pub(crate) title: &'static str,
    /// Right-aligned, for numbers.
    pub(crate) right: bool,
    /// Columns with larger numbers are left out first; 0 is never left out.
    pub(crate) rank: u8,
}

/// Least width of a cut column.
const CUT_MIN: usize = 8;

/// Width in characters of the terminal at standard output; `None` without a terminal.
pub(crate) fn terminal_width() -> Option<usize> {
    let size = tcgetwinsize(std::io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|&width| width > 0)
}

/// Lays out rows, each with a cell for each column, in at most `width` characters.
pub(crate) fn table(columns: &[Column], rows: &[Vec<String>], width: Option<usize>) -> String {
    let mut widths: Vec<usize> = columns.iter().map(|column| column.title.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut shown: Vec<usize> = (0..columns.len()).collect();
    if let Some(width) = width {
        let total = |shown: &[usize], widths: &[usize]| {
            shown.iter().map(|&at| widths[at] + 2).sum::<usize>().saturating_sub(2)
        };
        while total(&shown, &widths) > width {
            let least = shown.iter().copied().filter(|&at| columns[at].rank > 0);
            let Some(least) = least.max_by_key(|&at| columns[at].rank) else { break };
            shown.retain(|&at| at != least);
        }
        while total(&shown, &widths) > width {
            let Some(&widest) = shown.iter().max_by_key(|&&at| widths[at]) else { break };
            if widths[widest] <= CUT_MIN {
                break;
            }
            widths[widest] -= 1;
        }
    }
    let mut text = String::new();
    let titles: Vec<String> = columns.iter().map(|column| column.title.to_owned()).collect();
    for row in std::iter::once(&titles).chain(rows) {
        let mut line = String::new();
        for &at in &shown {
            let cell = row.get(at).map(String::as_str).unwrap_or_default();
            let cell: String = cell.chars().take(widths[at]).collect();
            // Writing to a string cannot fail.
            let _ = if columns[at].right {
                write!(line, "{cell:>width$}  ", width = widths[at])
            } else {
                write!(line, "{cell:<width$}  ", width = widths[at])
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 3] = [
        Column { title: "name", right: false, rank: 0 },
        Column { title: "count", right: true, rank: 1 },
        Column { title: "remark", right: false, rank: 2 },
    ];

    fn rows() -> Vec<Vec<String>> {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        vec![row(["one", "1", "first"]), row(["a-longer-name", "12345678", "second and last"])]
    }

    #[test]
    fn wide_enough_shows_all() {
        let text = "name              count  remark\n\
                    one                   1  first\n\
                    a-longer-name  12345678  second and last\n";
        assert_eq!(table(&COLUMNS, &rows(), None), text);
        assert_eq!(table(&COLUMNS, &rows(), Some(40)), text);
    }

    #[test]
    fn too_narrow_leaves_out_what_matters_least_and_then_cuts() {
        let text = "name              count\none                   1\na-longer-name  12345678\n";
        assert_eq!(table(&COLUMNS, &rows(), Some(39)), text);
        assert_eq!(table(&COLUMNS, &rows(), Some(10)), "name\none\na-longer-n\n");
        assert_eq!(table(&COLUMNS, &rows(), Some(1)), "name\none\na-longer\n");
    }
}
