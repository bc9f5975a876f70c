//! Lengths of files and functions. A function or file over the limit may be listed in [`RATCHET`] with its
//! present length, and from then on it may only shrink; an entry that has become too generous is itself an
//! offence, so the list never hides growth.

use crate::{assert_none, files};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// Lines of one function, from its signature to its closing brace.
const FUNCTION_LINES_MAX: usize = 100;
/// Lines of one file.
const FILE_LINES_MAX: usize = 800;

/// Files and functions over the limit: path (`path` for a file, `path::function` for a function) and lines
/// today. Entries are removed or lowered, never raised or added without a reason in the commit.
const RATCHET: &[(&str, usize)] = &[];

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

pub(crate) fn parse(path: &str, text: &str) -> syn::File {
    syn::parse_file(text).unwrap_or_else(|e| panic!("{path}: {e}"))
}

#[test]
fn files_and_functions_are_short() {
    let mut long = Vec::new();
    for file in files::rust() {
        let lines = file.text.lines().count();
        if lines > FILE_LINES_MAX {
            long.push((file.path.clone(), lines));
        }
        Functions { path: &file.path, long: &mut long }.visit_file(&parse(&file.path, &file.text));
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
fn notices_long_functions() {
    let text = format!(
        "impl S {{\n fn long() {{\n{}}}\n fn short() {{}}\n}}\n",
        "  f();\n".repeat(FUNCTION_LINES_MAX)
    );
    let mut long = Vec::new();
    Functions { path: "a.rs", long: &mut long }.visit_file(&parse("a.rs", &text));
    assert_eq!(long, [("a.rs::long".to_owned(), FUNCTION_LINES_MAX + 2)]);
}
