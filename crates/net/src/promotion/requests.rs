//! Requests of the stack about promotion, on their way from [`crate::sockets::Sockets`] to the source that
//! does them, and the answer whether a flow may be promoted now.
//!
//! The stack asks its host, in the middle of its own work; the answers come later, from the source's turn.

use crate::capture::Scope;
use brodo_core::flow::{FlowId, FlowKey};
use brodo_core::host::SocketId;
use brodo_core::promotion::{Refusal, TcpSeed};
use std::net::SocketAddr;

/// A request of the stack.
#[derive(Debug)]
pub(crate) enum Request {
    /// As of [`brodo_core::host::Host::promote`].
    Promote {
        /// The flow.
        flow: FlowId,
        /// Its socket.
        socket: SocketId,
        /// State of the connection.
        seed: Box<TcpSeed>,
    },
    /// As of [`brodo_core::host::Host::carry`].
    Carry(FlowId),
    /// As of [`brodo_core::host::Host::recall`].
    Recall(FlowId),
}

/// Requests that wait for the source's turn.
#[derive(Debug)]
pub(crate) struct Requests {
    waiting: Vec<Request>,
    /// The reason against any promotion.
    refusal: Option<Refusal>,
    /// Flows that a capture sees.
    capture: Option<Scope>,
}

impl Default for Requests {
    /// Of a worker that cannot promote.
    fn default() -> Self {
        Self { waiting: Vec::new(), refusal: Some(Refusal::Unsupported), capture: None }
    }
}

impl Requests {
    pub(crate) fn allow(&mut self) {
        self.refusal = None;
    }

    pub(crate) fn refuse(&mut self, refusal: Refusal) {
        self.refusal = Some(refusal);
    }

    pub(crate) fn set_capture(&mut self, capture: Option<Scope>) {
        self.capture = capture;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether a flow may be promoted now.
    pub(crate) fn may_promote(&self, key: &FlowKey) -> Result<(), Refusal> {
        self.may_promote_between(key.guest.into(), key.remote.into())
    }

    /// The same, of a flow between these ends.
    pub(crate) fn may_promote_between(&self, guest: SocketAddr, remote: SocketAddr) -> Result<(), Refusal> {
        match &self.capture {
            // A kernel socket for it would be bound to one interface.
            _ if matches!(guest, SocketAddr::V6(v6) if v6.ip().is_unicast_link_local()) => {
                Err(Refusal::Unsupported)
            }
            Some(scope) if scope.includes(guest, remote) => Err(Refusal::Captured),
            _ => self.refusal.map_or(Ok(()), Err),
        }
    }

    /// Takes the requests.
    pub(crate) fn take(&mut self) -> Vec<Request> {
        std::mem::take(&mut self.waiting)
    }

    pub(crate) fn push(&mut self, request: Request) {
        self.waiting.push(request);
    }
}
