//! Parameters have names: a function that takes a tuple apart in its signature has one parameter that is not
//! named at its call. Closures and tests may.

use crate::size::parse;
use crate::{assert_none, files};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// Collects functions with a tuple as the pattern of a parameter.
struct Signatures<'a> {
    path: &'a str,
    offences: &'a mut Vec<String>,
}

impl<'ast> Visit<'ast> for Signatures<'_> {
    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        for input in &signature.inputs {
            if let syn::FnArg::Typed(typed) = input
                && matches!(*typed.pat, syn::Pat::Tuple(_))
            {
                let line = typed.span().start().line;
                self.offences.push(format!("{}:{line}: {}: name the parameters", self.path, signature.ident));
            }
        }
        visit::visit_signature(self, signature);
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if module.ident != "tests" {
            visit::visit_item_mod(self, module);
        }
    }
}

#[test]
fn parameters_have_names() {
    let mut offences = Vec::new();
    for file in files::rust().filter(|file| !file.path.contains("tests")) {
        let mut signatures = Signatures { path: &file.path, offences: &mut offences };
        signatures.visit_file(&parse(&file.path, &file.text));
    }
    assert_none(&offences);
}

#[test]
fn notices_tuples() {
    let text = "fn a((b, c): (u8, u8)) {}\nmod tests { fn d((e, f): (u8, u8)) {} }\nfn g(h: (u8, u8)) {}\n";
    let mut offences = Vec::new();
    Signatures { path: "a.rs", offences: &mut offences }.visit_file(&parse("a.rs", text));
    assert_eq!(offences, ["a.rs:1: a: name the parameters"]);
}
