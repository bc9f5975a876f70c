//! Words and width of comments, texts and pages.
//!
//! *Say it by its name*: a sentence begins with the noun phrase a network engineer would search for, not with
//! a relative clause about persons. No program knows good prose; this one knows the openers that are never
//! it, comments too short to say anything, and lines that are too long.

use crate::comments::{self, Paragraph};
use crate::{files, ratchet};
use proc_macro2::{TokenStream, TokenTree};

/// Columns of a line, of code and of comments. Pages in Markdown are exempt: a paragraph there may be one
/// line.
const COLUMNS_MAX: usize = 110;

/// First words of a sentence that hide its subject.
const BANNED_OPENERS: &[&str] = &[
    "anybody",
    "anyone",
    "everybody",
    "everyone",
    "how",
    "nobody",
    "somebody",
    "someone",
    "told",
    "what",
    "whatever",
    "whichever",
    "who",
    "whoever",
    "whom",
    "whose",
    "why",
];

/// Likewise, of two words and more.
const BANNED_PHRASES: &[&str] = &[
    "as above",
    "as below",
    "see above",
    "see below",
    "those that",
    "those which",
    "those who",
    "the one that",
    "the one who",
];

/// The first words of the sentences of `text`, in lower case and without marks; questions are left out.
fn openers(text: &str) -> impl Iterator<Item = String> {
    let ends = ['.', '?', '!'];
    let begins = text.match_indices(' ').filter_map(move |(at, _)| {
        let before = text[..at].trim_end_matches([')', '"', '*', '`']);
        before.ends_with(ends).then_some(at + 1)
    });
    let statements = std::iter::once(0).chain(begins).map(|at| &text[at..]).filter(move |sentence| {
        let end = sentence
            .match_indices(ends)
            .find(|(at, _)| !sentence[at + 1..].starts_with(char::is_alphanumeric));
        end.is_none_or(|(_, mark)| mark != "?")
    });
    statements.map(|sentence| {
        let words = sentence.split_whitespace().take(2);
        // In backquotes stands a name: the user `nobody`.
        let words = words.filter(|word| !word.starts_with('`'));
        let words = words.map(|word| word.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase());
        words.collect::<Vec<_>>().join(" ")
    })
}

/// The opener of a sentence of `text` that is banned, if any.
fn banned(text: &str) -> Option<String> {
    openers(text).find(|opener| is_banned(opener))
}

fn is_banned(opener: &str) -> bool {
    BANNED_OPENERS.contains(&opener.split(' ').next().unwrap_or_default()) || BANNED_PHRASES.contains(&opener)
}

fn banned_in(path: &str, paragraphs: &[Paragraph]) -> Vec<String> {
    let offence = |p: &Paragraph| {
        banned(&p.text)
            .map(|opener| format!("{path}:{}: \"{opener} ...\": name the thing: {}", p.line, p.text))
    };
    paragraphs.iter().filter_map(offence).collect()
}

/// Comments of one word, which say nothing that the name beside them does not.
fn one_word(path: &str, paragraphs: &[Paragraph]) -> Vec<String> {
    let short = paragraphs.iter().filter(|p| p.alone && !p.text.contains(' ') && p.text.ends_with('.'));
    short.map(|p| format!("{path}:{}: one word: {}", p.line, p.text)).collect()
}

/// Lines of comment that are too long, and lines of Rust that are so without a string at fault: rustfmt
/// breaks no strings.
fn too_wide(path: &str, text: &str) -> Vec<String> {
    let wide = |line: &str| line.chars().count() > COLUMNS_MAX;
    if !text.lines().any(wide) {
        return Vec::new();
    }
    let extension = path.rsplit_once('.').map(|(_, extension)| extension);
    let mark = if extension == Some("bt") { "//" } else { "#" };
    let is_rust = extension == Some("rs");
    let mut checked: Vec<bool> =
        text.lines().map(|line| is_rust || line.trim_start().starts_with(mark)).collect();
    if is_rust {
        texts(text.parse().unwrap_or_else(|e| panic!("{path}: {e}")), &mut |from, to, _| {
            checked[from - 1..to].fill(false);
        });
        for number in comments::line_numbers(path, text) {
            checked[number - 1] = true;
        }
    }
    let lines = text.lines().zip(checked).enumerate().filter(|(_, (line, checked))| *checked && wide(line));
    lines.map(|(n, (line, _))| format!("{path}:{}: {} columns", n + 1, line.chars().count())).collect()
}

/// Calls `visit` with the first and last line and the source of each string; documentation is none.
fn texts(tokens: TokenStream, visit: &mut dyn FnMut(usize, usize, &str)) {
    for token in tokens {
        match token {
            TokenTree::Group(group) if group.stream().to_string().starts_with("doc =") => {}
            TokenTree::Group(group) => texts(group.stream(), visit),
            TokenTree::Literal(literal) if literal.to_string().contains('"') => {
                let span = literal.span();
                visit(span.start().line, span.end().line, &literal.to_string());
            }
            _ => {}
        }
    }
}

/// Offences of a page: of its prose, its headings, and the cells of its tables that have more than two words
/// or are a banned phrase.
fn banned_in_page(path: &str, text: &str) -> Vec<String> {
    let lines: Vec<_> = text.lines().enumerate().map(|(n, line)| (n + 1, line)).collect();
    let mut paragraphs = comments::prose(&lines);
    let is_title = |p: &Paragraph| lines[p.line - 1].1.starts_with('#');
    let others = comments::headings_and_cells(&lines).into_iter();
    let is_phrase = |p: &Paragraph| BANNED_PHRASES.contains(&p.text.trim().to_lowercase().as_str());
    let is_long = |p: &Paragraph| p.text.split_whitespace().count() > 2;
    paragraphs.extend(others.filter(|p| is_title(p) || is_long(p) || is_phrase(p)));
    banned_in(path, &paragraphs)
}

/// Strings of more than two words that begin with a banned opener: errors, help, log lines.
fn banned_texts(path: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    texts(text.parse().unwrap_or_else(|e| panic!("{path}: {e}")), &mut |line, _, literal| {
        let begins = literal.trim_start_matches(|c: char| "br#\"".contains(c));
        let is_sentence = begins.starts_with(char::is_alphabetic) && begins.split_whitespace().count() > 2;
        if is_sentence && openers(begins).next().is_some_and(|first| is_banned(&first)) {
            found.push(format!("{path}:{line}: name the thing: {begins}"));
        }
    });
    found
}

#[test]
fn lines_are_at_most_110_columns_wide() {
    let files = files::all().iter().filter(|file| !file.has_extension("md"));
    ratchet::hold("width", &files.flat_map(|file| too_wide(&file.path, &file.text)).collect::<Vec<_>>());
}

#[test]
fn no_comment_is_one_word() {
    let found =
        files::rust().flat_map(|file| one_word(&file.path, &comments::paragraphs(&file.path, &file.text)));
    ratchet::hold("one-word comments", &found.collect::<Vec<_>>());
}

#[test]
fn comments_say_it_by_its_name() {
    let found =
        files::rust().flat_map(|file| banned_in(&file.path, &comments::paragraphs(&file.path, &file.text)));
    ratchet::hold("openers of comments", &found.collect::<Vec<_>>());
}

#[test]
fn texts_say_it_by_its_name() {
    let found = files::rust().flat_map(|file| banned_texts(&file.path, &file.text));
    ratchet::hold("openers of texts", &found.collect::<Vec<_>>());
}

#[test]
fn pages_say_it_by_its_name() {
    let found = files::with_extension("md").flat_map(|file| banned_in_page(&file.path, &file.text));
    ratchet::hold("openers of pages", &found.collect::<Vec<_>>());
}

#[test]
fn scripts_say_it_by_its_name() {
    let has_others = |file: &&files::File| ["rs", "md", "bt"].iter().any(|other| file.has_extension(other));
    let scripts = files::all().iter().filter(|file| !has_others(file));
    let found = scripts.flat_map(|file| banned_in(&file.path, &comments::of_script(&file.text)));
    ratchet::hold("openers of scripts", &found.collect::<Vec<_>>());
}

#[test]
fn notices_openers() {
    let paragraphs = |text| comments::paragraphs("a.rs", text);
    for bad in [
        "// Whoever waits stops.\n",
        "/// What is sent\n/// later.\n",
        "//! A queue. Nobody asks.\n",
        "//! * item\n//! * *those who* look\n",
        "fn f() {} // as above\n",
    ] {
        assert_eq!(banned_in("a.rs", &paragraphs(bad)).len(), 1, "{bad}");
    }
    for good in [
        "// Whole frames, and what they hold.\n",
        "// ```\n// what\n// ```\n",
        "const S: &str = \"// What a\";\n",
    ] {
        assert_eq!(banned_in("a.rs", &paragraphs(good)), [""; 0], "{good}");
    }
    assert_eq!(banned_texts("a.rs", "fn f() { g!(\"who asks for {x}\"); h(\"what\"); }\n").len(), 1);
}

#[test]
fn notices_openers_of_headings_cells_and_scripts() {
    for bad in [
        "## How it works\n",
        "# What\n",
        "| key | what is left out |\n",
        "| key | see above |\n",
        "Text.\n\n## Whose it is\n",
    ] {
        assert_eq!(banned_in_page("a.md", bad).len(), 1, "{bad}");
    }
    for good in ["## Why is it slow?\n", "| what | `how` |\n", "```\n# What a shell reads\n```\n"] {
        assert_eq!(banned_in_page("a.md", good), [""; 0], "{good}");
    }
    let script = |text| banned_in("run", &comments::of_script(text)).len();
    assert_eq!(script("#!/bin/sh\n# What CI runs.\nset -e\n    # Order. Whoever waits, stops.\n"), 2);
    assert_eq!(script("# The user `nobody`.\necho '# what'\n"), 0);
}

#[test]
fn notices_one_word_comments() {
    let found = |text| one_word("a.rs", &comments::paragraphs("a.rs", text)).len();
    assert_eq!(found("struct S {\n    /// Which.\n    which: u8,\n}\n"), 1);
    assert_eq!(found("struct S {\n    /// Bytes received.\n    received: u8,\n}\n"), 0);
}

#[test]
fn notices_wide_lines() {
    let wide = "x".repeat(COLUMNS_MAX);
    assert_eq!(too_wide("a.rs", &format!("// {wide}\nfn f() {{}}\n")), ["a.rs:1: 113 columns"]);
    assert_eq!(too_wide("a.rs", &format!("fn f() {{}} // {wide}\n")).len(), 1);
    assert_eq!(too_wide("a.rs", &format!("fn f{wide}() {{}}\n")).len(), 1);
    assert_eq!(too_wide("a.rs", &format!("const S: &str = \"{wide}\";\n")), [""; 0]);
    assert_eq!(too_wide("Cargo.toml", &format!("# {wide}\n")).len(), 1);
}
