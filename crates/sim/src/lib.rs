//! brodo-sim: the stack in virtual time, deterministic to the byte.
//!
//! The stack under test is the real one. Its environment is simulated: the guest's end of the link
//! ([`link::SimLink`]), the host's sockets and the peers behind them ([`host::SimHost`]), and time, which
//! advances only by the test's calls. [`driver::SimDriver`] makes the loop turns of a driver. Frames are
//! built and parsed without the stack's own code ([`packet`]), and every segment in every test passes the
//! rules of [`observer`].
//!
//! Three levels of test:
//!
//! - [`script::Script`]: one line per segment, for one rule at a time. A failure prints the observed segments
//!   in the   notation of the script ([`notation`]).
//! - [`world::World`]: whole transfers between an independent TCP ([`guest::Guest`], which is smoltcp) and
//!   programs behind host sockets, over paths with delay, rate, loss, duplication, reordering and corruption
//!   ([`net`]). Behind a host socket may lie Linux's own buffers and another path ([`kernel_socket`],
//!   [`kernel_stream`]).
//! - [`wan::Wan`]: bulk transfers at up to 10 Gbit/s between a TCP that behaves as Linux's ([`linux_guest`])
//!   and host sockets, for figures: [`tables`] measures them, and the program `brodo-sim` prints them.
//!
//! All randomness comes from a seed ([`rng`]); a failing random test prints the command that repeats it:
//! `BRODO_SIM_SEED=7 cargo test -p brodo-sim random_worlds`; `BRODO_SIM_RUNS=10000` sets the number of runs.
#![forbid(unsafe_code)]

mod crash_point;
pub mod crashes;
pub mod driver;
pub mod events;
pub mod fragments;
mod golden;
pub mod guest;
pub mod handover;
pub mod hello;
pub mod host;
mod kernel_end;
pub mod kernel_socket;
pub mod kernel_stream;
pub mod link;
pub mod linux_guest;
pub mod net;
pub mod notation;
pub mod observer;
pub mod packet;
pub mod page;
pub mod payload;
pub mod pictures;
pub mod promotions;
pub mod quic;
pub mod rng;
pub mod samples;
pub mod script;
pub mod tables;
pub mod unread;
pub mod wan;
pub mod world;
