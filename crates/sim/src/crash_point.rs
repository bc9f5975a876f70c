//! Points at which a simulated process may end: the count to the next crash, and the unwinding from there.
//!
//! The count is the thread's, because host and link, which have the points, do not know of each other.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

thread_local! {
    /// Points left to the crash of this thread's stack; none: it does not crash.
    static LEFT: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Payload of the unwinding.
struct Crash;

/// A point at which the process may end.
pub(crate) fn point() {
    match LEFT.get() {
        Some(0) => {
            LEFT.set(None);
            resume_unwind(Box::new(Crash));
        }
        Some(left) => LEFT.set(Some(left - 1)),
        None => {}
    }
}

/// Makes a call without points: what the kernel does in one.
pub(crate) fn none_in<T>(call: impl FnOnce() -> T) -> T {
    let left = LEFT.replace(None);
    let result = call();
    LEFT.set(left);
    result
}

/// Makes a call that crashes after so many points. Gives whether it has, and the points left.
pub(crate) fn run(left: Option<u64>, call: impl FnOnce()) -> (bool, Option<u64>) {
    LEFT.set(left);
    let outcome = catch_unwind(AssertUnwindSafe(call));
    let left = LEFT.replace(None);
    match outcome {
        Ok(()) => (false, left),
        Err(panic) if panic.is::<Crash>() => (true, None),
        Err(panic) => resume_unwind(panic),
    }
}
