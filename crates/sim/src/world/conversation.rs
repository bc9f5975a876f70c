//! Conversations of a [`World`](super::World): the plan of one connection, and the progress of each end.

use crate::kernel_stream::Wire;
use brodo_core::time::{Duration, Instant};

/// End of a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Each side closes its direction when it has sent everything.
    Each,
    /// The guest closes when it has sent everything, the peer after it has read the end of stream.
    GuestFirst,
    /// The peer closes when it has sent everything, the guest after it has read the end of stream.
    HostFirst,
    /// The guest resets once half of what it sends has been written.
    GuestResets,
    /// The peer resets once it has read half of what the guest sends.
    HostResets,
    /// The guest closes when it has sent everything, and resets when that is acknowledged, FIN and all: its
    /// program has exited, and the host has sent more. All of it is delivered.
    GuestLeaves,
    /// The peer closes when it has sent everything, and resets when all of it is in the host's socket. It is
    /// delivered.
    HostLeaves,
    /// The peer refuses the connection.
    Refused,
}

/// Pacing of the programs' bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// Bytes without pauses.
    Bulk,
    /// Bursts at regular intervals.
    Bursts {
        /// Bytes of one burst, each way.
        bytes: u64,
        /// Interval from the start of one burst to the start of the next.
        every: Duration,
    },
    /// Request and response: the guest sends a request, the peer answers once it has read it, and the next
    /// request follows the answer.
    Requests {
        /// Bytes of a question.
        request: u64,
        /// Bytes of an answer.
        response: u64,
        /// The least time from one request to the next.
        every: Duration,
    },
}

/// The far side of the host socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behind {
    /// A peer without a path, and buffers of this many bytes each way.
    Buffer(usize),
    /// Linux's own buffers and a path (the same each way) to a peer with the like.
    Kernel(Wire),
}

/// Plan of one connection.
#[derive(Debug, Clone)]
pub struct Conversation {
    /// Time of the guest's connect.
    pub start: Instant,
    /// Over IPv6.
    pub v6: bool,
    /// Duration of the host's connect beside the path's round trip; zero for an immediate one.
    pub connect_after: Duration,
    /// Bytes from guest to peer.
    pub up: u64,
    /// Bytes from peer to guest.
    pub down: u64,
    /// Pacing of both directions.
    pub pace: Pace,
    /// Bytes per millisecond that the guest's program reads; `None` for all there is.
    pub guest_reads: Option<u64>,
    /// Sleep of the guest's program between two reads; zero for a program woken by arrivals.
    pub guest_dwells: Duration,
    /// Bytes per millisecond that the peer reads.
    pub peer_reads: Option<u64>,
    /// Sleep of the peer between two reads.
    pub peer_dwells: Duration,
    /// The guest's receive and send buffer, bytes each.
    pub guest_buffer: usize,
    /// The far side of the host socket.
    pub behind: Behind,
    /// Order of closing.
    pub ending: Ending,
    /// Repetitions of the conversation, each after the guest has closed. Only with [`Ending::GuestFirst`].
    pub repetitions: u32,
}

impl Default for Conversation {
    /// A plan without payload, in which each side closes at once; buffers of 64 KiB.
    fn default() -> Self {
        Self {
            start: Instant::from_ms(1),
            v6: false,
            connect_after: Duration::ZERO,
            up: 0,
            down: 0,
            pace: Pace::Bulk,
            guest_reads: None,
            guest_dwells: Duration::ZERO,
            peer_reads: None,
            peer_dwells: Duration::ZERO,
            guest_buffer: 64 << 10,
            behind: Behind::Buffer(64 << 10),
            ending: Ending::Each,
            repetitions: 0,
        }
    }
}

impl Conversation {
    /// `count` questions and answers.
    pub fn requests(count: u64, request: u64, response: u64, every: Duration) -> Self {
        let pace = Pace::Requests { request, response, every };
        Self { up: count * request, down: count * response, pace, ..Self::default() }
    }

    /// From the connect to the host's answer, without the machine's CPU time.
    pub(super) fn connect_takes(&self) -> Duration {
        match self.behind {
            Behind::Buffer(_) => self.connect_after,
            Behind::Kernel(wire) => self.connect_after + wire.rtt(),
        }
    }

    /// Bytes of `all` due by now for a program whose bursts began `since` ago.
    pub(super) fn burst(&self, since: Duration, all: u64) -> u64 {
        match self.pace {
            Pace::Bursts { bytes, every } => {
                let bursts = since.as_nanos() / every.as_nanos().max(1) + 1;
                all.min(bytes.saturating_mul(u64::try_from(bursts).unwrap_or(u64::MAX)))
            }
            Pace::Bulk | Pace::Requests { .. } => all,
        }
    }
}
