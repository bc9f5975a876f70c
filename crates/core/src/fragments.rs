//! Reassembly of what the guest has fragmented (RFC 791, RFC 8200 section 4.5), in a fixed amount of memory.
//!
//! At most [`DATAGRAMS_MAX`] packets are put together at a time, each in a buffer for the largest there is;
//! with all in use the oldest goes. A packet has [`LIFETIME_V4`] or [`LIFETIME_V6`] from its first fragment
//! on. Which bytes are there is known by a bit for each eight of them, the unit of offsets, so that a
//! fragment costs the same however many came before.
//!
//! Content that is not the same from every fragment is never delivered: a fragment that overlaps others, or
//! that contradicts them about the end, condemns the whole packet, and what else comes of it until its time
//! is over (RFC 5722). The very same fragment again is dropped by itself. Neither counts as an error of
//! anybody: each has its reason among the drops.
//!
//! Buffers are made when first needed and kept.

use crate::counters::{Counters, DropReason};
use crate::time::{Duration, Instant};
use crate::wire::fragment::Fragment;
use crate::wire::ipv4::Ipv4Header;
use crate::wire::ipv6::Ipv6Header;
use std::net::IpAddr;

/// Packets being put together at a time. A guest sends the fragments of one packet in a row, so that even one
/// is mostly enough.
pub const DATAGRAMS_MAX: usize = 16;
/// How long fragments are waited for (RFC 1122 section 3.3.2 has 60 to 120 s, Linux 30).
pub const LIFETIME_V4: Duration = Duration::from_secs(30);
/// The same (RFC 8200 section 4.5).
pub const LIFETIME_V6: Duration = Duration::from_secs(60);

/// Longest packet, with its IP header, bytes.
const PACKET_MAX: usize = 65_535;
/// Room for the IP header before what follows it.
const HEADROOM: usize = Ipv6Header::LEN;
/// The unit of offsets, bytes.
const BLOCK: usize = 8;
const WORDS: usize = (PACKET_MAX + 1) / BLOCK / 64;

/// An IP header of either family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IpHeader {
    /// An IPv4 header.
    V4(Ipv4Header),
    /// IPv6; `next_header` is what follows the fragment header.
    V6(Ipv6Header),
}

impl IpHeader {
    fn key(&self, ident: u32) -> Key {
        match self {
            Self::V4(ip) => Key { src: ip.src.into(), dst: ip.dst.into(), protocol: ip.protocol, ident },
            // The protocol may differ between fragments, of which the first counts.
            Self::V6(ip) => Key { src: ip.src.into(), dst: ip.dst.into(), protocol: 0, ident },
        }
    }

    const fn len(&self) -> usize {
        match self {
            Self::V4(_) => Ipv4Header::LEN,
            Self::V6(_) => Ipv6Header::LEN,
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

    /// Writes the header of a whole packet with so many bytes behind it.
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

/// A packet that was put together, header first, or the beginning of one that was not. Its memory is to be
/// given back ([`Fragments::give_back`]).
#[derive(Debug)]
pub struct Reassembled {
    /// Its header.
    pub header: IpHeader,
    buffer: Box<[u8]>,
    len: usize,
}

impl Reassembled {
    /// The packet, header first, then what follows it.
    pub fn packet(&self) -> &[u8] {
        &self.buffer[HEADROOM - self.header.len()..HEADROOM + self.len]
    }
}

/// A packet being put together.
#[derive(Debug)]
struct Partial {
    key: Key,
    since: Instant,
    until: Instant,
    /// Of the fragment with offset zero.
    header: Option<IpHeader>,
    /// One fragment had met congestion (RFC 3168 section 5.3).
    congested: bool,
    /// Length of the whole, once the last fragment is there.
    end: Option<usize>,
    received: usize,
    blocks: [u64; WORDS],
    buffer: Box<[u8]>,
    /// Condemned: nothing of it is used.
    condemned: bool,
}

/// All packets being put together.
#[derive(Debug, Default)]
pub struct Fragments {
    partial: Vec<Partial>,
    spare: Vec<Box<[u8]>>,
}

impl Fragments {
    /// Takes a fragment in, `data` being what follows its headers; gives the packet when it is complete.
    /// Drops other than that of the fragment itself are counted here.
    ///
    /// # Errors
    /// Why it was not used: [`DropReason::FragmentMalformed`], [`DropReason::FragmentOverlap`] or
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
        if data.is_empty() || uneven || end > PACKET_MAX - header.len() {
            return Err(DropReason::FragmentMalformed);
        }
        let key = header.key(fragment.ident);
        let place = match self.partial.iter().position(|partial| partial.key == key && partial.until > now) {
            Some(place) => place,
            None => self.begin(counters, now, key, header.lifetime()),
        };
        let Some(partial) = self.partial.get_mut(place) else { return Err(DropReason::FragmentMalformed) };
        partial.insert(header, (start, end, !fragment.more), data)?;
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

    /// When [`Fragments::expire`] has something to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.partial.iter().map(|partial| partial.until).min()
    }

    /// Bytes of memory in use, now and when nothing is put together; bounded by [`DATAGRAMS_MAX`] packets.
    pub fn allocated(&self) -> usize {
        let buffers = self.partial.len() + self.spare.len();
        buffers * (HEADROOM + PACKET_MAX) + self.partial.capacity() * size_of::<Partial>()
    }

    /// A place for a new packet, made by giving up the oldest if need be.
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
        let made = || vec![0; HEADROOM + PACKET_MAX].into_boxed_slice();
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
    /// Takes in what is from `start` to `end`.
    fn insert(
        &mut self,
        mut header: IpHeader,
        (start, end, last): (usize, usize, bool),
        data: &[u8],
    ) -> Result<(), DropReason> {
        if self.condemned {
            return Err(DropReason::FragmentOverlap);
        }
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

    /// Bytes that are there from the beginning on.
    fn beginning(&self) -> usize {
        let blocks = (0..WORDS * 64).take_while(|&block| self.has(block)).count();
        (blocks * BLOCK).min(self.end.unwrap_or(usize::MAX))
    }
}

#[cfg(test)]
mod tests;
