//! The guest's driver of a network device with one queue pair, in the place of a kernel's: smoltcp's frames
//! in rings, each behind a header of 12 bytes.

use brodo_link::virtio::driver::{DriverRing, Shape, memfd};
use brodo_link::virtio::memory::GuestMemory;
use brodo_link::virtio::ring::Layout;
use rustix::event::{EventfdFlags, eventfd};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Address of the memory in the VMM.
pub(crate) const USER: u64 = 0x7000_0000;
const HEADER_LEN: usize = 12;
const FRAME_LEN_MAX: usize = 1514;
const SHAPE: Shape = Shape { size: 256, slot: 2048, piece: None, event_index: true };

fn ring_len() -> u64 {
    DriverRing::bytes(SHAPE).next_multiple_of(4096)
}

/// A file with the guest's memory, and its length in bytes: two rings with their buffers.
pub(crate) fn memory() -> (OwnedFd, u64) {
    let size = 2 * ring_len();
    (memfd(size), size)
}

/// The driver: ring 0 brings frames, ring 1 sends them.
pub(crate) struct Driver {
    memory: Arc<GuestMemory>,
    rings: [DriverRing; 2],
    kicks: [OwnedFd; 2],
    calls: [OwnedFd; 2],
}

impl Driver {
    /// A driver whose first ring has all its buffers posted.
    pub(crate) fn new(memory: Arc<GuestMemory>) -> io::Result<Self> {
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let ring = |number: u64| DriverRing::new(SHAPE, USER + number * ring_len(), 0_u64.wrapping_sub(USER));
        let (kicks, calls) = ([event()?, event()?], [event()?, event()?]);
        let mut driver = Self { memory, rings: [ring(0), ring(1)], kicks, calls };
        while let Some(slot) = driver.rings[0].take_free() {
            driver.rings[0].offer(&driver.memory, slot, SHAPE.slot, true);
        }
        Ok(driver)
    }

    pub(crate) fn layout(&self, ring: usize) -> Layout {
        self.rings[ring].layout()
    }

    pub(crate) fn kick(&self, ring: usize) -> io::Result<OwnedFd> {
        self.kicks[ring].try_clone()
    }

    pub(crate) fn call(&self, ring: usize) -> io::Result<OwnedFd> {
        self.calls[ring].try_clone()
    }

    /// Asks for a call with the next frame; true if one is there already.
    pub(crate) fn arm(&mut self) -> bool {
        self.rings[0].arm(&self.memory, true)
    }

    fn kick_if_wanted(&mut self, ring: usize) {
        if self.rings[ring].needs_kick(&self.memory) {
            // Full after 2^64 kicks.
            let _ = rustix::io::write(&self.kicks[ring], &1_u64.to_ne_bytes());
        }
    }

    /// The next frame.
    fn frame(&mut self) -> Option<Vec<u8>> {
        let (slot, written) = self.rings[0].take_used(&self.memory)?;
        let mut bytes = vec![0; written as usize];
        self.memory.user(self.rings[0].slot(slot), bytes.len())?.read(&mut bytes);
        self.rings[0].offer(&self.memory, slot, SHAPE.slot, true);
        self.kick_if_wanted(0);
        Some(bytes.split_off(HEADER_LEN.min(bytes.len())))
    }

    /// Sends the frame that was written behind the header in a slot.
    fn send(&mut self, slot: u16, bytes: &[u8]) {
        if let Some(place) = self.memory.user(self.rings[1].slot(slot), bytes.len()) {
            place.write(bytes);
        }
        self.rings[1].offer(&self.memory, slot, bytes.len() as u32, false);
        self.kick_if_wanted(1);
    }

    /// Takes back the buffers of frames that were sent; whether one is free.
    fn has_room(&mut self) -> bool {
        while let Some((slot, _)) = self.rings[1].take_used(&self.memory) {
            self.rings[1].give_back(slot);
        }
        match self.rings[1].take_free() {
            Some(slot) => {
                self.rings[1].give_back(slot);
                true
            }
            None => false,
        }
    }
}

/// A received frame.
pub(crate) struct Received(Vec<u8>);

impl RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(&self.0)
    }
}

/// Permission to send one frame.
pub(crate) struct Permit<'a>(&'a mut Driver);

impl TxToken for Permit<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        let mut bytes = vec![0; HEADER_LEN + len];
        let result = write(&mut bytes[HEADER_LEN..]);
        if let Some(slot) = self.0.rings[1].take_free() {
            self.0.send(slot, &bytes);
        }
        result
    }
}

impl Device for Driver {
    type RxToken<'a> = Received;
    type TxToken<'a> = Permit<'a>;

    fn receive(&mut self, _now: Instant) -> Option<(Received, Permit<'_>)> {
        // An answer to the frame needs a buffer.
        let frame = self.has_room().then(|| self.frame())??;
        Some((Received(frame), Permit(self)))
    }

    fn transmit(&mut self, _now: Instant) -> Option<Permit<'_>> {
        self.has_room().then_some(Permit(self))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = FRAME_LEN_MAX;
        capabilities
    }
}
