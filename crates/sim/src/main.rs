//! The simulator as a program: the tables of expected figures, measured anew, and the pictures of the guide.

use brodo_sim::page::{self, Style};
use brodo_sim::pictures::PICTURES;
use brodo_sim::tables::{self, Measured, Progress};
use clap::{Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// brodo's TCP in virtual time.
#[derive(Parser)]
#[command(name = "brodo-sim", version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measures the scenarios with expected figures and prints them beside their controls.
    Tables {
        /// The rows to measure, such as `2c`; all of them if none is named.
        rows: Vec<String>,
        /// Prints Markdown instead of aligned columns.
        #[arg(long)]
        markdown: bool,
    },
    /// Draws the pictures of the guide.
    Plots {
        /// The folder they are written to.
        folder: PathBuf,
    },
}

fn main() -> ExitCode {
    match Args::parse().command {
        Command::Tables { rows, markdown } => {
            tables(&rows, if markdown { Style::Markdown } else { Style::Terminal })
        }
        Command::Plots { folder } => plots(&folder),
    }
}

/// Prints the rows; fails if one is unknown or any figure is out of tolerance.
fn tables(wanted: &[String], style: Style) -> ExitCode {
    let known = tables::rows();
    if let Some(unknown) = wanted.iter().find(|id| !known.iter().any(|row| row.id == **id)) {
        let ids: Vec<&str> = known.iter().map(|row| row.id).collect();
        eprintln!("brodo-sim: no row {unknown}; there are {}", ids.join(", "));
        return ExitCode::from(2);
    }
    let mut progress = Progress::on_terminal();
    let mut all = Vec::new();
    print!("{}", page::opening(style));
    for row in known.into_iter().filter(|row| wanted.is_empty() || wanted.iter().any(|id| row.id == id)) {
        let measured = Measured::of(row, &mut progress);
        progress.done();
        print!("{}", page::row(&measured, style));
        all.push(measured);
    }
    print!("{}", page::closing(&all, style));
    if all.iter().any(|measured| measured.failures() > 0) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Writes every picture.
fn plots(folder: &Path) -> ExitCode {
    let mut progress = Progress::on_terminal();
    for picture in PICTURES {
        progress.row(picture.file);
        let svg = picture.svg(&mut progress);
        progress.done();
        let path = folder.join(picture.file);
        if let Err(error) = std::fs::write(&path, svg) {
            eprintln!("brodo-sim: {}: {error}", path.display());
            return ExitCode::FAILURE;
        }
        println!("{}", path.display());
    }
    ExitCode::SUCCESS
}
