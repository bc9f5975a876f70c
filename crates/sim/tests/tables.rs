//! The tables and pictures of the guide equal the simulator's present measurements byte for byte, and every
//! figure is within its tolerance.
//!
//! `BRODO_BLESS=1 cargo test -p brodo-sim --test tables` writes the committed copies anew. The rewritten
//! pages belong to the commit of the change.

use brodo_sim::page::{self, Style};
use brodo_sim::pictures::PICTURES;
use brodo_sim::tables::{self, Measured, Progress};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;

/// A file of the guide.
fn guide(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src").join(file)
}

/// Compares `text` with the committed copy, or writes that anew if asked to.
#[track_caller]
fn assert_committed(file: &str, text: &str) {
    let path = guide(file);
    if std::env::var_os("BRODO_BLESS").is_some() {
        return std::fs::write(&path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let lines = committed.lines().zip(text.lines()).enumerate();
    for (number, (was, is)) in lines {
        assert_eq!(was, is, "{}:{}: BRODO_BLESS=1 writes it anew", path.display(), number + 1);
    }
    assert_eq!(committed.lines().count(), text.lines().count(), "lines of {}", path.display());
}

/// Every row with its figures, in order; measured on all processors, since a row has its own virtual time.
fn measure_all() -> Vec<Measured> {
    let rows = Mutex::new(tables::rows().into_iter().enumerate());
    let measured = Mutex::new(Vec::new());
    let measure_the_rest = || {
        loop {
            let next = rows.lock().unwrap().next();
            let Some((place, row)) = next else { return };
            let row = Measured::of(row, &mut Progress::silent());
            measured.lock().unwrap().push((place, row));
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(measure_the_rest);
        }
    });
    let mut measured = measured.into_inner().unwrap();
    measured.sort_by_key(|(place, _)| *place);
    measured.into_iter().map(|(_, row)| row).collect()
}

#[test]
fn every_figure_is_as_committed_and_within_tolerance() {
    let all = measure_all();
    let style = Style::Markdown;
    let rows: String = all.iter().map(|measured| page::row(measured, style)).collect();
    assert_committed("tables.md", &[page::opening(style), &rows, &page::closing(&all, style)].concat());
    let out: Vec<String> = all
        .iter()
        .flat_map(|m| m.figures.iter().map(move |f| (m.row.id, f)))
        .filter(|(_, f)| f.passes() == Some(false))
        .map(|(id, f)| format!("row {id} {} {}: {} {}", f.case, f.what, f.unit.show(f.value), f.unit.name()))
        .collect();
    assert!(out.is_empty(), "out of tolerance:\n{}", out.join("\n"));
}

#[test]
fn every_picture_is_as_committed() {
    for picture in PICTURES {
        let svg = picture.svg(&mut Progress::silent());
        assert!(svg.len() < 60_000, "{} has {} bytes", picture.file, svg.len());
        assert_committed(&format!("images/{}", picture.file), &svg);
    }
}
