//! Vocabulary: words and names that hide a term of the field, each with the term in its place, and names of
//! types with one meaning in the workspace.
//!
//! *Words* are banned in comments, pages and identifiers. A person is never the subject of a network program,
//! and hearsay ("the guest is told") hides the message sent. *Type names* that once had several meanings are
//! defined at most once; `GLOSSARY.md` has the meaning of each.

use crate::comments::{self, Paragraph};
use crate::files::{self, File};
use crate::ratchet;
use proc_macro2::{TokenStream, TokenTree};

/// Words banned in prose and as parts of identifiers, and the terms for them.
const BANNED: &[(&str, &str)] = &[
    ("bell", "waker"),
    ("crew", "workers"),
    ("habit", "promptness"),
    ("heard", "received, arrived"),
    ("promised", "reserved"),
    ("station", "MAC address"),
    ("stranger", "unauthorized client"),
    ("told", "reported, advertised, notified"),
    ("usefulness", "eviction class"),
    ("whoever", "the party by its name"),
    ("whomever", "the party by its name"),
];

/// Words banned in prose alone.
const BANNED_IN_PROSE: &[(&str, &str)] = &[
    ("anybody", "the party by its name"),
    ("anyone", "the party by its name"),
    ("everybody", "the parties by their name"),
    ("everyone", "the parties by their name"),
    ("nobody", "no and the party; the user is `nobody`"),
    ("somebody", "the party by its name"),
    ("someone", "the party by its name"),
];

/// Names of types that are defined once.
const DEFINED_ONCE: &[&str] = &["Call", "Direction", "Packet", "Peer", "Place"];

/// The rules themselves name what they ban.
const RULES: &str = "crates/cli/tests/tidy/";

fn lookup(word: &str, lists: &[&[(&'static str, &'static str)]]) -> Option<(&'static str, &'static str)> {
    lists.iter().flat_map(|list| list.iter()).copied().find(|(banned, _)| *banned == word)
}

/// Text without its code spans.
fn without_code(text: &str) -> String {
    text.split('`').step_by(2).collect::<Vec<_>>().join(" ")
}

fn banned_in_prose(path: &str, paragraphs: &[Paragraph]) -> Vec<String> {
    let mut found = Vec::new();
    for paragraph in paragraphs {
        let text = without_code(&paragraph.text).to_lowercase();
        let words = text.split(|c: char| !c.is_alphanumeric());
        let banned = words.filter_map(|word| lookup(word, &[BANNED, BANNED_IN_PROSE]));
        found.extend(banned.map(|(word, term)| format!("{path}:{}: \"{word}\": say {term}", paragraph.line)));
    }
    found
}

/// The words of an identifier in snake or camel case, in lower case.
fn parts(identifier: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    let mut begins = true;
    let mut was_lower = false;
    for c in identifier.chars() {
        if c == '_' {
            begins = true;
            continue;
        }
        if begins || (c.is_uppercase() && was_lower) {
            parts.push(String::new());
        }
        (begins, was_lower) = (false, c.is_lowercase());
        if let Some(last) = parts.last_mut() {
            last.extend(c.to_lowercase());
        }
    }
    parts
}

fn banned_names(path: &str, tokens: TokenStream, found: &mut Vec<String>) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => banned_names(path, group.stream(), found),
            TokenTree::Ident(identifier) => {
                let (name, line) = (identifier.to_string(), identifier.span().start().line);
                let banned = parts(&name).into_iter().filter_map(|part| lookup(&part, &[BANNED]));
                found.extend(banned.map(|(_, term)| format!("{path}:{line}: {name}: say {term}")));
            }
            _ => {}
        }
    }
}

/// Definitions of types of one of the names that are defined once.
fn definitions(path: &str, tokens: TokenStream, found: &mut Vec<(String, String)>) {
    let mut keyword = false;
    for token in tokens {
        match token {
            TokenTree::Group(group) => {
                keyword = false;
                definitions(path, group.stream(), found);
            }
            TokenTree::Ident(identifier) => {
                let name = identifier.to_string();
                if keyword && DEFINED_ONCE.contains(&name.as_str()) {
                    found.push((name.clone(), format!("{path}:{}", identifier.span().start().line)));
                }
                keyword = ["struct", "enum", "union", "trait", "type"].contains(&name.as_str());
            }
            _ => keyword = false,
        }
    }
}

fn tokens(file: &File) -> TokenStream {
    file.text.parse().unwrap_or_else(|e| panic!("{}: {e}", file.path))
}

#[test]
fn prose_has_the_terms_of_the_field() {
    let mut found = Vec::new();
    for file in files::rust().filter(|file| !file.path.starts_with(RULES)) {
        found.extend(banned_in_prose(&file.path, &comments::paragraphs(&file.path, &file.text)));
    }
    for file in files::with_extension("md") {
        let lines: Vec<_> = file.text.lines().enumerate().map(|(n, line)| (n + 1, line)).collect();
        found.extend(banned_in_prose(&file.path, &comments::prose(&lines)));
    }
    ratchet::hold("words of prose", &found);
}

#[test]
fn names_have_the_terms_of_the_field() {
    let mut found = Vec::new();
    for file in files::rust().filter(|file| !file.path.starts_with(RULES)) {
        banned_names(&file.path, tokens(file), &mut found);
    }
    ratchet::hold("words of names", &found);
}

#[test]
fn names_of_types_have_one_meaning() {
    let mut found = Vec::new();
    for file in files::rust() {
        definitions(&file.path, tokens(file), &mut found);
    }
    let several = DEFINED_ONCE.iter().flat_map(|name| {
        let places: Vec<_> = found.iter().filter(|(found, _)| found == name).collect();
        places.into_iter().skip(1).map(move |(_, place)| format!("{place}: a further {name}"))
    });
    ratchet::hold("types of one name", &several.collect::<Vec<_>>());
}

#[test]
fn notices_words_and_names() {
    let prose = |text| banned_in_prose("a.rs", &comments::paragraphs("a.rs", text)).len();
    assert_eq!(prose("// The guest is told, whoever asks.\n"), 2);
    assert_eq!(prose("// Runs as the user `nobody`; a workstation.\n"), 0);
    let names = |text: &str| {
        let mut found = Vec::new();
        banned_names("a.rs", text.parse().expect("Rust"), &mut found);
        found.len()
    };
    assert_eq!(names("fn f(told_ack: u32) { let LastHeard = told; }"), 3);
    assert_eq!(names("fn hold(stationary: Doorbell) {}"), 0);
    let mut found = Vec::new();
    definitions(
        "a.rs",
        "mod m { struct Place; fn f(Place: u8) {} } enum Place {}".parse().expect("Rust"),
        &mut found,
    );
    assert_eq!(found.len(), 2);
}
