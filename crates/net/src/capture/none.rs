//! Without the feature `capture`: a type without values in place of an open capture. An `Option` of it takes
//! no room and is always `None`, so the compiler removes every branch on a capture.

use brodo_core::link::TxFrame;
use brodo_core::time::Instant;
use std::io;
use std::net::SocketAddr;

/// No capture: this crate was built without its feature `capture`.
#[derive(Debug, Clone)]
pub enum Capture {}

/// The flows of no capture.
#[derive(Debug, Clone)]
pub(crate) enum Scope {}

impl Scope {
    pub(crate) fn includes(&self, _: SocketAddr, _: SocketAddr) -> bool {
        match *self {}
    }
}

impl Capture {
    pub(crate) fn outbound(&mut self, _: Instant, _: &[u8]) {
        match *self {}
    }

    pub(crate) fn inbound(&mut self, _: Instant, _: &TxFrame<'_>) {
        match *self {}
    }

    pub(crate) fn scope(&self) -> Scope {
        match *self {}
    }

    pub(crate) fn flush_at(&self) -> Option<Instant> {
        match *self {}
    }

    pub(crate) fn flush(&mut self) {
        match *self {}
    }

    pub(crate) fn has_ended(&self) -> bool {
        match *self {}
    }

    pub(crate) fn take_error(&mut self) -> Option<io::Error> {
        match *self {}
    }

    pub(crate) fn counts(&self) -> (u64, u64) {
        match *self {}
    }

    pub(crate) fn set_counts(&mut self, _: u64, _: u64) {
        match *self {}
    }
}
