//! brodo-linux: everything that owns a descriptor.
//!
//! Links toward a guest ([`link`]), the host's sockets , the loop that drives a stack with both
//! (the driver), and what goes with them: time, packet capture, the host's resolvers. All `unsafe` of the
//! program is in this crate, and for the data path in [`sys`] alone.

pub mod link;
pub mod namespace;
pub mod netlink;
pub mod process;
pub mod setup;
pub mod sys;
#[cfg(test)]
mod testns;
