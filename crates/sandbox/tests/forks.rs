//! Forks right behind the end of a thread that was joined succeed.
//!
//! A program of its own, because a fork needs a process with one thread.

use brodo_sandbox::{Forked, end_with, fork};
use rustix::process::{WaitOptions, waitpid};
use std::thread;

/// Number of forks; a third of them find the thread still there, and wait for it.
const FORKS: usize = 200;

fn main() {
    for _ in 0..FORKS {
        thread::spawn(|| ()).join().expect("no panic");
        match fork().expect("the only thread") {
            Forked::Child => end_with(|| 0),
            Forked::Parent(child) => {
                let ended = waitpid(Some(child), WaitOptions::empty()).expect("a child");
                assert_eq!(ended.and_then(|(_, status)| status.exit_status()), Some(0));
            }
        }
    }
}
