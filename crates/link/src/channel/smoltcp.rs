//! smoltcp on the guest's end of a channel: [`GuestEnd`] as a `smoltcp::phy::Device`, so that a user-space
//! stack is a guest in twenty lines. Frames toward the guest are copied once, because smoltcp hands out a
//! transmit token beside each received frame.
//!
//! Feature `smoltcp`. The device announces Ethernet frames of 1514 bytes and computes all checksums, which
//! matches [`super::Options::default`].

use super::GuestEnd;
use ::smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use ::smoltcp::time::Instant;

/// Longest frame that the device announces: Ethernet header and an IP packet of 1500 bytes.
const FRAME_LEN_MAX: usize = 1514;

/// A received frame.
#[derive(Debug)]
pub struct ReceivedFrame(Vec<u8>);

impl RxToken for ReceivedFrame {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(&self.0)
    }
}

/// Permission to send one frame.
#[derive(Debug)]
pub struct SendPermit<'a>(&'a mut GuestEnd);

impl TxToken for SendPermit<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        let mut frame = vec![0; len];
        let result = write(&mut frame);
        // No credit: smoltcp cannot take a frame back, so this is its packet loss; its TCP sends the segment
        // again.
        let _ = self.0.send(&frame);
        result
    }
}

impl Device for GuestEnd {
    type RxToken<'a> = ReceivedFrame;
    type TxToken<'a> = SendPermit<'a>;

    fn receive(&mut self, _now: Instant) -> Option<(Self::RxToken<'_>, Self::TxToken<'_>)> {
        let frame = self.recv()?.1.to_vec();
        Some((ReceivedFrame(frame), SendPermit(self)))
    }

    fn transmit(&mut self, _now: Instant) -> Option<Self::TxToken<'_>> {
        self.has_room(FRAME_LEN_MAX).then_some(SendPermit(self))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = FRAME_LEN_MAX;
        capabilities
    }
}
