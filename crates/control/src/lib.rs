//! brodo-control: the control protocol of a running brodo, and a client.
//!
//! A running brodo listens on a Unix socket ([`instance`] says where). Each line from a client is one request
//! of JSON-RPC 2.0, each line from the instance a reply or an event ([`rpc`]). Every method is a type that
//! names its parameters and its result ([`method`]); flows are in [`flow`], events in [`event`].
//! [`client::Client`] is a blocking client for all of it.
//!
//! The protocol has a number, [`rpc::PROTOCOL`]. It changes when a field, method or event is removed or
//! changes its meaning. Added ones leave it as it is, so a client ignores those that it does not know; sets
//! that may grow (states, causes, limiting factors) are strings for the same reason.
//!
//! No dependency on the stack or the program: a client needs this crate only.

pub mod client;
pub mod event;
pub mod flow;
pub mod instance;
pub mod method;
pub mod policy;
pub mod rpc;
