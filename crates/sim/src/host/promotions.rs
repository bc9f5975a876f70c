//! Promotion as the stack asks it of the host: whether a flow may be promoted, and the stack's wishes, in
//! order, for the driver to take.

use crate::rng::Rng;
use brodo_core::flow::{FlowId, FlowKey};
use brodo_core::host::SocketId;
use brodo_core::promotion::{Refusal, TcpSeed};
use std::collections::VecDeque;

/// Wish of the stack's.
#[derive(Debug)]
pub enum Request {
    /// A kernel socket is wanted.
    Promote {
        /// The flow.
        flow: FlowId,
        /// Its socket on the host.
        socket: SocketId,
        /// Its state.
        seed: Box<TcpSeed>,
    },
    /// The flow may be spliced.
    Carry(FlowId),
    /// The flow is wanted back.
    Recall(FlowId),
}

/// The host's part: whether flows may be promoted, and the stack's wishes.
#[derive(Debug, Default)]
pub struct Requests {
    mode: Mode,
    queue: VecDeque<Request>,
}

/// Choice of flows.
#[derive(Debug, Default)]
enum Mode {
    /// None: a host that cannot.
    #[default]
    Off,
    /// All flows.
    All,
    /// None, for this reason.
    Refused(Refusal),
    /// One, after so many questions; none any more.
    Once(Option<u64>),
    /// Some, by chance.
    AtRandom(Rng),
}

impl Requests {
    /// Whether a flow may be promoted.
    pub(crate) fn may(&mut self, _: &FlowKey) -> Result<(), Refusal> {
        match &mut self.mode {
            Mode::Off => Err(Refusal::Unsupported),
            Mode::All => Ok(()),
            Mode::Refused(refusal) => Err(*refusal),
            Mode::Once(left) => {
                let now = *left == Some(0);
                *left = left.and_then(|left| left.checked_sub(1));
                if now { Ok(()) } else { Err(Refusal::Captured) }
            }
            Mode::AtRandom(rng) => {
                if rng.chance(700) {
                    Ok(())
                } else {
                    Err(Refusal::Captured)
                }
            }
        }
    }

    /// All flows from now on.
    pub fn allow_all(&mut self) {
        self.mode = Mode::All;
    }

    /// No flow from now on, for this reason.
    pub fn refuse_all(&mut self, refusal: Refusal) {
        self.mode = Mode::Refused(refusal);
    }

    /// One flow, after so many questions.
    pub(crate) fn allow_once(&mut self, questions: u64) {
        self.mode = Mode::Once(Some(questions));
    }

    /// Some flows from now on, drawn from `rng`.
    pub(crate) fn allow_at_random(&mut self, rng: Rng) {
        self.mode = Mode::AtRandom(rng);
    }

    /// Wishes since the last call.
    pub fn take(&mut self) -> VecDeque<Request> {
        std::mem::take(&mut self.queue)
    }

    /// Notes a wish.
    pub(crate) fn push(&mut self, request: Request) {
        self.queue.push_back(request);
    }
}
