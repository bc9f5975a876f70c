//! The examples, each run to its end with its output checked.

use std::path::PathBuf;
use std::process::{Command, Output};

/// Directory of the built examples: cargo builds them beside the directory of this test.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("path of this test");
    test.ancestors().nth(2).expect("target directory").join("examples").join(name)
}

fn run(name: &str) -> String {
    let path = example(name);
    let Output { status, stdout, stderr } =
        Command::new(&path).output().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{name}: {status}\n{stdout}{stderr}");
    stdout.into_owned()
}

#[test]
fn embed_downloads_everything() {
    assert_eq!(run("embed"), format!("{} bytes through brodo\n", 64 << 20));
}

#[test]
fn embed_is_short() {
    let lines = include_str!("../examples/embed.rs").lines().count();
    assert!(lines <= 50, "{lines} lines: a VMM's author is promised 50");
}

#[test]
fn own_loop_downloads_everything_in_one_thread_and_sleeps() {
    let output = run("own_loop");
    assert!(output.starts_with(&format!("{} bytes in one thread, ", 16 << 20)), "{output}");
}

#[test]
fn vmm_downloads_everything_over_rings_and_sleeps() {
    let output = run("vmm");
    assert!(output.starts_with(&format!("{} bytes over the rings of a device, ", 16 << 20)), "{output}");
}

#[test]
fn observe_sees_both_flows_and_the_rule() {
    let output = run("observe");
    let (began, finished) = (output.matches("began ").count(), output.matches("finished ").count());
    let denied = output.lines().find(|line| line.starts_with("denied "));
    assert_eq!((began, finished), (1, 1), "{output}");
    assert!(denied.is_some_and(|line| line.contains("10.9.9.9:80 by the rule")), "{output}");
}
