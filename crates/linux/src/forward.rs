//! Ports published in either direction: forward declarations for the grammar.
pub mod spec;
