//! The page: a template, a style, a script, and the sums as JSON between them.

use super::summary::{Reached, Refused, Summary, Timeline};
use serde::Serialize;

const TEMPLATE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The data of a page.
#[derive(Serialize)]
struct Data<'a> {
    version: &'static str,
    files: &'a [String],
    #[serde(flatten)]
    timeline: Timeline,
    reached: &'a [Reached],
    refused: &'a [Refused],
    lost: u64,
    unreadable: u64,
    omitted: u64,
}

/// The page of a log.
pub(super) fn text(summary: &Summary, files: &[String]) -> String {
    let data = Data {
        version: env!("CARGO_PKG_VERSION"),
        files,
        timeline: summary.timeline(),
        reached: &summary.reached,
        refused: &summary.refused,
        lost: summary.lost,
        unreadable: summary.unreadable,
        omitted: summary.omitted,
    };
    // Infallible: string keys only. Without `<` nothing in it ends the element that it stands in.
    let data = serde_json::to_string(&data).unwrap_or_default().replace('<', "\\u003c");
    let parts = [("{{STYLE}}", STYLE), ("{{DATA}}", data.as_str()), ("{{SCRIPT}}", SCRIPT)];
    let (mut text, mut rest) = (String::with_capacity(TEMPLATE.len() + data.len()), TEMPLATE);
    for (mark, part) in parts {
        let (before, behind) = rest.split_once(mark).unwrap_or((rest, ""));
        text.push_str(before);
        text.push_str(part);
        rest = behind;
    }
    text + rest
}
