//! Parts of TCP that depend on no connection: rules and records with private fields, each a type of its own.
//!
//! They take numbers and times and give decisions. None sees the context of a call, the link or a socket, so
//! the context may own what all connections share ([`shared`]), and each is tested alone. The connection that
//! puts them together is [`crate::connection`].
//!
//! * The receiver's: advertised window and its updates (`window`), segments out of order (`reassembly`),
//!   delayed acknowledgements (`delayed_ack`, by `prompt_peers`).
//! * The sender's: what it knows of the host's stream (`host_stream`), sequence ranges in flight
//!   (`scoreboard`), loss detection (`rack`).
//! * Of both: the limit of each direction (`autosize`, by `rtt`), what limits it now ([`limiting_factor`]),
//!   initial sequence numbers (`isn`), details for observers ([`info`]).

pub(crate) mod autosize;
pub(crate) mod delayed_ack;
pub(crate) mod host_stream;
pub mod info;
pub(crate) mod isn;
pub mod limiting_factor;
pub(crate) mod prompt_peers;
pub(crate) mod rack;
pub(crate) mod reassembly;
pub(crate) mod rtt;
pub(crate) mod scoreboard;
pub(crate) mod shared;
pub(crate) mod window;

pub use crate::flow::state::State;
pub use autosize::{Cause, Direction};
