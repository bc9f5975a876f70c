//! The files of the workspace, read once: path from the root and text, without `target` and hidden folders
//! other than `.ci`.

use crate::assert_none;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::SystemTime;

/// Letters of a file's opening comment, at least: a sentence that says the purpose of the file.
const OPENING_LETTERS_MIN: usize = 40;
/// The same for a file `tests.rs`, whose name says that itself.
const OPENING_LETTERS_MIN_TESTS: usize = 20;

/// Names that gather what belongs elsewhere.
const FORBIDDEN_MODULES: &[&str] = &["utils", "util", "common", "misc", "helpers"];

/// One file, with its path from the root of the workspace.
pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) text: String,
    modified: SystemTime,
}

impl File {
    /// Whether the name ends in a dot and `extension`.
    pub(crate) fn has_extension(&self, extension: &str) -> bool {
        Path::new(&self.path).extension().is_some_and(|found| found == extension)
    }
}

/// Root of the workspace.
pub(crate) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("workspace root")
}

/// All text files that a rule may read: sources, manifests, pages, scripts. The one written last comes last,
/// so that the end of a long report concerns the work at hand.
pub(crate) fn all() -> &'static [File] {
    static FILES: OnceLock<Vec<File>> = OnceLock::new();
    FILES.get_or_init(|| {
        let root = root();
        let mut found = Vec::new();
        walk(&root, &root, &mut found);
        assert!(!found.is_empty(), "no files under {}", root.display());
        found.sort_by(|a, b| (a.modified, &a.path).cmp(&(b.modified, &b.path)));
        found
    })
}

/// All files with this extension.
pub(crate) fn with_extension(extension: &str) -> impl Iterator<Item = &'static File> {
    all().iter().filter(move |file| file.has_extension(extension))
}

/// All Rust files.
pub(crate) fn rust() -> impl Iterator<Item = &'static File> {
    with_extension("rs")
}

fn is_wanted(path: &Path) -> bool {
    let extension = path.extension().unwrap_or_default().to_string_lossy();
    ["rs", "toml", "md", "bt", "sh"].contains(&&*extension)
        || path.file_name().is_some_and(|name| name == "Makefile" || name == "run")
        || path.parent().is_some_and(|folder| folder.ends_with("scripts"))
        || path.components().any(|part| part.as_os_str() == "packaging")
}

fn walk(root: &Path, folder: &Path, found: &mut Vec<File>) {
    let mut entries: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap_or_else(|e| panic!("{}: {e}", folder.display()))
        .map(|entry| entry.expect("directory entry").path())
        .collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let facts = path.symlink_metadata().unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        if facts.is_dir() && name != "target" && (name == ".ci" || !name.starts_with('.')) {
            walk(root, &path, found);
        } else if facts.is_file() && is_wanted(&path) {
            let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            let modified = facts.modified().expect("time of modification");
            let path = path.strip_prefix(root).expect("inside the workspace").to_string_lossy().into_owned();
            found.push(File { path, text, modified });
        }
    }
}

/// The letters that are missing from a file's opening comment.
fn opening_offence(path: &str, text: &str) -> Option<String> {
    let opening: String = text.lines().take_while(|line| line.starts_with("//!")).collect();
    let letters = opening.chars().filter(|c| c.is_alphabetic()).count();
    let min = if path.ends_with("/tests.rs") { OPENING_LETTERS_MIN_TESTS } else { OPENING_LETTERS_MIN };
    (letters < min).then(|| {
        format!("{path}:1: opens with {letters} letters of `//!`: say what the file is for and promises")
    })
}

fn is_drawer(path: &str) -> bool {
    let mut parts = Path::new(path).components();
    parts.any(|part| FORBIDDEN_MODULES.contains(&part.as_os_str().to_string_lossy().trim_end_matches(".rs")))
}

/// Lines that put something off.
fn postponements(path: &str, text: &str) -> Vec<String> {
    let marks = [["TO", "DO"].concat(), ["FIX", "ME"].concat(), ["XX", "X"].concat()];
    let marked = |line: &str| {
        line.split(|c: char| !c.is_alphanumeric()).any(|word| marks.iter().any(|mark| mark == word))
    };
    let lines = text.lines().enumerate().filter(|(_, line)| marked(line));
    lines.map(|(n, line)| format!("{path}:{}: finish it or drop it: {}", n + 1, line.trim())).collect()
}

#[test]
fn every_file_opens_with_its_theory_of_operation() {
    assert_none(&rust().filter_map(|file| opening_offence(&file.path, &file.text)).collect::<Vec<String>>());
}

#[test]
fn no_file_is_a_drawer_for_everything() {
    let drawers = rust().filter(|file| is_drawer(&file.path));
    assert_none(&drawers.map(|file| format!("{}: name it after its content", file.path)).collect::<Vec<_>>());
}

#[test]
fn nothing_is_left_for_later() {
    assert_none(&all().iter().flat_map(|file| postponements(&file.path, &file.text)).collect::<Vec<_>>());
}

#[test]
fn notices_files_without_opening_drawers_and_postponements() {
    assert!(opening_offence("a.rs", "//! Short.\nfn f() {}\n").is_some());
    assert!(opening_offence("a/tests.rs", "//! The tests of the file above it.\n").is_none());
    assert!(is_drawer("crates/core/src/utils/mod.rs") && is_drawer("a/misc.rs") && !is_drawer("a/mist.rs"));
    let text = ["fn f() {}\n// ", "TO", "DO: later\n"].concat();
    assert_eq!(postponements("a.rs", &text).len(), 1);
}
