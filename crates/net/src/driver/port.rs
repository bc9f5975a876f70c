//! The link as the stack sees it: with a capture in between, and a note of what was sent.

use super::busy_poll::Moved;
use crate::capture::Capture;
use brodo_core::link::{Link, LinkCaps, NoCredit, RxMeta, TxFrame};
use brodo_core::time::Instant;
use brodo_link::{FailedCall, GuestLink};

/// A link, perhaps captured.
#[derive(Debug)]
pub(super) struct Port<L> {
    pub(super) link: L,
    pub(super) capture: Option<Capture>,
    /// The time of this turn, for the capture.
    pub(super) now: Instant,
    /// Something was sent since a read found the link empty: there may be an answer that nobody reports in time.
    pub(super) sent: bool,
    /// Bytes sent since the driver has set this to zero.
    pub(super) sent_bytes: usize,
    /// What has passed since the driver has set this to nothing.
    pub(super) moved: Moved,
}

impl<L: GuestLink> Port<L> {
    pub(super) fn new(link: L) -> Self {
        Self { link, capture: None, now: Instant::ZERO, sent: false, sent_bytes: 0, moved: Moved::default() }
    }

    /// Takes one frame from the guest.
    pub(super) fn recv(&mut self, buf: &mut [u8]) -> Result<Option<(RxMeta, usize)>, FailedCall> {
        let received = self.link.recv(buf)?;
        self.moved.from_guest |= received.is_some();
        match (received, &mut self.capture) {
            (None, _) => self.sent = false,
            (Some((_, len)), Some(capture)) => capture.outbound(self.now, &buf[..len]),
            (Some(_), None) => {}
        }
        Ok(received)
    }
}

impl<L: GuestLink> Link for Port<L> {
    fn caps(&self) -> LinkCaps {
        self.link.caps()
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
