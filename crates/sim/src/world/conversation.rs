//! Conversations of a [`World`](super::World): the plan of one connection, and the progress of each end.

use crate::kernel_stream::Wire;
use brodo_core::time::{Duration, Instant};

/// How a conversation ends.
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
    /// The peer refuses the connection.
    Refused,
}

/// Pacing of the programs' bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// Without pauses.
    Bulk,
    /// Bursts at regular intervals.
    Bursts {
        /// Bytes of one burst, each way.
        bytes: u64,
        /// From the start of one to the start of the next.
        every: Duration,
    },
    /// The guest asks, the peer answers when it has read the question, and the guest asks again when it has
    /// read the answer.
    Requests {
        /// Bytes of a question.
        request: u64,
        /// Bytes of an answer.
        response: u64,
        /// The least time from one question to the next.
        every: Duration,
    },
}

/// The far side of the host socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behind {
    /// A peer at no distance, and buffers of this many bytes each way.
    Buffer(usize),
    /// Linux's own buffers and a path (the same each way) to a peer with the like.
    Kernel(Wire),
}

/// Plan of one connection.
#[derive(Debug, Clone)]
pub struct Conversation {
    /// When the guest connects.
    pub start: Instant,
    /// Over IPv6.
    pub v6: bool,
    /// How long the host's connect takes beside the path's round trip; zero for one that is done at once.
    pub connect_after: Duration,
    /// Bytes from guest to peer.
    pub up: u64,
    /// Bytes from peer to guest.
    pub down: u64,
    /// When they are sent.
    pub pace: Pace,
    /// Bytes per millisecond that the guest's program reads; `None` for all there is.
    pub guest_reads: Option<u64>,
    /// The guest's program sleeps this long between two reads; zero for a program that is woken.
    pub guest_dwells: Duration,
    /// Bytes per millisecond that the peer reads.
    pub peer_reads: Option<u64>,
    /// The peer sleeps this long between two reads.
    pub peer_dwells: Duration,
    /// The guest's receive and send buffer, bytes each.
    pub guest_buffer: usize,
    /// The far side of the host socket.
    pub behind: Behind,
    /// Order of closing.
    pub ending: Ending,
    /// How often the guest does the same once more, each time when it has closed. Only with
    /// [`Ending::GuestFirst`].
    pub again: u32,
}

impl Default for Conversation {
    /// Nothing is sent; each side closes at once; buffers of 64 KiB.
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
            again: 0,
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
