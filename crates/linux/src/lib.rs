//! brodo-linux: everything that owns a descriptor.
//!
//! Links toward a guest ([`link`]), the host's sockets ([`sockets`]), the loop that drives a stack with both
//! ([`driver`]), and what goes with them: time, packet capture, the host's resolvers. All `unsafe` of the
//! program is in this crate, and for the data path in [`sys`] alone.

pub mod capture;
pub mod clock;
pub mod driver;
pub mod link;
pub mod resolv;
pub mod sockets;
pub mod sys;
#[cfg(test)]
mod testns;
