//! A fork right behind the end of a thread: it is none beside a thread.
//!
//! A program of its own, because a fork needs a process with one thread.

use brodo_sandbox::{Forked, end_with, fork};
use rustix::process::{WaitOptions, waitpid};
use std::thread;

/// A third of the forks found a thread that had been joined, before they waited for its end.
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
