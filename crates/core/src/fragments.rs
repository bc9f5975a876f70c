//! Reassembly of the guest's fragments (RFC 791, RFC 8200 section 4.5), in a fixed amount of memory.
//!
//! At most [`DATAGRAMS_MAX`] packets are reassembled at a time, each in a buffer for the longest possible;
//! with all in use the oldest is evicted. A packet has [`LIFETIME_V4`] or [`LIFETIME_V6`] from its first
//! fragment on. A bitmap marks the received bytes, one bit for each eight of them, the unit of offsets, so
//! that a fragment costs the same however many came before.
//!
//! Ambiguous content is never delivered: a fragment that overlaps others, or that contradicts them about the
//! end, condemns the whole packet, together with its later fragments until its lifetime is over (RFC 5722).
//! An exact duplicate is dropped by itself. Neither is an error: each has its reason among the drops.
//!
//! Buffers are allocated at first use and kept.

use crate::counters::{Counters, DropReason};
use crate::time::{Duration, Instant};
use crate::wire::fragment::Fragment;
use crate::wire::ipv4::Ipv4Header;
use crate::wire::ipv6::Ipv6Header;
use std::net::IpAddr;

/// Most packets in reassembly at a time. A guest sends the fragments of one packet in a row, so that even one
/// is mostly enough.
pub const DATAGRAMS_MAX: usize = 16;
/// Lifetime of an incomplete IPv4 packet (RFC 1122 section 3.3.2 has 60 to 120 s, Linux 30).
pub const LIFETIME_V4: Duration = Duration::from_secs(30);
/// Lifetime of an incomplete IPv6 packet (RFC 8200 section 4.5).
pub const LIFETIME_V6: Duration = Duration::from_secs(60);

/// Longest payload behind an IP header, bytes.
const PAYLOAD_MAX: usize = Ipv6Header::PAYLOAD_MAX;
/// Room for the IP header in front of its payload.
const HEADROOM: usize = Ipv6Header::LEN;
/// The unit of offsets, bytes.
const BLOCK: usize = 8;
const WORDS: usize = (PAYLOAD_MAX + 1) / BLOCK / 64;

/// An IP header of either family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IpHeader {
    /// An IPv4 header.
    V4(Ipv4Header),
    /// An IPv6 header; `next_header` is the one of the fragment header.
    V6(Ipv6Header),
}

impl IpHeader {
    fn key(&self, ident: u32) -> Key {
        match self {
            Self::V4(ip) => Key { src: ip.src.into(), dst: ip.dst.into(), protocol: ip.protocol, ident },
            // The protocol may differ between fragments; the first fragment's counts (RFC 8200 section 4.5).
            Self::V6(ip) => Key { src: ip.src.into(), dst: ip.dst.into(), protocol: 0, ident },
        }
    }

    /// Length of the payload in bytes.
    pub(crate) const fn payload_len(&self) -> u16 {
        match self {
            Self::V4(ip) => ip.payload_len,
            Self::V6(ip) => ip.payload_len,
        }
    }

    const fn len(&self) -> usize {
        match self {
            Self::V4(_) => Ipv4Header::LEN,
            Self::V6(_) => Ipv6Header::LEN,
        }
    }

    /// Longest payload, bytes.
    const fn payload_max(&self) -> usize {
        match self {
            Self::V4(_) => Ipv4Header::PAYLOAD_MAX,
            Self::V6(_) => Ipv6Header::PAYLOAD_MAX,
        }
    }

    const fn tos(&mut self) -> &mut u8 {
        match self {
            Self::V4(ip) => &mut ip.tos,
            Self::V6(ip) => &mut ip.traffic_class,
        }
    }

    const fn lifetime(&self) -> Duration {
        match self {
            Self::V4(_) => LIFETIME_V4,
            Self::V6(_) => LIFETIME_V6,
        }
    }

    /// Writes the header of a whole packet with `len` bytes behind it.
    fn emit(&mut self, len: usize, out: &mut [u8]) {
        match self {
            Self::V4(ip) => {
                ip.payload_len = len as u16;
                ip.emit(out);
            }
            Self::V6(ip) => {
                ip.payload_len = len as u16;
                ip.emit(out);
            }
        }
    }
}

/// Fields shared by all fragments of one packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Key {
    src: IpAddr,
    dst: IpAddr,
    protocol: u8,
    ident: u32,
}

/// A reassembled packet, header first, or the beginning of an incomplete one. Its memory must be returned
/// ([`Fragments::give_back`]).
#[derive(Debug)]
pub struct Reassembled {
    /// Its header.
    pub header: IpHeader,
    buffer: Box<[u8]>,
    len: usize,
}

impl Reassembled {
    /// The packet from its IP header on.
    pub fn packet(&self) -> &[u8] {
        &self.buffer[HEADROOM - self.header.len()..HEADROOM + self.len]
    }
}

/// A packet in reassembly.
#[derive(Debug)]
struct Partial {
    key: Key,
    since: Instant,
    until: Instant,
    /// Header of the fragment with offset zero.
    header: Option<IpHeader>,
    /// Whether a fragment was marked "congestion experienced" (RFC 3168 section 5.3).
    congested: bool,
    /// Length of the whole, from the arrival of the last fragment on.
    end: Option<usize>,
    received: usize,
    blocks: [u64; WORDS],
    buffer: Box<[u8]>,
    /// Condemned: none of its content is used.
    condemned: bool,
}

/// All packets in reassembly.
#[derive(Debug, Default)]
pub struct Fragments {
    partial: Vec<Partial>,
    spare: Vec<Box<[u8]>>,
}

impl Fragments {
    /// Adds a fragment, `data` being the bytes behind its headers; returns the packet when it is complete.
    /// Drops other than that of the fragment itself are counted here.
    ///
    /// # Errors
    /// The reason of the drop: [`DropReason::FragmentMalformed`], [`DropReason::FragmentOverlap`] or
    /// [`DropReason::FragmentDuplicate`].
    pub fn insert(
        &mut self,
        counters: &mut Counters,
        now: Instant,
        header: IpHeader,
        fragment: Fragment,
        data: &[u8],
    ) -> Result<Option<Reassembled>, DropReason> {
        let start = usize::from(fragment.offset);
        let end = start + data.len();
        let uneven = fragment.more && !data.len().is_multiple_of(BLOCK);
        if data.is_empty() || uneven || end > header.payload_max() {
            return Err(DropReason::FragmentMalformed);
        }
        let key = header.key(fragment.ident);
        let place = match self.partial.iter().position(|partial| partial.key == key && partial.until > now) {
            Some(place) => place,
            None => self.begin(counters, now, key, header.lifetime()),
        };
        let Some(partial) = self.partial.get_mut(place) else { return Err(DropReason::FragmentMalformed) };
        partial.insert(header, start, !fragment.more, data)?;
        if !partial.is_complete() {
            return Ok(None);
        }
        let Partial { header, congested, buffer, received, .. } = self.partial.swap_remove(place);
        Ok(self.whole(header, congested, buffer, received))
    }

    /// Takes back the memory of a packet.
    pub fn give_back(&mut self, whole: Reassembled) {
        self.spare.push(whole.buffer);
    }

    /// Drops one timed-out packet and counts it; call until `None`. The result is the packet's beginning as
    /// far as it has arrived, perhaps only the header, for an ICMP error to quote; `None` inside if no error
    /// is due.
    pub fn expire(&mut self, counters: &mut Counters, now: Instant) -> Option<Option<Reassembled>> {
        let place = self.partial.iter().position(|partial| partial.until <= now)?;
        let partial = self.partial.swap_remove(place);
        let there = partial.beginning();
        let Partial { header, congested, buffer, condemned, .. } = partial;
        if condemned {
            self.spare.push(buffer);
            return Some(None);
        }
        counters.drop(DropReason::FragmentTimeout);
        Some(self.whole(header, congested, buffer, there))
    }

    /// Time at which the next incomplete packet expires.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.partial.iter().map(|partial| partial.until).min()
    }

    /// Number of incomplete packets.
    pub fn incomplete(&self) -> usize {
        self.partial.len()
    }

    /// Bytes allocated, now and when nothing is in reassembly; bounded by [`DATAGRAMS_MAX`] packets.
    pub fn allocated(&self) -> usize {
        let buffers = self.partial.len() + self.spare.len();
        buffers * (HEADROOM + PAYLOAD_MAX) + self.partial.capacity() * size_of::<Partial>()
    }

    /// Index of a new packet, if need be in place of the oldest.
    fn begin(&mut self, counters: &mut Counters, now: Instant, key: Key, lifetime: Duration) -> usize {
        if self.partial.len() >= DATAGRAMS_MAX {
            let ages = self.partial.iter().enumerate().map(|(place, partial)| (partial.since, place));
            let oldest = self.partial.swap_remove(ages.min().map_or(0, |(_, place)| place));
            if !oldest.condemned {
                let timely = oldest.until > now;
                let reason = if timely { DropReason::FragmentEvicted } else { DropReason::FragmentTimeout };
                counters.drop(reason);
            }
            self.spare.push(oldest.buffer);
        }
        let made = || vec![0; HEADROOM + PAYLOAD_MAX].into_boxed_slice();
        self.partial.push(Partial {
            key,
            since: now,
            until: now + lifetime,
            header: None,
            congested: false,
            end: None,
            received: 0,
            blocks: [0; WORDS],
            buffer: self.spare.pop().unwrap_or_else(made),
            condemned: false,
        });
        debug_assert!(self.partial.len() <= DATAGRAMS_MAX, "more packets in reassembly than allowed");
        self.partial.len() - 1
    }

    /// The first `len` bytes behind the header as a packet; without a header there is none.
    fn whole(
        &mut self,
        header: Option<IpHeader>,
        congested: bool,
        mut buffer: Box<[u8]>,
        len: usize,
    ) -> Option<Reassembled> {
        let Some(mut header) = header else {
            self.spare.push(buffer);
            return None;
        };
        if congested {
            *header.tos() |= 3;
        }
        let at = HEADROOM - header.len();
        header.emit(len, &mut buffer[at..]);
        Some(Reassembled { header, buffer, len })
    }
}

impl Partial {
    /// Adds `data`, which begins at byte `start` of the packet; `last` if the packet ends with it.
    fn insert(
        &mut self,
        mut header: IpHeader,
        start: usize,
        last: bool,
        data: &[u8],
    ) -> Result<(), DropReason> {
        let end = start + data.len();
        if self.condemned {
            return Err(DropReason::FragmentOverlap);
        }
        debug_assert!(end <= PAYLOAD_MAX, "a fragment behind the end of the longest packet");
        let blocks = start / BLOCK..end.div_ceil(BLOCK);
        let there = blocks.clone().filter(|&block| self.has(block)).count();
        if there == blocks.len() && (!last || self.end == Some(end)) && self.content(start, end) == data {
            return Err(DropReason::FragmentDuplicate);
        }
        let contradicts = match self.end {
            Some(known) => last || end > known,
            None => last && (end.div_ceil(BLOCK)..WORDS * 64).any(|block| self.has(block)),
        };
        if there > 0 || contradicts {
            self.condemned = true;
            return Err(DropReason::FragmentOverlap);
        }
        for block in blocks {
            self.blocks[block / 64] |= 1 << (block % 64);
        }
        self.buffer[HEADROOM + start..HEADROOM + end].copy_from_slice(data);
        self.received += data.len();
        debug_assert!(self.end.is_none_or(|end| self.received <= end), "more bytes than the packet has");
        self.congested |= *header.tos() & 3 == 3;
        if start == 0 {
            self.header = Some(header);
        }
        if last {
            self.end = Some(end);
        }
        Ok(())
    }

    fn has(&self, block: usize) -> bool {
        self.blocks.get(block / 64).is_some_and(|word| word >> (block % 64) & 1 == 1)
    }

    fn content(&self, start: usize, end: usize) -> &[u8] {
        &self.buffer[HEADROOM + start..HEADROOM + end]
    }

    fn is_complete(&self) -> bool {
        self.header.is_some() && self.end == Some(self.received)
    }

    /// Number of contiguous bytes from the beginning.
    fn beginning(&self) -> usize {
        let blocks = (0..WORDS * 64).take_while(|&block| self.has(block)).count();
        (blocks * BLOCK).min(self.end.unwrap_or(usize::MAX))
    }
}

#[cfg(test)]
mod tests;
