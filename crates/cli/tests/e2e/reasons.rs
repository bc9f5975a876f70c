//! Reasons of failed tests, one line each, where the end of a log shows them.
//!
//! The text of a failure begins with its reason and goes on with pages of output: of the failed program, of
//! brodo, of every server. The reason therefore ends the text too, and the list of all reasons is the last
//! output of the run, after the result line of the test library.

use brodo_bench::process::Failure;
use std::any::Any;
use std::sync::Mutex;

/// Longest part of a reason, in characters: a command line with its options.
const PART_CHARS_MAX: usize = 300;

/// Test and reason, in order of failure.
static REASONS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Notes the reason of a failed test; the text of the failure, ending in that reason.
pub(crate) fn record(test: &str, failure: &Failure) -> String {
    let reason = reason(&failure.0);
    if let Ok(mut reasons) = REASONS.lock() {
        reasons.push(format!("{test}: {reason}"));
    }
    format!("{}\n--- reason\n{test}: {reason}", failure.0.trim_end())
}

/// Prints the reasons noted so far.
pub(crate) fn print() {
    let reasons = REASONS.lock().map(|reasons| reasons.clone()).unwrap_or_default();
    if !reasons.is_empty() {
        println!("reasons:\n    {}\n", reasons.join("\n    "));
    }
}

/// The failure that a panic is.
pub(crate) fn of_panic(panic: &(dyn Any + Send)) -> Failure {
    let message = panic.downcast_ref::<String>().map(String::as_str);
    let message = message.or_else(|| panic.downcast_ref::<&str>().copied());
    Failure(format!("panic: {}", message.unwrap_or("without a message")))
}

/// The first line of a failure, and the last two lines of the failed program's output (before that of the
/// bed): a program names its error there, some with a hint after it.
fn reason(failure: &str) -> String {
    let own = failure.split("\n--- ").next().unwrap_or_default();
    let lines: Vec<&str> = own.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let Some((first, rest)) = lines.split_first() else { return "no reason given".to_owned() };
    let shown = [first].into_iter().chain(&rest[rest.len().saturating_sub(2)..]);
    let parts: Vec<String> = shown.map(|line| line.chars().take(PART_CHARS_MAX).collect()).collect();
    parts.join(" | ")
}
