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
//! *Bases.* A ring goes on at the used index in the guest's memory, and the base that SET_VRING_BASE gives is
//! only reported again: after a reconnection cloud-hypervisor gives the available index, behind all buffers
//! that the guest has posted and gets no other event for. Nothing is ever in flight, so no other base is
//! right.
//!
//! *Broken rings.* Addresses and sizes are the choice of the guest's driver, and passed on by its monitor: a
//! ring that is impossible by them is broken, and the message that completes it is met.
//!
//! *Memory that is replaced.* QEMU removes a section that has changed and adds it again, while rings are in
//! service. A ring in no memory is out of service, and is taken in again once its place is there; it is not
//! broken by that. A buffer in no memory breaks its ring.
//!
//! *Numbers.* GET_QUEUE_NUM is compared with pairs by QEMU and with rings by cloud-hypervisor, and crosvm
//! makes as many rings, so it answers the rings of all pairs and a control queue; a front end that takes that
//! for pairs may use so many.
//!
//! *Control queue.* It is the device's to serve only for front ends that leave the device's configuration to
//! it too (User-Mode Linux, crosvm); QEMU and cloud-hypervisor have one of their own, and tell of its
//! commands by SET_VRING_ENABLE.
//!
//! *Migration.* While the monitor moves its machine to another host, pages that are written to are noted in a
//! log of the monitor's ([`DirtyLog`]): from LOG_ALL among the features on, with a log before or after. The
//! rings go on at their used indices there; connections do not.
//!
//! *Resets of the guest's.* QEMU (9.1) sends RESET_DEVICE whenever the guest's driver resets the device: as
//! another kernel begins, and also as the same one loads its driver again, sleeps or wakes, and goes on with
//! its connections then. So it ends no flow, and has them probed ([`NetDevice::note_reset`]). GET_VRING_BASE
//! is no sign at all: a pause and the way to another host begin with it too. RESET_OWNER, by its
//! specification, is to be ignored.
//!
//! *Replies are promises*: the state before a request is used no more once it is answered. Each change takes
//! the locks of the rings that it concerns ([`NetDevice`]), so that is so.

use super::MachineConfig;
use super::message::{CONFIG_LEN, Descriptor, Reply, Request, RingAddresses};
use crate::virtio::RingError;
use crate::virtio::device::{NetDevice, PAIRS_MAX, Role};
use crate::virtio::memory::{DirtyLog, GuestMemory, REGIONS_MAX, Region, RegionPlace};
use crate::virtio::queues::FrameFormat;
use crate::virtio::ring::Layout;
use crate::virtio::signal::Signal;
use brodo_core::link::LinkCaps;
use brodo_core::wire::ethernet::EthernetHeader;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

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
    pub(super) const CTRL_VQ: u64 = 1 << 17;
    /// Nothing is ever announced by it; without it QEMU complains that a migrated guest is not.
    const GUEST_ANNOUNCE: u64 = 1 << 21;
    pub(super) const MQ: u64 = 1 << 22;
    /// Of vhost-user: dirty pages are noted.
    pub(super) const LOG_ALL: u64 = 1 << 26;
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
    const OTHERS: u64 = MTU
        | MAC
        | MRG_RXBUF
        | STATUS
        | CTRL_VQ
        | GUEST_ANNOUNCE
        | MQ
        | LOG_ALL
        | INDIRECT_DESC
        | EVENT_IDX
        | PROTOCOL_FEATURES
        | VERSION_1
        | IN_ORDER;

    /// All that is offered.
    pub(super) const fn offered(offload: bool) -> u64 {
        if offload { OTHERS | OFFLOADS } else { OTHERS }
    }
}

/// Protocol feature bits of vhost-user.
mod protocol {
    /// Several queue pairs, whose number may be asked for.
    const MQ: u64 = 1 << 0;
    /// The log of dirty pages is in a file; QEMU migrates no machine without it.
    const LOG_SHMFD: u64 = 1 << 1;
    /// SEND_RARP, which needs no announcement of ours: brodo learns a guest's address from its first frame.
    const RARP: u64 = 1 << 2;
    pub(super) const REPLY_ACK: u64 = 1 << 3;
    /// NET_SET_MTU, of which note need not be taken.
    const MTU: u64 = 1 << 4;
    /// Channel for requests of ours, of which there are none; UML insists on it.
    const BACKEND_REQ: u64 = 1 << 5;
    pub(super) const CONFIG: u64 = 1 << 9;
    const RESET_DEVICE: u64 = 1 << 13;
    const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;

    pub(super) const ALL: u64 =
        MQ | LOG_SHMFD | RARP | REPLY_ACK | MTU | BACKEND_REQ | CONFIG | RESET_DEVICE | CONFIGURE_MEM_SLOTS;

    /// Protocol features that a device offers.
    pub(super) const fn offered(plain: bool) -> u64 {
        if plain { ALL & !(BACKEND_REQ | CONFIG) } else { ALL }
    }
}

/// Length of the least mergeable buffer, in bytes: room for an Ethernet frame with a tag (Linux's
/// `GOOD_PACKET_LEN`).
const BUFFER_MIN: u32 = 1518;
/// Most pairs that may be offered, of which a front end may use twice as many and one.
pub(super) const QUEUES_MAX: usize = (PAIRS_MAX - 1) / 2;

/// Rings of a device of so many pairs, those that a front end may use beyond among them.
pub(super) const fn rings(pairs: usize) -> usize {
    2 * (2 * pairs + 1)
}

/// Longest packet that a mergeable ring of so many entries certainly gets the buffers for, if not every one:
/// drivers refill a ring when half of it is used, and then only when another frame has come.
fn packet_max(entries: u16) -> Option<u16> {
    let bytes = u32::from(entries / 2).max(1) * BUFFER_MIN - EthernetHeader::LEN as u32;
    u16::try_from(bytes).ok()
}

/// A request that cannot be met; the answer is failure, if one is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refused;

/// A ring as the monitor has described it.
#[derive(Debug, Default)]
struct RingSetup {
    size: Option<u16>,
    addresses: Option<RingAddresses>,
    /// Index of the next chain, as the monitor has given it, or where the ring has stopped.
    base: u16,
    kick: Option<Arc<OwnedFd>>,
    call: Option<Arc<OwnedFd>>,
    error: Option<Arc<OwnedFd>>,
    enabled: bool,
    /// Complete, but not in the guest's memory: it is taken into service when it is.
    unplaced: bool,
}

/// A device as a monitor sets it up.
#[derive(Debug)]
pub(super) struct Device {
    config: MachineConfig,
    features: u64,
    protocol: u64,
    memory: Arc<GuestMemory>,
    log: Option<Arc<DirtyLog>>,
    log_signal: Option<Arc<OwnedFd>>,
    setups: Box<[RingSetup]>,
    rings: Arc<NetDevice>,
    /// Channel of the back-end's requests, kept open.
    backend_channel: Option<OwnedFd>,
    /// Rings broken by their description since [`Device::take_broken`].
    broken: u64,
}

impl Device {
    /// A new connection's device, whose rings are these.
    pub(super) fn new(config: MachineConfig, rings: Arc<NetDevice>) -> Self {
        rings.clear();
        Self {
            config,
            features: 0,
            protocol: 0,
            memory: Arc::default(),
            log: None,
            log_signal: None,
            setups: std::iter::repeat_with(RingSetup::default).take(rings.rings()).collect(),
            rings,
            backend_channel: None,
            broken: 0,
        }
    }

    /// Offloads of the guest, as far as its rings have room for super-frames, and the longest packet.
    pub(super) fn caps(&self) -> LinkCaps {
        let has = |bits| self.features & bits == bits;
        let ring = self.rings.least_ring_to_guest().filter(|_| has(feature::MRG_RXBUF));
        let packet_max = ring.and_then(packet_max);
        let roomy = packet_max.is_none();
        LinkCaps {
            checksum: has(feature::GUEST_CSUM),
            tso: roomy && has(feature::GUEST_CSUM | feature::GUEST_TSO4 | feature::GUEST_TSO6),
            uso: roomy && has(feature::GUEST_CSUM | feature::GUEST_USO4 | feature::GUEST_USO6),
            packet_max,
        }
    }

    /// Form of frames.
    fn format(&self) -> FrameFormat {
        let has = |bit| self.features & bit != 0;
        FrameFormat { modern: has(feature::VERSION_1), mergeable: has(feature::MRG_RXBUF) }
    }

    /// The ring of commands, if the device has to serve it.
    fn control_ring(&self) -> Option<usize> {
        let ours = self.features & feature::CTRL_VQ != 0 && self.protocol & protocol::CONFIG != 0;
        let pairs = if self.features & feature::MQ != 0 { self.config.queues } else { 1 };
        ours.then_some(2 * pairs)
    }

    /// Tells the rings which of them carry frames.
    fn enable_rings(&self) {
        // Without protocol features there is no message for it.
        let always = self.features & feature::PROTOCOL_FEATURES == 0;
        for (ring, setup) in self.setups.iter().enumerate() {
            self.rings.enable_ring(ring, setup.enabled || always);
        }
    }

    /// Has all workers follow the changes since the last call.
    pub(super) fn announce(&self) {
        self.rings.set_caps(self.caps());
        self.rings.announce();
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
            Request::GetProtocolFeatures => Reply::Number(protocol::offered(self.config.plain)),
            Request::GetQueueNum => Reply::Number(2 * self.config.queues as u64 + 1),
            Request::GetMaxMemorySlots => Reply::Number(REGIONS_MAX as u64),
            Request::GetRingBase { ring } => self.stop(ring)?,
            Request::GetConfig { offset, size, flags } => self.config_space(offset, size, flags),
            // Answered, unlike others that set something.
            Request::SetLog { size, offset } => {
                self.set_log(descriptors.pop().ok_or(Refused)?, size, offset)?;
                Reply::Number(0)
            }
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
                self.rings.use_pairs(PAIRS_MAX);
                self.enable_rings();
                self.set_memory((*self.memory).clone());
            }
            Request::SetProtocolFeatures(bits) => {
                self.protocol = subset(bits, protocol::offered(self.config.plain))?;
            }
            Request::Acknowledge => {}
            Request::SetMemoryTable(places) => self.replace_memory(&places, descriptors)?,
            Request::AddMemoryRegion(place) => self.add_memory(place, descriptors)?,
            Request::RemoveMemoryRegion(place) => {
                let mut memory = (*self.memory).clone();
                if !memory.remove(place) {
                    return Err(Refused);
                }
                self.set_memory(memory);
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
            Request::EnableRing { ring, enabled } => {
                self.setup(ring)?.enabled = enabled;
                self.enable_rings();
            }
            Request::SetBackendChannel => self.backend_channel = Some(descriptors.pop().ok_or(Refused)?),
            Request::SetLogSignal => {
                self.log_signal = Some(Arc::new(descriptors.pop().ok_or(Refused)?));
                if let Some((place, file)) = self.log.as_ref().map(|log| log.place()) {
                    let file = file.try_clone_to_owned().map_err(|_| Refused)?;
                    self.set_log(file, place.size, place.offset)?;
                }
            }
            Request::ResetDevice => self.reset(),
            _ => return Err(Refused),
        }
        Ok(())
    }

    /// Requests that set up a device like this one, each with its descriptors; rings that are broken by their
    /// content stay out of service.
    pub(super) fn requests(&self) -> Vec<(Request, Option<BorrowedFd<'_>>)> {
        let mut all = vec![
            (Request::SetFeatures(self.features), None),
            (Request::SetProtocolFeatures(self.protocol), None),
        ];
        let channel = self.backend_channel.as_ref();
        all.extend(channel.map(|channel| (Request::SetBackendChannel, Some(channel.as_fd()))));
        if let Some((place, file)) = self.log.as_ref().map(|log| log.place()) {
            all.push((Request::SetLog { size: place.size, offset: place.offset }, Some(file)));
        }
        let signal = self.log_signal.as_ref();
        all.extend(signal.map(|signal| (Request::SetLogSignal, Some(signal.as_fd()))));
        all.extend(self.memory.regions().map(|(place, file)| (Request::AddMemoryRegion(place), Some(file))));
        for (ring, setup) in (0..).zip(&self.setups) {
            let RingSetup { size, addresses, base, kick, call, error, enabled, unplaced } = setup;
            let position = self.rings.position(ring as usize);
            let is_complete = size.is_some() && addresses.is_some() && kick.is_some();
            let is_broken = position.is_none() && is_complete && !unplaced;
            let (base, enabled) = (position.unwrap_or(*base).into(), *enabled);
            all.extend([
                (Request::SetRingBase { ring, base }, None),
                (Request::EnableRing { ring, enabled }, None),
            ]);
            all.extend(size.map(|size| (Request::SetRingSize { ring, size: size.into() }, None)));
            all.extend(addresses.map(|addresses| (Request::SetRingAddresses(addresses), None)));
            // The kick last: the ring is complete by it.
            let kick = kick.as_ref().filter(|_| !is_broken);
            for (kind, descriptor) in [
                (Descriptor::Call, call.as_ref()),
                (Descriptor::Error, error.as_ref()),
                (Descriptor::Kick, kick),
            ] {
                let request = Request::SetRingDescriptor { kind, ring, present: true };
                all.extend(descriptor.map(|descriptor| (request, Some(descriptor.as_fd()))));
            }
        }
        all
    }

    /// Number of pairs by which frames go to the guest.
    pub(super) fn pairs_in_use(&self) -> usize {
        self.rings.pairs_in_use()
    }

    fn setup(&mut self, ring: u32) -> Result<&mut RingSetup, Refused> {
        self.setups.get_mut(ring as usize).ok_or(Refused)
    }

    /// Number of rings broken by their description since the last call.
    pub(super) fn take_broken(&mut self) -> u64 {
        std::mem::take(&mut self.broken)
    }

    /// Changes a ring's description, which takes the ring out of service, and into service if it is complete.
    fn change(&mut self, ring: u32, change: impl FnOnce(&mut RingSetup)) -> Result<(), Refused> {
        self.setup(ring)?;
        self.take_out(ring as usize);
        let setup = self.setup(ring)?;
        change(setup);
        self.take_in(ring as usize);
        Ok(())
    }

    /// Takes a ring into service if its description is complete. Without a place it is broken, until it has
    /// one ([`Device::set_memory`]).
    fn take_in(&mut self, ring: usize) {
        if self.start(ring).is_err() {
            self.rings.report_broken(ring);
            self.broken += 1;
        }
    }

    /// Starts a ring if its description is complete.
    fn start(&mut self, ring: usize) -> Result<(), RingError> {
        let setup = &self.setups[ring];
        let (Some(size), Some(addresses), Some(_)) = (setup.size, setup.addresses, &setup.kick) else {
            return Ok(());
        };
        let RingAddresses { descriptors, available, used, logged, .. } = addresses;
        let indirect = self.features & feature::INDIRECT_DESC != 0;
        let event_index = self.features & feature::EVENT_IDX != 0;
        let layout = Layout { size, descriptors, available, used, indirect, event_index, logged };
        let role = if self.control_ring() == Some(ring) { Role::Control } else { Role::of_pair(ring) };
        let started = self.rings.start_ring(ring, role, layout, self.format());
        self.setups[ring].unplaced = started.is_err();
        started
    }

    /// Takes a ring out of service; it goes on where it was when it is taken in again.
    fn take_out(&mut self, ring: usize) {
        self.setups[ring].unplaced = false;
        if let Some(next) = self.rings.stop_ring(ring) {
            self.setups[ring].base = next;
        }
    }

    /// GET_VRING_BASE: stops a ring, which is set up anew afterwards but for its error descriptor: QEMU sends
    /// that at the begin of a connection alone, and libvhost-user keeps it too.
    fn stop(&mut self, ring: u32) -> Result<Reply, Refused> {
        self.setup(ring)?;
        let index = ring as usize;
        self.take_out(index);
        self.forget_notifications(index);
        Ok(Reply::RingBase { ring, base: u32::from(self.setups[index].base) })
    }

    /// Forgets a ring's kick and call.
    fn forget_notifications(&mut self, ring: usize) {
        let setup = &mut self.setups[ring];
        (setup.kick, setup.call) = (None, None);
        self.rings.set_kick(ring, None);
        self.rings.set_call(ring, None);
    }

    fn set_descriptor(
        &mut self,
        kind: Descriptor,
        ring: u32,
        descriptor: Option<OwnedFd>,
    ) -> Result<(), Refused> {
        let descriptor = descriptor.map(Arc::new);
        let setup = self.setup(ring)?;
        let index = ring as usize;
        match kind {
            Descriptor::Kick => {
                // Without one a ring would have to be polled.
                let descriptor = descriptor.ok_or(Refused)?;
                self.rings.set_kick(index, Some(descriptor.clone()));
                self.change(ring, |setup| setup.kick = Some(descriptor))?;
            }
            Descriptor::Call => {
                setup.call.clone_from(&descriptor);
                self.rings.set_call(index, descriptor);
            }
            Descriptor::Error => {
                setup.error.clone_from(&descriptor);
                self.rings.set_error(index, descriptor);
            }
        }
        Ok(())
    }

    fn set_log(&mut self, file: OwnedFd, size: u64, offset: u64) -> Result<(), Refused> {
        let signal = self.log_signal.clone().map(Signal::new);
        let log = DirtyLog::map(file, size, offset, signal).map_err(|_| Refused)?;
        self.log = Some(Arc::new(log));
        self.set_memory((*self.memory).clone());
        Ok(())
    }

    fn set_memory(&mut self, mut memory: GuestMemory) {
        let logs = self.features & feature::LOG_ALL != 0;
        memory.set_log(self.log.clone().filter(|_| logs));
        self.memory = Arc::new(memory);
        for (ring, next) in self.rings.set_memory(&self.memory) {
            (self.setups[ring].base, self.setups[ring].unplaced) = (next, true);
        }
        for ring in 0..self.setups.len() {
            if self.setups[ring].unplaced {
                // An error: it has no place yet, which is reported once.
                let _ = self.start(ring);
            }
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
        self.set_memory(memory);
        Ok(())
    }

    fn add_memory(&mut self, place: RegionPlace, files: &mut Vec<OwnedFd>) -> Result<(), Refused> {
        let file = files.pop().ok_or(Refused)?;
        let mut memory = (*self.memory).clone();
        map(&mut memory, &file, place)?;
        self.set_memory(memory);
        Ok(())
    }

    /// RESET_DEVICE: as at the begin of the connection, but for the memory and the monitor's descriptors.
    fn reset(&mut self) {
        for ring in 0..self.setups.len() {
            self.take_out(ring);
            self.forget_notifications(ring);
            // QEMU sends it at the begin of a connection alone.
            let error = self.setups[ring].error.take();
            self.setups[ring] = RingSetup { error, ..RingSetup::default() };
        }
        self.features = 0;
        self.enable_rings();
        self.rings.note_reset();
    }

    /// A part of `struct virtio_net_config`.
    fn config_space(&self, offset: u32, size: u32, flags: u32) -> Reply {
        let mut space = [0_u8; CONFIG_LEN];
        space[..6].copy_from_slice(&self.config.mac.0);
        // Status: the link is up.
        space[6] = 1;
        space[8..10].copy_from_slice(&(self.config.queues as u16).to_le_bytes());
        space[10..12].copy_from_slice(&self.config.mtu.to_le_bytes());
        let begin = offset as usize;
        let part = begin.checked_add(size as usize).and_then(|end| space.get(begin..end));
        Reply::Config { offset, flags, bytes: part.unwrap_or_default().to_vec() }
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
