//! How the program is linked.
//!
//! A tracer that listens to a probe has the kernel increment the probe's semaphore in every process that
//! starts, where it first sees that page of the file mapped for writing. Linkers like to let the last page of
//! one segment be the first of the next, and then the kernel increments a copy that is never read: the probe
//! stays silent. GNU ld ignores the option; it makes one writable segment of both.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-bins=-Wl,-z,separate-loadable-segments");
}
