//! A small document in both forms, byte for byte, and well-formed pages.

use super::*;
use brodo_plot::bars::{Bar, Group};

fn document() -> Document {
    let mut table = Table::new("Rates, Gbit/s", ["workload", "a|b", "`c`"]);
    table.row(["up1", "1.00 (0.90–1.10)"]);
    let bar = Bar { name: "a".into(), value: 1.0, range: (0.9, 1.1), text: "1.00 Gbit/s".into() };
    let group = Group { name: "up1".into(), bars: vec![bar] };
    Document {
        title: "Rates & more".into(),
        blocks: vec![
            Block::Heading(2, "Part <1>".into()),
            Block::Warning("Load.".into()),
            Block::Bars(Bars { title: "Rates".into(), groups: vec![group] }),
            Block::Table(table),
            Block::Text("Measured with `x < y`.".into()),
        ],
    }
}

#[test]
fn markdown_has_everything_but_the_pictures() {
    let expected = "# Rates & more\n\n## Part <1>\n\n**Load.**\n\nRates, Gbit/s:\n\n| workload | a\\|b | `c` |\n|---|---|---|\n\
                    | up1 | 1.00 (0.90–1.10) |  |\n\nMeasured with `x < y`.\n";
    assert_eq!(document().markdown(), expected);
}

#[test]
fn a_page_is_well_formed_and_refers_to_nothing() {
    let html = document().html();
    assert_eq!(crate::smoke::malformed_html(&html), None, "{html}");
    for part in [
        "<h1>Rates &amp; more</h1>",
        "<h2>Part &lt;1&gt;</h2>",
        "<code>x &lt; y</code>",
        "<th scope=\"row\">up1</th><td>1.00 (0.90–1.10)</td><td></td>",
        "<title>Rates</title>\n<desc>up1: a 1.00 Gbit/s.</desc>",
    ] {
        assert!(html.contains(part), "{part} is not in\n{html}");
    }
    assert!(!html.contains("<script") && !html.contains("src="));
}

#[test]
fn numbers_have_the_digits_that_count() {
    let numbers = [0.0, 0.01, 0.5, 7.0, 12.34, 99.96, 1234.5];
    assert_eq!(numbers.map(number), ["0", "0.010", "0.50", "7", "12.3", "100.0", "1234"]);
}

#[test]
fn a_spread_has_the_middle_of_its_values() {
    let of = |values: &[f64]| Spread::of(values.iter().copied()).map(|spread| spread.median);
    assert_eq!(of(&[]), None);
    assert_eq!(of(&[3.0, 1.0, 2.0]), Some(2.0));
    assert_eq!(of(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
}
