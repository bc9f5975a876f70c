//! Comments of Rust files as text: which lines are comments, and their paragraphs. A rule about prose gets
//! sentences, not lines.
//!
//! Where code ends is taken from the tokens, so that `//` within a string is no comment. Code fences,
//! headings and tables of a documentation comment are not prose. Headings and cells of pages are texts of
//! their own ([`headings_and_cells`]), as are comments behind `#` in scripts and manifests ([`of_script`]).

use proc_macro2::{TokenStream, TokenTree};

/// A paragraph or list item of a comment, its lines joined by spaces.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Paragraph {
    /// Line of the file on which it begins, from 1.
    pub(crate) line: usize,
    pub(crate) text: String,
    /// The comment has nothing else.
    pub(crate) alone: bool,
}

/// A line of comment: its number, its kind (`//`, `///`, `//!`; empty for a comment behind code) and its
/// text.
struct Line<'a> {
    number: usize,
    kind: &'static str,
    text: &'a str,
}

/// Column at which the code of each line ends, in characters, and whether a literal goes on behind the line's
/// end.
fn code_ends(tokens: TokenStream, ends: &mut [(usize, bool)]) {
    for token in tokens {
        let (start, end) = (token.span().start(), token.span().end());
        match token {
            // A documentation comment is a token too.
            TokenTree::Group(group) if group.stream().to_string().starts_with("doc =") => {}
            TokenTree::Group(group) => {
                for place in [group.span_open().end(), group.span_close().end()] {
                    ends[place.line - 1].0 = ends[place.line - 1].0.max(place.column);
                }
                code_ends(group.stream(), ends);
            }
            TokenTree::Punct(punct) if punct.as_char() == '#' || punct.as_char() == '!' => {}
            _ => {
                for line in &mut ends[start.line - 1..end.line - 1] {
                    *line = (usize::MAX, true);
                }
                ends[end.line - 1].0 = ends[end.line - 1].0.max(end.column);
            }
        }
    }
}

fn lines<'a>(path: &str, text: &'a str) -> Vec<Line<'a>> {
    let mut ends = vec![(0, false); text.lines().count() + 1];
    code_ends(text.parse().unwrap_or_else(|e| panic!("{path}: {e}")), &mut ends);
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let (end, literal) = ends[index];
        if literal {
            continue;
        }
        let behind: usize = line.chars().take(end).map(char::len_utf8).sum();
        let Some(comment) = line[behind..].trim_start().strip_prefix("//") else { continue };
        let (kind, text) = match comment.chars().next() {
            Some('/') => ("///", &comment[1..]),
            Some('!') => ("//!", &comment[1..]),
            _ => ("//", comment),
        };
        found.push(Line { number: index + 1, kind: if end == 0 { kind } else { "" }, text });
    }
    found
}

/// Numbers of the lines that are or contain comments.
pub(crate) fn line_numbers(path: &str, text: &str) -> Vec<usize> {
    lines(path, text).iter().map(|line| line.number).collect()
}

/// All paragraphs of all comments.
pub(crate) fn paragraphs(path: &str, text: &str) -> Vec<Paragraph> {
    let mut found = Vec::new();
    let lines = lines(path, text);
    let joined = |a: &Line, b: &Line| a.number + 1 == b.number && a.kind == b.kind && !a.kind.is_empty();
    for comment in lines.chunk_by(joined) {
        let lines: Vec<_> = comment.iter().map(|line| (line.number, line.text)).collect();
        let mut of_comment = prose(&lines);
        if let [only] = of_comment.as_mut_slice() {
            only.alone = true;
        }
        found.append(&mut of_comment);
    }
    found
}

/// Paragraphs and list items of Markdown, without code, headings and tables.
pub(crate) fn prose(lines: &[(usize, &str)]) -> Vec<Paragraph> {
    let mut found: Vec<Paragraph> = Vec::new();
    let (mut open, mut fenced) = (false, false);
    for &(number, line) in lines {
        let text = line.trim();
        let fence = text.starts_with("```");
        fenced ^= fence;
        let apart = fence
            || fenced
            || text.is_empty()
            || text.starts_with(['#', '|', '<'])
            || line.starts_with("     ");
        if apart {
            open = false;
            continue;
        }
        let item = ["* ", "- "].iter().find_map(|mark| text.strip_prefix(mark)).or_else(|| numbered(text));
        match found.last_mut() {
            Some(last) if open && item.is_none() => {
                last.text.push(' ');
                last.text.push_str(text);
            }
            _ => found.push(Paragraph { line: number, text: item.unwrap_or(text).to_owned(), alone: false }),
        }
        open = true;
    }
    found
}

/// Headings of Markdown, and cells of its tables, without those of code.
pub(crate) fn headings_and_cells(lines: &[(usize, &str)]) -> Vec<Paragraph> {
    let mut found = Vec::new();
    let mut fenced = false;
    for &(line, text) in lines {
        fenced ^= text.trim().starts_with("```");
        if fenced {
            continue;
        }
        // A bar within a cell.
        let row = text.replace("\\|", " ");
        let texts: Vec<&str> = if row.starts_with('#') {
            vec![row.trim_start_matches('#')]
        } else if row.starts_with('|') {
            row.split('|').collect()
        } else {
            Vec::new()
        };
        let texts = texts.into_iter().map(str::trim).filter(|text| !text.is_empty());
        found.extend(texts.map(|text| Paragraph { line, text: text.to_owned(), alone: false }));
    }
    found
}

/// Paragraphs of the comments behind `#` that have lines of their own, in a script, manifest or unit.
pub(crate) fn of_script(text: &str) -> Vec<Paragraph> {
    let comments: Vec<(usize, &str)> = text
        .lines()
        .enumerate()
        .filter_map(|(index, line)| Some((index + 1, line.trim_start().strip_prefix('#')?)))
        .filter(|(_, comment)| !comment.starts_with('!'))
        .collect();
    comments.chunk_by(|a, b| a.0 + 1 == b.0).flat_map(prose).collect()
}

/// The text of an item `1. text`.
fn numbered(text: &str) -> Option<&str> {
    let (number, rest) = text.split_once(". ")?;
    (!number.is_empty() && number.chars().all(|c| c.is_ascii_digit())).then_some(rest)
}

#[test]
fn notices_comments_and_only_those() {
    let text = "//! Opening,\n//! two lines.\n\nfn f() {\n    let s = \"// none\n// none\";\n    g(); // Behind.\n    // First.\n    \
                //\n    // * item\n    //   goes on\n}\n";
    let found = paragraphs("a.rs", text);
    let expected = [
        (1, "Opening, two lines.", true),
        (7, "Behind.", true),
        (8, "First.", false),
        (10, "item goes on", false),
    ];
    let found: Vec<_> = found.iter().map(|p| (p.line, p.text.as_str(), p.alone)).collect();
    assert_eq!(found, expected);
    assert_eq!(line_numbers("a.rs", text), [1, 2, 7, 8, 9, 10, 11]);
}

#[test]
fn notices_headings_cells_and_comments_of_scripts() {
    let page = "# Title\n\n```\n# a shell\n| pipe |\n```\n\n| Key | `a\\|b` set |\n|---|---|\nProse | more\n";
    let lines: Vec<_> = page.lines().enumerate().map(|(n, line)| (n + 1, line)).collect();
    let texts = |found: Vec<Paragraph>| found.into_iter().map(|p| (p.line, p.text)).collect::<Vec<_>>();
    let expected = [(1, "Title"), (8, "Key"), (8, "`a b` set"), (9, "---"), (9, "---")];
    assert_eq!(texts(headings_and_cells(&lines)), expected.map(|(n, text)| (n, text.to_owned())));
    let script = "#!/bin/sh\n# Opening,\n# two lines.\nrun # behind\n    # Within.\nkey = \"# none\"\n";
    let expected = [(2, "Opening, two lines."), (5, "Within.")];
    assert_eq!(texts(of_script(script)), expected.map(|(n, text)| (n, text.to_owned())));
}
