//! brodo-netns: network namespaces for a guest.
//!
//! [`namespace`] makes a fresh one or enters one that exists, [`setup`] gives it an interface, [`process`]
//! runs a command in it, and [`broker_process`] starts the process that opens sockets in it for forwarded
//! ports. [`promotion`] makes a namespace beside it for bulk flows, with the process that serves them.
//! `unsafe` stands in `process/raw.rs` alone.

pub mod broker_process;
mod handoff;
pub mod namespace;
pub mod process;
pub mod promotion;
pub mod setup;
