//! The front end's side of vhost-user: a monitor's messages, for tests and for the benchmark's machine.

use crate::virtio::driver::DriverRing;
use crate::virtio::memory::{GuestMemory, RegionPlace};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;

/// A message, without its header.
#[derive(Debug)]
pub struct Message<'a> {
    /// Number of the request.
    pub request: u32,
    /// Payload behind the header.
    pub payload: Vec<u8>,
    /// The descriptor beside it.
    pub file: Option<BorrowedFd<'a>>,
}

impl<'a> Message<'a> {
    /// A message whose payload are these numbers.
    pub fn new(request: u32, numbers: &[u64]) -> Self {
        let payload = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
        Self { request, payload, file: None }
    }

    /// A message about a ring, with a 32-bit value.
    pub fn of_ring(request: u32, ring: u32, value: u32) -> Self {
        let payload = [ring.to_ne_bytes(), value.to_ne_bytes()].concat();
        Self { request, payload, file: None }
    }

    /// The message with a descriptor.
    #[must_use]
    pub fn with(self, file: &'a impl AsFd) -> Self {
        Self { file: Some(file.as_fd()), ..self }
    }

    /// SET_MEM_TABLE with one region.
    pub fn memory(place: RegionPlace, file: &'a impl AsFd) -> Self {
        Self::new(5, &[1, place.guest, place.size, place.user, place.offset]).with(file)
    }

    /// Messages that set a ring up, in QEMU's order. The device goes on at the used index in memory.
    pub fn ring(
        ring: u32,
        driver: &DriverRing,
        memory: &GuestMemory,
        kick: &'a impl AsFd,
        call: &'a impl AsFd,
    ) -> [Self; 5] {
        let mut addresses = Self::of_ring(9, ring, 0);
        let places = [driver.descriptors(), driver.used_area(), driver.available_area(), 0];
        addresses.payload.extend(places.into_iter().flat_map(u64::to_ne_bytes));
        [
            Self::of_ring(8, ring, driver.size().into()),
            Self::of_ring(10, ring, driver.used_index(memory).into()),
            addresses,
            Self::new(12, &[ring.into()]).with(kick),
            Self::new(13, &[ring.into()]).with(call),
        ]
    }

    /// Sends it, with the flag that wants a reply or without.
    ///
    /// # Errors
    /// The socket is full or closed.
    pub fn send(&self, socket: impl AsFd, needs_reply: bool) -> io::Result<()> {
        let mut bytes = Vec::new();
        for field in [self.request, if needs_reply { 9 } else { 1 }, self.payload.len() as u32] {
            bytes.extend(field.to_ne_bytes());
        }
        bytes.extend(&self.payload);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if let Some(file) = &self.file {
            control.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(file)));
        }
        let sent = sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
        if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }
}
