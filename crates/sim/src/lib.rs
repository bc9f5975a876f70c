//! brodo-sim: the stack in virtual time.
#![forbid(unsafe_code)]

pub mod link;
pub mod packet;
pub mod rng;
