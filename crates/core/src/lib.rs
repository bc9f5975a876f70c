//! brodo-core: a TCP/IP stack that turns layer-2 frames of a guest into operations on host sockets.
//!
//! Sans-IO: nothing in this crate performs I/O, reads a clock or draws entropy. A driver hands in frames,
//! socket events and the time; the stack calls out through three traits only, [`link::Link`] toward the
//! guest, [`host::Host`] toward the host's sockets and [`trace::Observer`] ([`stack::Platform`] names the
//! three), so that payload travels straight from the frame to the socket and back with no queue between. The
//! same code therefore runs on real descriptors (`brodo-net`) and in virtual time (`brodo-sim`).
//!
//! Data from the guest or the network is never an error: an unusable packet is dropped with a counted
//! [`counters::DropReason`].
#![forbid(unsafe_code)]

mod across_workers;
/// Atomic integers of [`memory::budget`] under a name of the crate's own, which its model tests replace by
/// those of a model checker.
mod atomic {
    pub(crate) use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
}
pub mod carried;
pub mod cidr;
pub mod config;
mod connection;
mod context;
pub mod counters;
mod datagram;
mod destination;
mod dns;
mod dns_service;
mod egress;
pub mod flow;
mod flow_kind;
pub mod fragments;
mod gate;
pub mod host;
mod icmp;
mod inbox;
mod ingress;
pub mod journal;
pub mod key;
pub mod left_out;
pub mod link;
pub mod memory;
pub mod metric;
pub mod policy;
pub mod port_range;
pub mod promotion;
pub mod rate;
mod schedule;
pub mod services;
pub mod snapshot;
pub mod stack;
mod standing_queue;
pub mod tcp;
pub mod time;
pub mod timer;
pub mod trace;
mod tx_queue;
mod upstream;
pub mod wire;
