//! Reports: a document of headings, tables and charts, built once and written as Markdown and as a
//! page of HTML.
//!
//! The main benchmark, long paths and idle connections give their results as [`Block`]s, with the same
//! [`Outputs`]: Markdown to standard output, and files by option. Samples go to JSON unchanged.

mod html;
mod machine;
mod markdown;
mod spread;

pub use machine::Machine;
pub use spread::{Spread, number, percentile};

use crate::process::{Context, Result};
use brodo_plot::bars::Bars;
use clap::Args;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Files for the results, beside standard output.
#[derive(Debug, Clone, Default, Args)]
pub struct Outputs {
    /// Write every sample to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a page with tables and charts to this file, self-contained
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write a short table to this file: the main figures, and whether the goals are reached
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
}

impl Outputs {
    /// Prints the document and writes the files that were asked for.
    pub fn write(&self, document: &Document, short: &Document, samples: &Value) -> Result<()> {
        println!("{}", document.markdown());
        let files = [
            (&self.json, samples.to_string()),
            (&self.html, document.html()),
            (&self.markdown, short.markdown()),
        ];
        for (path, text) in files {
            if let Some(path) = path {
                write(path, &text)?;
            }
        }
        Ok(())
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).context(|| format!("cannot write {}", path.display()))
}

/// A document.
#[derive(Debug, Clone, Default)]
pub struct Document {
    /// Title of the page.
    pub title: String,
    /// Blocks in order.
    pub blocks: Vec<Block>,
}

/// A part of a document. Text may have code in `backticks`.
#[derive(Debug, Clone)]
pub enum Block {
    /// A heading of a part, level 2 to 4.
    Heading(u8, String),
    /// A paragraph.
    Text(String),
    /// A paragraph shown as a warning.
    Warning(String),
    /// A table.
    Table(Table),
    /// A bar chart, left out of Markdown; its figures are also in a table.
    Bars(Bars),
    /// A line chart, under the same rule as a bar chart.
    Lines(brodo_plot::Chart),
}

/// A table: the first column names the row.
#[derive(Debug, Clone, Default)]
pub struct Table {
    /// Subject and unit.
    pub caption: String,
    /// Names of the columns.
    pub head: Vec<String>,
    /// The rows; every one as long as the head.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub fn new(caption: impl Into<String>, head: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { caption: caption.into(), head: head.into_iter().map(Into::into).collect(), rows: Vec::new() }
    }

    /// Adds a row; cells that are missing at its end are empty.
    pub fn row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        let mut row: Vec<String> = cells.into_iter().map(Into::into).collect();
        row.resize(self.head.len(), String::new());
        self.rows.push(row);
    }
}

impl Document {
    /// A document about `title`.
    pub fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), blocks: Vec::new() }
    }

    /// The document as Markdown, without the charts.
    pub fn markdown(&self) -> String {
        markdown::write(self)
    }

    /// The document as one page of HTML without references to other files.
    pub fn html(&self) -> String {
        html::write(self)
    }
}

#[cfg(test)]
mod tests;
