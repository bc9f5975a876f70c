//! The network device that a monitor sets up: what was negotiated, its memory, its rings.
//!
//! A request changes the state and has a [`Reply`], or [`Refused`]. Features are offered as far as brodo does
//! what they promise; what is not negotiated is not used.
//!
//! *Rings.* Ring 0 has frames to the guest, ring 1 those of the guest. A ring is in service once it has a
//! size, addresses and a kick, in any order, until GET_VRING_BASE, a new kick or address, or a reset; it
//! carries frames while it is enabled besides. `enabled` belongs to the connection, not to what was
//! negotiated: QEMU sends it before the first SET_FEATURES, waits for the answer, and never repeats it. UML
//! stops a ring by it alone.
//!
//! *Replies are promises*: the state before a request is used no more once it is answered. One thread has the
//! rings and answers, so that is so.
//!
//! *Broken rings.* Impossible content breaks one ring ([`crate::virtio::RingError`]): its error descriptor is
//! signalled, and it carries nothing until the driver sets it up anew.

use super::MachineConfig;
use super::message::{CONFIG_LEN, Descriptor, Reply, Request, RingAddresses};
use crate::virtio::memory::{GuestMemory, REGIONS_MAX, Region, RegionPlace};
use crate::virtio::queues::{FromGuest, ToGuest};
use crate::virtio::ring::{Filled, Layout, Ring};
use crate::vnet::HEADER_LEN;
use brodo_core::link::LinkCaps;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{retry_on_intr, write};
use rustix::net::sockopt::socket_type;
use rustix::net::{SendFlags, send};

/// Feature bits of virtio (1.3, 5.1.3 and 6).
mod feature {
    pub(super) const CSUM: u64 = 1 << 0;
    pub(super) const GUEST_CSUM: u64 = 1 << 1;
    pub(super) const MTU: u64 = 1 << 3;
    pub(super) const MAC: u64 = 1 << 5;
    pub(super) const GUEST_TSO4: u64 = 1 << 7;
    pub(super) const GUEST_TSO6: u64 = 1 << 8;
    pub(super) const HOST_TSO4: u64 = 1 << 11;
    pub(super) const HOST_TSO6: u64 = 1 << 12;
    pub(super) const HOST_ECN: u64 = 1 << 13;
    pub(super) const MRG_RXBUF: u64 = 1 << 15;
    pub(super) const STATUS: u64 = 1 << 16;
    pub(super) const INDIRECT_DESC: u64 = 1 << 28;
    pub(super) const EVENT_IDX: u64 = 1 << 29;
    /// Of vhost-user, not of the device: there are protocol features.
    pub(super) const PROTOCOL_FEATURES: u64 = 1 << 30;
    pub(super) const VERSION_1: u64 = 1 << 32;
    pub(super) const IN_ORDER: u64 = 1 << 35;
    pub(super) const GUEST_USO4: u64 = 1 << 54;
    pub(super) const GUEST_USO6: u64 = 1 << 55;
    pub(super) const HOST_USO: u64 = 1 << 56;

    /// Checksums and segmentation left to the other side.
    const OFFLOADS: u64 = CSUM
        | GUEST_CSUM
        | GUEST_TSO4
        | GUEST_TSO6
        | HOST_TSO4
        | HOST_TSO6
        | HOST_ECN
        | GUEST_USO4
        | GUEST_USO6
        | HOST_USO;
    const OTHERS: u64 =
        MTU | MAC | MRG_RXBUF | STATUS | INDIRECT_DESC | EVENT_IDX | PROTOCOL_FEATURES | VERSION_1 | IN_ORDER;

    /// All that is offered.
    pub(super) const fn offered(offload: bool) -> u64 {
        if offload { OTHERS | OFFLOADS } else { OTHERS }
    }
}

/// Protocol feature bits of vhost-user.
mod protocol {
    /// Several queue pairs: one here, but their number may be asked for.
    const MQ: u64 = 1 << 0;
    /// SEND_RARP, which needs no announcement of ours: brodo learns a guest's address from its first frame.
    const RARP: u64 = 1 << 2;
    pub(super) const REPLY_ACK: u64 = 1 << 3;
    /// NET_SET_MTU, of which note need not be taken.
    const MTU: u64 = 1 << 4;
    /// Channel for requests of ours, of which there are none; UML insists on it.
    const BACKEND_REQ: u64 = 1 << 5;
    const CONFIG: u64 = 1 << 9;
    const RESET_DEVICE: u64 = 1 << 13;
    const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;

    pub(super) const ALL: u64 =
        MQ | RARP | REPLY_ACK | MTU | BACKEND_REQ | CONFIG | RESET_DEVICE | CONFIGURE_MEM_SLOTS;
}

/// Fewest entries of a mergeable ring that holds a super-frame for certain: drivers refill a ring when half
/// of it is used, with buffers of at least 1.5 KiB.
const SUPER_FRAME_RING_MIN: u16 = 128;
/// Rings of the device.
pub(super) const RINGS: usize = 2;
/// Index of the ring of frames to the guest, and of that of frames from it.
pub(super) const TO_GUEST: usize = 0;
pub(super) const FROM_GUEST: usize = 1;

/// A request that cannot be met; the answer is failure, if one is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refused;

/// A descriptor by which the monitor's side is notified.
#[derive(Debug)]
struct Signal {
    descriptor: OwnedFd,
    /// UML has a socket where others have an eventfd.
    is_socket: bool,
}

impl Signal {
    fn new(descriptor: OwnedFd) -> Self {
        let is_socket = socket_type(&descriptor).is_ok();
        Self { descriptor, is_socket }
    }

    /// Adds 1. A socket that is full has reported the same already. An eventfd never is, unless its monitor
    /// fills it, whose own network waits then: its O_NONBLOCK is not brodo's to set, since the monitor reads
    /// by the same open file.
    fn send(&self) {
        let one = 1_u64.to_ne_bytes();
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let _ = retry_on_intr(|| {
            if self.is_socket { send(&self.descriptor, &one, flags) } else { write(&self.descriptor, &one) }
        });
    }
}

/// A ring as the monitor has described it.
#[derive(Debug, Default)]
struct RingSetup {
    size: Option<u16>,
    addresses: Option<RingAddresses>,
    /// Index of the next chain when it is taken into service.
    base: u16,
    kick: Option<OwnedFd>,
    call: Option<Signal>,
    error: Option<Signal>,
    enabled: bool,
}

/// A device.
#[derive(Debug)]
pub(super) struct Device {
    config: MachineConfig,
    features: u64,
    protocol: u64,
    pub(super) memory: GuestMemory,
    setups: [RingSetup; RINGS],
    pub(super) to_guest: Option<ToGuest>,
    pub(super) from_guest: Option<FromGuest>,
    /// Channel of the back-end's requests, kept open.
    backend_channel: Option<OwnedFd>,
    /// Kicks to be watched, by ring.
    new_kicks: [bool; RINGS],
    /// Kicks that are watched and no longer used.
    pub(super) old_kicks: Vec<OwnedFd>,
}

impl Device {
    pub(super) fn new(config: MachineConfig) -> Self {
        Self {
            config,
            features: 0,
            protocol: 0,
            memory: GuestMemory::default(),
            setups: Default::default(),
            to_guest: None,
            from_guest: None,
            backend_channel: None,
            new_kicks: [false; RINGS],
            old_kicks: Vec::new(),
        }
    }

    /// Offloads of the guest, as far as its ring has room for super-frames.
    pub(super) fn caps(&self) -> LinkCaps {
        let has = |bits| self.features & bits == bits;
        let size = self.to_guest.as_ref().map_or(0, |queue| queue.ring().size());
        let roomy = !has(feature::MRG_RXBUF) || size >= SUPER_FRAME_RING_MIN;
        LinkCaps {
            checksum: has(feature::GUEST_CSUM),
            tso: roomy && has(feature::GUEST_CSUM | feature::GUEST_TSO4 | feature::GUEST_TSO6),
            uso: roomy && has(feature::GUEST_CSUM | feature::GUEST_USO4 | feature::GUEST_USO6),
        }
    }

    /// Length of the header before a frame: drivers before virtio 1.0 know no `num_buffers` unless they merge
    /// buffers.
    pub(super) fn header_len(&self) -> usize {
        let long = self.features & (feature::VERSION_1 | feature::MRG_RXBUF) != 0;
        if long { HEADER_LEN } else { HEADER_LEN - 2 }
    }

    /// Whether a ring carries frames.
    pub(super) fn is_enabled(&self, ring: usize) -> bool {
        // Without protocol features there is no message for it.
        self.setups[ring].enabled || self.features & feature::PROTOCOL_FEATURES == 0
    }

    /// Does what a request demands.
    ///
    /// # Errors
    /// [`Refused`]: nothing was changed but what the request replaces.
    pub(super) fn handle(
        &mut self,
        request: Request,
        mut descriptors: Vec<OwnedFd>,
    ) -> Result<Option<Reply>, Refused> {
        let reply = match request {
            Request::GetFeatures => Reply::Number(feature::offered(self.config.offload)),
            Request::GetProtocolFeatures => Reply::Number(protocol::ALL),
            Request::GetQueueNum => Reply::Number(1),
            Request::GetMaxMemorySlots => Reply::Number(REGIONS_MAX as u64),
            Request::GetRingBase { ring } => self.stop(ring)?,
            Request::GetConfig { offset, size, flags } => self.config_space(offset, size, flags),
            other => {
                self.set(other, &mut descriptors)?;
                return Ok(None);
            }
        };
        Ok(Some(reply))
    }

    /// Whether every request is answered that wants it.
    pub(super) fn acknowledges(&self) -> bool {
        self.protocol & protocol::REPLY_ACK != 0
    }

    /// Requests without a reply of their own.
    fn set(&mut self, request: Request, descriptors: &mut Vec<OwnedFd>) -> Result<(), Refused> {
        match request {
            Request::SetFeatures(bits) => {
                self.features = subset(bits, feature::offered(self.config.offload))?;
            }
            Request::SetProtocolFeatures(bits) => self.protocol = subset(bits, protocol::ALL)?,
            Request::Acknowledge => {}
            Request::SetMemoryTable(places) => self.replace_memory(&places, descriptors)?,
            Request::AddMemoryRegion(place) => self.add_memory(place, descriptors)?,
            Request::RemoveMemoryRegion(place) => {
                if !self.memory.remove(place) {
                    return Err(Refused);
                }
            }
            Request::SetRingSize { ring, size } => {
                let size = u16::try_from(size).map_err(|_| Refused)?;
                self.change(ring, |setup| setup.size = Some(size))?;
            }
            Request::SetRingAddresses(addresses) => {
                self.change(addresses.ring, |setup| setup.addresses = Some(addresses))?;
            }
            Request::SetRingBase { ring, base } => {
                let base = u16::try_from(base).map_err(|_| Refused)?;
                self.change(ring, |setup| setup.base = base)?;
            }
            Request::SetRingDescriptor { kind, ring, present } => {
                let descriptor = descriptors.pop();
                if descriptor.is_some() != present {
                    return Err(Refused);
                }
                self.set_descriptor(kind, ring, descriptor)?;
            }
            Request::EnableRing { ring, enabled } => self.setup(ring)?.enabled = enabled,
            Request::SetBackendChannel => self.backend_channel = Some(descriptors.pop().ok_or(Refused)?),
            Request::ResetDevice => self.reset(),
            _ => return Err(Refused),
        }
        Ok(())
    }

    fn setup(&mut self, ring: u32) -> Result<&mut RingSetup, Refused> {
        self.setups.get_mut(ring as usize).ok_or(Refused)
    }

    /// Changes a ring's description, which takes the ring out of service, and into service if it is complete.
    fn change(&mut self, ring: u32, change: impl FnOnce(&mut RingSetup)) -> Result<(), Refused> {
        self.setup(ring)?;
        self.take_out(ring as usize);
        let setup = self.setup(ring)?;
        change(setup);
        self.take_in(ring as usize)
    }

    /// Takes a ring into service if its description is complete.
    fn take_in(&mut self, ring: usize) -> Result<(), Refused> {
        let setup = &mut self.setups[ring];
        let (Some(size), Some(addresses), Some(_)) = (setup.size, setup.addresses, &setup.kick) else {
            return Ok(());
        };
        let RingAddresses { descriptors, available, used, .. } = addresses;
        let indirect = self.features & feature::INDIRECT_DESC != 0;
        let event_index = self.features & feature::EVENT_IDX != 0;
        let layout = Layout { size, descriptors, available, used, indirect, event_index };
        let filled = if ring == TO_GUEST { Filled::ByDevice } else { Filled::ByDriver };
        let started = Ring::start(layout, filled, setup.base, &self.memory).map_err(|_| Refused)?;
        if ring == TO_GUEST {
            self.to_guest = Some(ToGuest::new(started, self.features & feature::MRG_RXBUF != 0));
        } else {
            self.from_guest = Some(FromGuest::new(started));
        }
        Ok(())
    }

    /// Takes a ring out of service; it goes on where it was when it is taken in again.
    fn take_out(&mut self, ring: usize) {
        let next = if ring == TO_GUEST {
            self.to_guest.take().map(|queue| queue.ring().next())
        } else {
            self.from_guest.take().map(|queue| queue.ring().next())
        };
        let setup = &mut self.setups[ring];
        setup.base = next.unwrap_or(setup.base);
    }

    /// GET_VRING_BASE: stops a ring, which is set up anew afterwards.
    fn stop(&mut self, ring: u32) -> Result<Reply, Refused> {
        self.setup(ring)?;
        let index = ring as usize;
        self.take_out(index);
        self.forget_kick(index);
        let setup = &mut self.setups[index];
        (setup.call, setup.error) = (None, None);
        Ok(Reply::RingBase { ring, base: u32::from(setup.base) })
    }

    fn forget_kick(&mut self, ring: usize) {
        let watched = !std::mem::take(&mut self.new_kicks[ring]);
        self.old_kicks.extend(self.setups[ring].kick.take().filter(|_| watched));
    }

    fn set_descriptor(
        &mut self,
        kind: Descriptor,
        ring: u32,
        descriptor: Option<OwnedFd>,
    ) -> Result<(), Refused> {
        let index = ring as usize;
        match kind {
            Descriptor::Kick => {
                // Without one a ring would have to be polled.
                let descriptor = descriptor.ok_or(Refused)?;
                self.setup(ring)?;
                self.forget_kick(index);
                self.new_kicks[index] = true;
                self.change(ring, |setup| setup.kick = Some(descriptor))?;
            }
            Descriptor::Call => {
                self.setup(ring)?.call = descriptor.map(Signal::new);
                // Calls to the one before may have been lost with it.
                self.call(index);
            }
            Descriptor::Error => self.setup(ring)?.error = descriptor.map(Signal::new),
        }
        Ok(())
    }

    /// Notifies the driver of a ring.
    pub(super) fn call(&self, ring: usize) {
        if let Some(call) = &self.setups[ring].call {
            call.send();
        }
    }

    /// Takes a ring out of service for its impossible content.
    pub(super) fn break_ring(&mut self, ring: usize) {
        self.take_out(ring);
        if let Some(error) = &self.setups[ring].error {
            error.send();
        }
    }

    fn replace_memory(&mut self, places: &[RegionPlace], files: &mut Vec<OwnedFd>) -> Result<(), Refused> {
        if places.len() != files.len() {
            return Err(Refused);
        }
        let mut memory = GuestMemory::default();
        for (place, file) in places.iter().zip(files.drain(..)) {
            map(&mut memory, &file, *place)?;
        }
        self.memory = memory;
        Ok(())
    }

    fn add_memory(&mut self, place: RegionPlace, files: &mut Vec<OwnedFd>) -> Result<(), Refused> {
        let file = files.pop().ok_or(Refused)?;
        map(&mut self.memory, &file, place)
    }

    /// RESET_DEVICE: as at the begin of the connection, but for the memory and the monitor's descriptors.
    fn reset(&mut self) {
        for ring in 0..RINGS {
            self.take_out(ring);
            self.forget_kick(ring);
            self.setups[ring] = RingSetup::default();
        }
        self.features = 0;
    }

    /// A part of `struct virtio_net_config`.
    fn config_space(&self, offset: u32, size: u32, flags: u32) -> Reply {
        let mut space = [0_u8; CONFIG_LEN];
        space[..6].copy_from_slice(&self.config.mac.0);
        // Status: the link is up.
        space[6] = 1;
        // Queue pairs.
        space[8] = 1;
        space[10..12].copy_from_slice(&self.config.mtu.to_le_bytes());
        let begin = offset as usize;
        let part = begin.checked_add(size as usize).and_then(|end| space.get(begin..end));
        Reply::Config { offset, flags, bytes: part.unwrap_or_default().to_vec() }
    }

    /// Kicks to be watched from now on, each with the number of its ring.
    pub(super) fn take_new_kicks(&mut self) -> impl Iterator<Item = (usize, &OwnedFd)> {
        let new = std::mem::take(&mut self.new_kicks);
        let kicks = self.setups.iter().enumerate();
        kicks.filter_map(move |(ring, setup)| setup.kick.as_ref().filter(|_| new[ring]).map(|it| (ring, it)))
    }

    /// Kicks that are watched, when the device ends.
    pub(super) fn into_kicks(mut self) -> Vec<OwnedFd> {
        for ring in 0..RINGS {
            self.forget_kick(ring);
        }
        self.old_kicks
    }
}

/// The bits, if all of them were offered.
fn subset(bits: u64, offered: u64) -> Result<u64, Refused> {
    if bits & !offered == 0 { Ok(bits) } else { Err(Refused) }
}

fn map(memory: &mut GuestMemory, file: &OwnedFd, place: RegionPlace) -> Result<(), Refused> {
    Region::map(file.as_fd(), place).and_then(|region| memory.add(region)).map_err(|_| Refused)
}

/// Everything that is offered, for tests.
#[cfg(test)]
pub(super) const fn tests_features() -> u64 {
    feature::offered(true)
}

#[cfg(test)]
mod tests;
