//! Messages of vhost-user: their wire form.
//!
//! Each is `u32 request, u32 flags, u32 size` and `size` bytes, in the machine's byte order, on a stream
//! whose descriptors come with the first byte of a message. Source: "Vhost-user Protocol", a page of QEMU's
//! documentation (docs/interop/vhost-user.rst).

use crate::virtio::memory::RegionPlace;

/// Bytes in front of the payload.
pub(super) const HEADER_LEN: usize = 12;
/// Longest payload that is taken, in bytes: a table of [`TABLE_MAX`] regions, with room.
pub(super) const PAYLOAD_MAX: usize = 2048;
/// Most regions in one table; also the most descriptors of a message.
pub(super) const TABLE_MAX: usize = 32;
/// Bytes of a region in a message.
const REGION_LEN: usize = 32;
/// Bytes of the device's configuration space that a message may name.
pub(super) const CONFIG_LEN: usize = 256;

/// Flags of a header: version 1, a reply, and a request that wants one.
const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const REPLY: u32 = 4;
const NEEDS_REPLY: u32 = 8;

/// Bit in the payload of a ring's descriptor: there is none.
const NO_DESCRIPTOR: u64 = 1 << 8;

/// Flag of a ring's addresses: writes to the used area are logged (VHOST_VRING_F_LOG).
const LOGGED: u32 = 1;

/// Header of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) request: u32,
    /// An answer is wanted, also to a request that has none of its own.
    pub(super) needs_reply: bool,
    /// Bytes of payload.
    pub(super) size: usize,
}

impl Header {
    /// The header in these bytes; `None` if it cannot be one, so that the stream is lost.
    pub(super) fn read(bytes: &[u8; HEADER_LEN]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let (request, flags, size) = (fields.u32()?, fields.u32()?, fields.u32()? as usize);
        let sound = flags & VERSION_MASK == VERSION && flags & REPLY == 0 && size <= PAYLOAD_MAX;
        sound.then_some(Self { request, needs_reply: flags & NEEDS_REPLY != 0, size })
    }
}

/// Kinds of descriptor that belong to a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Descriptor {
    /// Written by the driver: there are buffers.
    Kick,
    /// Written by the device: there are used buffers.
    Call,
    /// Written by the device: the ring is broken.
    Error,
}

/// A request of the monitor's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Request {
    GetFeatures,
    SetFeatures(u64),
    GetProtocolFeatures,
    SetProtocolFeatures(u64),
    GetQueueNum,
    /// SET_OWNER, RESET_OWNER, SEND_RARP, NET_SET_MTU, SET_CONFIG: nothing is to be done.
    Acknowledge,
    SetMemoryTable(Vec<RegionPlace>),
    GetMaxMemorySlots,
    AddMemoryRegion(RegionPlace),
    RemoveMemoryRegion(RegionPlace),
    SetRingSize {
        ring: u32,
        size: u32,
    },
    SetRingAddresses(RingAddresses),
    SetRingBase {
        ring: u32,
        base: u32,
    },
    GetRingBase {
        ring: u32,
    },
    SetRingDescriptor {
        kind: Descriptor,
        ring: u32,
        /// Whether the message says that a descriptor comes with it.
        present: bool,
    },
    EnableRing {
        ring: u32,
        enabled: bool,
    },
    SetBackendChannel,
    /// The log of dirty pages, in `size` bytes of a file from an offset on.
    SetLog {
        size: u64,
        offset: u64,
    },
    /// The descriptor by which marks in it are notified.
    SetLogSignal,
    GetConfig {
        offset: u32,
        size: u32,
        flags: u32,
    },
    ResetDevice,
    /// Any other.
    Unknown,
}

/// Addresses of a ring, as the monitor sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RingAddresses {
    pub(super) ring: u32,
    pub(super) descriptors: u64,
    pub(super) used: u64,
    pub(super) available: u64,
    /// The used area's guest-physical address, if writes to it are logged.
    pub(super) logged: Option<u64>,
}

impl Request {
    /// The request with this number and payload; `None` if the payload is malformed.
    pub(super) fn read(number: u32, payload: &[u8]) -> Option<Self> {
        let mut fields = Fields(payload);
        Some(match number {
            1 => Self::GetFeatures,
            2 => Self::SetFeatures(fields.u64()?),
            3 | 4 | 19 | 20 | 25 => Self::Acknowledge,
            5 => Self::SetMemoryTable(fields.table()?),
            6 => Self::SetLog { size: fields.u64()?, offset: fields.u64()? },
            7 => Self::SetLogSignal,
            8 => Self::SetRingSize { ring: fields.u32()?, size: fields.u32()? },
            9 => {
                let (ring, flags) = (fields.u32()?, fields.u32()?);
                let (descriptors, used, available) = (fields.u64()?, fields.u64()?, fields.u64()?);
                let logged = Some(fields.u64()?).filter(|_| flags & LOGGED != 0);
                Self::SetRingAddresses(RingAddresses { ring, descriptors, used, available, logged })
            }
            10 => Self::SetRingBase { ring: fields.u32()?, base: fields.u32()? },
            11 => Self::GetRingBase { ring: fields.u32()? },
            12 => fields.descriptor(Descriptor::Kick)?,
            13 => fields.descriptor(Descriptor::Call)?,
            14 => fields.descriptor(Descriptor::Error)?,
            15 => Self::GetProtocolFeatures,
            16 => Self::SetProtocolFeatures(fields.u64()?),
            17 => Self::GetQueueNum,
            18 => Self::EnableRing { ring: fields.u32()?, enabled: fields.u32()? != 0 },
            21 => Self::SetBackendChannel,
            24 => Self::GetConfig { offset: fields.u32()?, size: fields.u32()?, flags: fields.u32()? },
            34 => Self::ResetDevice,
            36 => Self::GetMaxMemorySlots,
            37 => Self::AddMemoryRegion(fields.single_region()?),
            38 => Self::RemoveMemoryRegion(fields.single_region()?),
            _ => Self::Unknown,
        })
    }
}

impl Request {
    /// Number of descriptors that come with it.
    pub(super) fn descriptors(&self) -> usize {
        match self {
            Self::SetMemoryTable(places) => places.len(),
            Self::SetRingDescriptor { present, .. } => usize::from(*present),
            Self::AddMemoryRegion(_) | Self::SetBackendChannel | Self::SetLog { .. } | Self::SetLogSignal => {
                1
            }
            _ => 0,
        }
    }

    /// The message of a request that sets something and [`Request::read`] reads; `None` for any other.
    pub(super) fn message(&self) -> Option<Vec<u8>> {
        let words =
            |numbers: &[u64]| numbers.iter().flat_map(|number| number.to_ne_bytes()).collect::<Vec<u8>>();
        let of_ring = |ring: u32, value: u32| [ring.to_ne_bytes(), value.to_ne_bytes()].concat();
        let (number, payload): (u32, Vec<u8>) = match *self {
            Self::SetFeatures(bits) => (2, words(&[bits])),
            Self::SetRingSize { ring, size } => (8, of_ring(ring, size)),
            Self::SetRingAddresses(RingAddresses { ring, descriptors, used, available, logged }) => {
                let flags = if logged.is_some() { LOGGED } else { 0 };
                let addresses = [descriptors, used, available, logged.unwrap_or(0)];
                (9, [of_ring(ring, flags), words(&addresses)].concat())
            }
            Self::SetLog { size, offset } => (6, words(&[size, offset])),
            Self::SetLogSignal => (7, Vec::new()),
            Self::SetRingBase { ring, base } => (10, of_ring(ring, base)),
            Self::SetRingDescriptor { kind, ring, present } => {
                let number = match kind {
                    Descriptor::Kick => 12,
                    Descriptor::Call => 13,
                    Descriptor::Error => 14,
                };
                (number, words(&[u64::from(ring) | if present { 0 } else { NO_DESCRIPTOR }]))
            }
            Self::SetProtocolFeatures(bits) => (16, words(&[bits])),
            Self::EnableRing { ring, enabled } => (18, of_ring(ring, enabled.into())),
            Self::SetBackendChannel => (21, Vec::new()),
            Self::AddMemoryRegion(RegionPlace { guest, size, user, offset }) => {
                (37, words(&[0, guest, size, user, offset]))
            }
            _ => return None,
        };
        let header: Vec<u8> =
            [number, VERSION, payload.len() as u32].into_iter().flat_map(u32::to_ne_bytes).collect();
        Some([header, payload].concat())
    }
}

/// Answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reply {
    /// A number: features, a bound, or 0 for success and 1 for failure.
    Number(u64),
    /// State of a ring that was stopped.
    RingBase { ring: u32, base: u32 },
    /// A part of the configuration space; empty if it was out of range.
    Config { offset: u32, flags: u32, bytes: Vec<u8> },
}

impl Reply {
    /// The message that answers request number `request`.
    pub(super) fn message(&self, request: u32) -> Vec<u8> {
        let mut payload = Vec::new();
        match self {
            Self::Number(number) => payload.extend(number.to_ne_bytes()),
            Self::RingBase { ring, base } => {
                payload.extend(ring.to_ne_bytes());
                payload.extend(base.to_ne_bytes());
            }
            Self::Config { offset, flags, bytes } => {
                for field in [*offset, bytes.len() as u32, *flags] {
                    payload.extend(field.to_ne_bytes());
                }
                payload.extend(bytes);
            }
        }
        let mut message = Vec::with_capacity(HEADER_LEN + payload.len());
        for field in [request, VERSION | REPLY, payload.len() as u32] {
            message.extend(field.to_ne_bytes());
        }
        message.extend(payload);
        message
    }
}

/// Rest of a payload.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_ne_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_ne_bytes)
    }

    fn region(&mut self) -> Option<RegionPlace> {
        Some(RegionPlace { guest: self.u64()?, size: self.u64()?, user: self.u64()?, offset: self.u64()? })
    }

    /// Number of regions, padding, regions; UML sends padding behind them, too.
    fn table(&mut self) -> Option<Vec<RegionPlace>> {
        let (count, _padding) = (self.u32()? as usize, self.u32()?);
        if count > TABLE_MAX || self.0.len() < count * REGION_LEN {
            return None;
        }
        (0..count).map(|_| self.region()).collect()
    }

    /// Padding and one region.
    fn single_region(&mut self) -> Option<RegionPlace> {
        let _padding = self.u64()?;
        self.region()
    }

    fn descriptor(&mut self, kind: Descriptor) -> Option<Request> {
        let word = self.u64()?;
        let (ring, present) = ((word & 0xff) as u32, word & NO_DESCRIPTOR == 0);
        Some(Request::SetRingDescriptor { kind, ring, present })
    }
}

#[cfg(test)]
mod tests;
