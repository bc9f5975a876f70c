//! Wire formats. Each file is one protocol: a plain header struct in which illegal states cannot be written, `parse`
//! that gives the header and what follows it (or the [`crate::counters::DropReason`]), and `emit` into a buffer the
//! caller has made big enough. No parser allocates, and none trusts a length it has not compared with the bytes
//! that are there.

pub mod ethernet;
