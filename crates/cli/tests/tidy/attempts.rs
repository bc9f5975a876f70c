//! The guide's table of bypass attempts, made of the tests: the documentation of a test `attempt_N...` is a
//! row of the table. Every number is that of a test, and every row is in the table.
//!
//! `BRODO_BLESS=1` writes the table anew.

use crate::files;
use std::collections::BTreeSet;

const PAGE: &str = "docs/src/policy.md";
/// Heading of the table.
const HEADING: &str = "| | Attempt | Outcome |\n|---|---|---|\n";
/// Begins the names of the tests.
const PREFIX: &str = "fn attempt_";

/// Numbers in a name such as `20_to_23_other_names`, `1_and_2_names`, or a row's `20 to 23`, `1, 2`.
fn numbers(text: &str) -> Vec<u32> {
    // Of a row the first cell.
    let text = text.trim_start_matches("| ").split(" |").next().unwrap_or_default();
    let words = text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let mut found: Vec<u32> = Vec::new();
    let mut is_range = false;
    for word in words {
        match (word.parse(), word) {
            (Ok(last), _) if is_range => found.extend(found.last().map_or(0, |first| first + 1)..=last),
            (Ok(number), _) => found.push(number),
            (Err(_), "to" | "and") => {}
            (Err(_), _) => break,
        }
        is_range = word == "to";
    }
    found
}

/// The attempts of one file: numbers of its tests, and rows.
fn attempts(text: &str) -> (BTreeSet<u32>, Vec<String>) {
    let (mut tested, mut rows, mut above) = (BTreeSet::new(), Vec::new(), Vec::new());
    let mut is_test = false;
    for line in text.lines().map(str::trim_start) {
        if let Some(comment) = line.strip_prefix("/// ") {
            above.push(comment);
        } else if line.starts_with("#[") {
            is_test |= line == "#[test]";
        } else {
            if let Some(name) = line.strip_prefix(PREFIX).filter(|_| is_test) {
                tested.extend(numbers(name));
                rows.extend(above.first().filter(|first| first.starts_with('|')).map(|_| above.join(" ")));
            }
            above.clear();
            is_test = false;
        }
    }
    (tested, rows)
}

#[test]
fn the_table_of_bypass_attempts_is_that_of_the_tests() {
    let (mut tested, mut rows) = (BTreeSet::new(), Vec::new());
    for file in files::rust().filter(|file| file.text.contains(PREFIX)) {
        let (numbers, found) = attempts(&file.text);
        tested.extend(numbers);
        rows.extend(found);
    }
    rows.sort_by_key(|row| numbers(row));
    let listed: Vec<u32> = rows.iter().flat_map(|row| numbers(row)).collect();
    let all: BTreeSet<u32> = listed.iter().copied().collect();
    assert_eq!(all.len(), listed.len(), "a number has two rows: {listed:?}");
    assert_eq!(all, tested, "rows, and numbers of tests");
    assert_eq!(all.first().zip(all.last()), Some((&1, &(all.len() as u32))), "a number is missing: {all:?}");
    let page = files::with_extension("md").find(|file| file.path == PAGE).expect("the page");
    let (before, table) = page.text.split_once(HEADING).expect("the table");
    let (_, after) = table.split_once("\n\n").unwrap_or((table, ""));
    let made = rows.join("\n") + "\n";
    let wanted = format!("{before}{HEADING}{made}{}{after}", if after.is_empty() { "" } else { "\n" });
    if std::env::var_os("BRODO_BLESS").is_some() {
        std::fs::write(files::root().join(PAGE), wanted).expect("the page can be written");
    } else {
        assert!(page.text == wanted, "{PAGE} has another table: BRODO_BLESS=1 writes it anew\n{made}");
    }
}

#[test]
fn numbers_are_read_from_names_and_rows() {
    assert_eq!(numbers("20_to_23_other_names"), [20, 21, 22, 23]);
    assert_eq!(numbers("1_and_2_a_name_3"), [1, 2]);
    assert_eq!(numbers("| 8, 9 | resolvers | refused |"), [8, 9]);
    let text =
        "/// | 3 | one |\n/// two |\n#[test]\nfn attempt_3_x() {}\n\n/// | 4 | no test |\nfn attempt_4() {}";
    assert_eq!(attempts(text), (BTreeSet::from([3]), vec!["| 3 | one | two |".to_owned()]));
}
