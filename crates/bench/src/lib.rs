//! Common ground of the end-to-end tests and the benchmark: network namespaces to run forwarders in, the
//! programs that talk through them, and the kernel's figures about them.
//!
//! ```text
//!   guest                         host namespace                                   world namespace
//!   probe client  --forwarder-->  198.19.0.1, fd00:19::1 (on lo)   198.18.0.1 ---- 198.18.0.2
//!   (run, pasta, slirp4netns,     probe servers, dnsmasq           fd00:18::1 veth fd00:18::2
//!    a veth pair, or nothing)                                                      servers, broken routes
//! ```
//!
//! - [`world`] builds the namespaces, with names unique to the process, and removes them at the end in every
//!   case.
//! - [`system`] starts a system under test in them, as an ordinary user, and runs programs as its guest.
//! - [`probe`] is the program that runs there: servers and clients small enough to be exact about their
//!   behaviour. It is the calling program itself, started again with `probe` as its first argument, so
//!   nothing else has to be installed.
//! - [`process`] runs programs with a time limit; [`procfs`] reads their state from `/proc`.
//! - [`wan`] puts a long path with a bottleneck between two of the namespaces.
//! - [`mod@bench`] interleaves workloads and systems, with [`progress`] on the terminal; [`report`] makes
//!   tables and charts.
//! - [`idle`] measures the memory of idle connections; [`soak`] loads one brodo for long and checks that it
//!   does not grow; [`pauses`] measures crashes and upgrades with idle connections open; [`floods`] a
//!   neighbour and bulk beside floods that a policy refuses; [`policy_set`] a change of policy with
//!   connections open; [`neighbour`] a machine beside a hostile one; [`mod@delay`] a request beside bulk,
//!   over time; [`smoke`] runs all of the benchmark once, briefly, as a test of it; [`demo`] shows one
//!   download.

pub mod bench;
pub mod delay;
pub mod demo;
pub mod floods;
pub mod idle;
pub mod neighbour;
pub mod pauses;
pub mod policy_set;
pub mod probe;
pub mod process;
pub mod procfs;
pub mod progress;
pub mod report;
pub mod smoke;
pub mod soak;
pub mod system;
pub mod wan;
pub mod world;
