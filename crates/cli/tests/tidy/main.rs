//! Tidiness as a test: the rules of the house that no compiler checks.
//!
//! Each rule reads the Rust files, and where it concerns them the manifests and pages, of the whole workspace
//! and reports every offence at once, with file and line. A rule that does not hold yet is a *ratchet*
//! ([`ratchet`]): the number of its offences is written down and may only fall. Each rule has a `notices`
//! test, which shows that it can fail.

mod attempts;
mod comments;
mod files;
mod manifests;
mod modules;
mod parameters;
mod phrases;
mod ratchet;
mod size;
mod unsafe_code;
mod vocabulary;

/// Fails with all offences, if there are any.
#[track_caller]
fn assert_none(offences: &[String]) {
    assert!(offences.is_empty(), "{} offences:\n{}", offences.len(), offences.join("\n"));
}
