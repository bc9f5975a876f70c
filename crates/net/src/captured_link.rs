//! The link as the stack sees it: with a capture in between, and an account of traffic.

use crate::capture::Capture;
use brodo_core::link::{Link, LinkCaps, NoCredit, RxFrame, TxFrame, Unread};
use brodo_core::time::Instant;
use brodo_link::batch::Batch;
use brodo_link::{FailedCall, GuestLink, Taken};

/// Traffic of one turn of the loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Moved {
    /// Frames from the guest; their payload goes to the host.
    pub(crate) from_guest: bool,
    /// Frames to the guest.
    pub(crate) to_guest: bool,
    /// Events of the host's sockets.
    pub(crate) from_host: bool,
    /// Events of spliced connections, at either end.
    pub(crate) joined: bool,
}

impl Moved {
    /// Whether this traffic may be the answer to that of the turn `before`.
    pub(crate) fn answers(self, before: Self) -> bool {
        (self.from_guest && before.to_guest)
            || (self.from_host && before.from_guest)
            || (self.joined && before.joined)
    }
}

/// A link, perhaps captured.
#[derive(Debug)]
pub(crate) struct CapturedLink<L> {
    pub(crate) link: L,
    pub(crate) capture: Option<Capture>,
    /// The time of this turn, for the capture.
    pub(crate) now: Instant,
    /// A frame was sent since a read found the link empty: an answer may be waiting that no event reports in
    /// time.
    pub(crate) sent: bool,
    /// Bytes sent since the driver's last reset of this field.
    pub(crate) sent_bytes: usize,
    /// Traffic since the driver's last reset of this field.
    pub(crate) moved: Moved,
}

impl<L: GuestLink> CapturedLink<L> {
    pub(crate) fn new(link: L, capture: Option<Capture>) -> Self {
        Self { link, capture, now: Instant::ZERO, sent: false, sent_bytes: 0, moved: Moved::default() }
    }

    /// Takes frames from the guest.
    ///
    /// # Errors
    /// The link is broken for good.
    pub(crate) fn take(&mut self, batch: &mut Batch<'_>) -> Result<Taken, FailedCall> {
        let left = self.link.take(batch)?;
        let frames = batch.frames();
        self.moved.from_guest |= !frames.is_empty();
        self.capture_taken(frames);
        if left == Taken::All {
            self.sent = false;
        }
        Ok(left)
    }

    /// Captures frames of the guest's.
    pub(crate) fn capture_taken(&mut self, frames: &[RxFrame<'_>]) {
        if let Some(capture) = &mut self.capture {
            for frame in frames {
                capture.outbound(self.now, frame.bytes);
            }
        }
    }
}

impl<L: GuestLink> Link for CapturedLink<L> {
    fn caps(&self) -> LinkCaps {
        self.link.caps()
    }

    fn read(&self, unread: Unread, into: &mut [u8]) -> usize {
        self.link.read(unread, into)
    }

    fn send(&mut self, frame: &TxFrame<'_>) -> Result<(), NoCredit> {
        self.link.send(frame)?;
        self.sent = true;
        self.moved.to_guest = true;
        self.sent_bytes += frame.len();
        if let Some(capture) = &mut self.capture {
            capture.inbound(self.now, frame);
        }
        Ok(())
    }
}
