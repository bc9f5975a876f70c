//! brodo-control: the control protocol of a running brodo, and a client.
//!
//! A running brodo listens on a Unix socket ([`instance`] says where). Each line that is sent there is one
//! request of JSON-RPC 2.0, and each line that comes back is a reply or an event ([`rpc`]). Every method is a
//! type that names its parameters and its result ([`method`]); flows are in [`flow`], events in [`event`].
//! [`client::Client`] is a blocking client for all of it.
//!
//! The protocol has a number, [`rpc::PROTOCOL`]. It changes when something that was is no more or means
//! something else; fields, methods and events that are added leave it alone, so a client ignores what it does
//! not know. Words that more may be added to (states, causes, what limits) are therefore strings here.
//!
//! This crate knows nothing of the stack: it may be used by programs that have nothing else to do with brodo.

pub mod client;
pub mod event;
pub mod flow;
pub mod instance;
pub mod method;
pub mod rpc;
