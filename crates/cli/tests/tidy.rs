//! Tidiness as a test: the rules of the house that no compiler checks.
//!
//! Every rule looks at all Rust files and manifests of the workspace and reports every offence at once, with file and
//! line. Lengths are a *ratchet*: a function or file over the limit may be listed in [`RATCHET`] with its present length,
//! and from then on it may only shrink; an entry that has become too generous is itself an offence, so the list never
//! hides growth.

use proc_macro2::{TokenStream, TokenTree};
use std::fs;
use std::path::{Path, PathBuf};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// Lines of one function, from its signature to its closing brace.
const FUNCTION_LINES_MAX: usize = 100;
/// Lines of one file.
const FILE_LINES_MAX: usize = 800;
/// Letters a file's opening comment has at least: a sentence that says what the file is for.
const OPENING_LETTERS_MIN: usize = 40;
/// The same for the tests of a file, which says that itself.
const OPENING_LETTERS_MIN_TESTS: usize = 20;

/// What is longer than it should be: path (`path` for a file, `path::function` for a function) and its lines today.
/// Entries are removed or lowered, never raised or added without a reason in the commit.
const RATCHET: &[(&str, usize)] = &[];

/// Names that gather what belongs elsewhere.
const FORBIDDEN_MODULES: &[&str] = &["utils", "util", "common", "misc", "helpers"];

/// The only crate that may contain `unsafe`.
const UNSAFE_CRATE: &str = "crates/linux/";

#[test]
fn every_file_opens_with_its_theory_of_operation() {
    let offences = each_rust_file(|path, text| {
        let opening: String = text.lines().take_while(|line| line.starts_with("//!")).collect();
        let letters = opening.chars().filter(|c| c.is_alphabetic()).count();
        let min = if path.ends_with("/tests.rs") { OPENING_LETTERS_MIN_TESTS } else { OPENING_LETTERS_MIN };
        (letters < min)
            .then(|| {
                format!(
                    "{path}:1: opens with {letters} letters of `//!`: say what the file is for and promises"
                )
            })
            .into_iter()
            .collect()
    });
    assert_none(&offences);
}

#[test]
fn files_and_functions_are_short() {
    let mut long = Vec::new();
    for (path, text) in rust_files() {
        let lines = text.lines().count();
        if lines > FILE_LINES_MAX {
            long.push((path.clone(), lines));
        }
        let mut functions = Functions { path: &path, long: &mut long };
        functions.visit_file(&parse(&path, &text));
    }
    let mut offences = Vec::new();
    for (name, lines) in &long {
        match RATCHET.iter().find(|(listed, _)| listed == name) {
            None => offences.push(format!("{name}: {lines} lines, too long: split it")),
            Some((_, max)) if lines > max => {
                offences.push(format!("{name}: grew from {max} to {lines} lines"));
            }
            Some((_, max)) if lines < max => {
                offences
                    .push(format!("{name}: shrank from {max} to {lines} lines: lower its entry in RATCHET"));
            }
            Some(_) => {}
        }
    }
    for (name, _) in RATCHET.iter().filter(|(listed, _)| !long.iter().any(|(name, _)| name == listed)) {
        offences.push(format!("{name}: is short enough or gone: remove its entry from RATCHET"));
    }
    assert_none(&offences);
}

#[test]
fn unsafe_stays_in_one_crate() {
    let offences = each_rust_file(|path, text| {
        if path.starts_with(UNSAFE_CRATE) {
            return Vec::new();
        }
        let tokens: TokenStream = text.parse().unwrap_or_else(|e| panic!("{path}: {e}"));
        let mut lines = Vec::new();
        lines_of_unsafe(tokens, &mut lines);
        lines.iter().map(|line| format!("{path}:{line}: unsafe outside {UNSAFE_CRATE}")).collect()
    });
    assert_none(&offences);
}

#[test]
fn no_file_is_a_drawer_for_everything() {
    let offences = each_rust_file(|path, _| {
        let drawer = Path::new(path).components().any(|part| {
            let name = part.as_os_str().to_string_lossy();
            FORBIDDEN_MODULES.contains(&name.trim_end_matches(".rs"))
        });
        drawer.then(|| format!("{path}: name it after what it does")).into_iter().collect()
    });
    assert_none(&offences);
}

#[test]
fn nothing_is_left_for_later() {
    let marks = [["TO", "DO"].concat(), ["FIX", "ME"].concat(), ["XX", "X"].concat()];
    let wanted = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name == "Makefile" || path.extension().is_some_and(|e| ["rs", "toml", "md"].iter().any(|x| e == *x))
    };
    let mut offences = Vec::new();
    for (path, text) in files(&wanted) {
        for (number, line) in text.lines().enumerate() {
            let mut words = line.split(|c: char| !c.is_alphanumeric());
            if words.any(|word| marks.iter().any(|mark| mark == word)) {
                offences.push(format!("{path}:{}: finish it or drop it: {}", number + 1, line.trim()));
            }
        }
    }
    assert_none(&offences);
}

#[test]
fn every_dependency_has_a_reason() {
    let mut offences = Vec::new();
    for (path, text) in files(&|path| path.file_name().is_some_and(|name| name == "Cargo.toml")) {
        offences.extend(unexplained_dependencies(&path, &text));
    }
    assert_none(&offences);
}

#[test]
fn the_rules_themselves_notice() {
    let manifest = "[dependencies]\n# Why.\na = \"1\"\nb = \"2\"\nc = \"3\" # why\nbrodo-core = { workspace = true }\n\
                    [features]\nd = []\n";
    let found = unexplained_dependencies("Cargo.toml", manifest);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("Cargo.toml:4:"), "{found:?}");

    let mut lines = Vec::new();
    let text = "fn f() {\n  g!({ unsafe { h() } });\n}\n// unsafe\nconst S: &str = \"unsafe\";\n";
    lines_of_unsafe(text.parse().unwrap(), &mut lines);
    assert_eq!(lines, [2]);

    let text = format!(
        "impl S {{\n fn long() {{\n{}}}\n fn short() {{}}\n}}\n",
        "  f();\n".repeat(FUNCTION_LINES_MAX)
    );
    let mut long = Vec::new();
    Functions { path: "a.rs", long: &mut long }.visit_file(&parse("a.rs", &text));
    assert_eq!(long, [("a.rs::long".to_owned(), FUNCTION_LINES_MAX + 2)]);
}

/// Collects functions that are longer than the limit, wherever they are: free, in impls, in traits, nested.
struct Functions<'a> {
    path: &'a str,
    long: &'a mut Vec<(String, usize)>,
}

impl Functions<'_> {
    fn measure(&mut self, signature: &syn::Signature, end: proc_macro2::Span) {
        let lines = end.end().line + 1 - signature.span().start().line;
        if lines > FUNCTION_LINES_MAX {
            self.long.push((format!("{}::{}", self.path, signature.ident), lines));
        }
    }
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.measure(&item.sig, item.block.span());
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.measure(&item.sig, item.block.span());
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.measure(&item.sig, block.span());
        }
        visit::visit_trait_item_fn(self, item);
    }
}

fn parse(path: &str, text: &str) -> syn::File {
    syn::parse_file(text).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Lines on which the keyword `unsafe` stands as a token: not in a comment or a string, but also inside macros.
fn lines_of_unsafe(tokens: TokenStream, lines: &mut Vec<usize>) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => lines_of_unsafe(group.stream(), lines),
            TokenTree::Ident(ident) if ident == "unsafe" => lines.push(ident.span().start().line),
            _ => {}
        }
    }
}

/// Dependencies with neither a comment on the line above nor one on their own line. Crates of this workspace and
/// `workspace = true` (explained where the workspace declares them) need none.
fn unexplained_dependencies(path: &str, text: &str) -> Vec<String> {
    let mut offences = Vec::new();
    let (mut in_dependencies, mut previous) = (false, "");
    for (number, line) in text.lines().enumerate() {
        if line.starts_with('[') {
            in_dependencies = line.trim_end_matches(']').ends_with("dependencies");
        } else if in_dependencies && line.starts_with(|c: char| c.is_ascii_alphabetic()) {
            let own = line.starts_with("brodo-") || line.contains("workspace = true");
            if !own && !previous.starts_with('#') && !line.contains('#') {
                offences.push(format!("{path}:{}: say why in a comment: {line}", number + 1));
            }
        }
        previous = line;
    }
    offences
}

fn each_rust_file(rule: impl Fn(&str, &str) -> Vec<String>) -> Vec<String> {
    rust_files().iter().flat_map(|(path, text)| rule(path, text)).collect()
}

fn rust_files() -> Vec<(String, String)> {
    files(&|path| path.extension().is_some_and(|extension| extension == "rs"))
}

/// Path from the workspace's root, and text, of every file that is wanted; never nothing.
fn files(wanted: &dyn Fn(&Path) -> bool) -> Vec<(String, String)> {
    let root =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("workspace root");
    let mut found = Vec::new();
    walk(&root, &root, wanted, &mut found);
    assert!(!found.is_empty(), "no files under {}", root.display());
    found
}

fn walk(root: &Path, folder: &Path, wanted: &dyn Fn(&Path) -> bool, found: &mut Vec<(String, String)>) {
    let mut entries: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap_or_else(|e| panic!("{}: {e}", folder.display()))
        .map(|entry| entry.expect("directory entry").path())
        .collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let kind = path.symlink_metadata().unwrap_or_else(|e| panic!("{}: {e}", path.display())).file_type();
        if kind.is_dir() && name != "target" && !name.starts_with('.') {
            walk(root, &path, wanted, found);
        } else if kind.is_file() && wanted(&path) {
            let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            let path = path.strip_prefix(root).expect("inside the workspace").to_string_lossy().into_owned();
            found.push((path, text));
        }
    }
}

#[track_caller]
fn assert_none(offences: &[String]) {
    assert!(offences.is_empty(), "{} offences:\n{}", offences.len(), offences.join("\n"));
}
