//! brodo-sim: the stack in virtual time.
#![forbid(unsafe_code)]

pub mod guest;
pub mod host;
pub mod link;
pub mod machine;
pub mod net;
pub mod notation;
pub mod observer;
pub mod packet;
pub mod rng;
pub mod script;
pub mod world;
