//! Linking of the program: segments apart from each other in the file, for the trace probes.
//!
//! For an attached tracer the kernel increments a probe's semaphore in every process that starts, in the
//! first writable mapping of that page of the file. Linkers may let the last page of one segment be the first
//! of the next, and then the kernel increments a copy that is never read: the probe stays silent. GNU ld
//! ignores the option; it makes one writable segment of both.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-bins=-Wl,-z,separate-loadable-segments");
}
