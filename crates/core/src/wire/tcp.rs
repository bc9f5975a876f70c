//! TCP headers (RFC 9293) with the options a host uses: maximum segment size, window scale and timestamps
//! (RFC 7323), selective acknowledgements (RFC 2018). Other options are skipped on receipt.
//!
//! `emit` lays options out as Linux does, because its receive path has a short cut for exactly this form: the
//! timestamp option, when alone, follows two NOPs, so that every field is aligned.

use super::{u16_at, u32_at};
use crate::counters::DropReason;
use core::ops::{Add, AddAssign, BitOr, BitOrAssign, Sub};

#[cfg(test)]
mod tests;

/// A sequence number. Comparisons are those of RFC 9293 section 3.4, modulo 2^32: right for numbers less than
/// 2^31 apart, and no order (not transitive), hence methods and not `PartialOrd`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Seq(pub u32);

impl Seq {
    /// Whether `self` is before `other`.
    pub const fn lt(self, other: Self) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }

    /// Whether `self` is before `other` or equal.
    pub const fn le(self, other: Self) -> bool {
        self.0.wrapping_sub(other.0) as i32 <= 0
    }

    /// Whether `self` is after `other`.
    pub const fn gt(self, other: Self) -> bool {
        self.0.wrapping_sub(other.0) as i32 > 0
    }

    /// Whether `self` is after `other` or equal.
    pub const fn ge(self, other: Self) -> bool {
        self.0.wrapping_sub(other.0) as i32 >= 0
    }
}

/// A range of sequence space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeqRange {
    /// First sequence number.
    pub start: Seq,
    /// Length, in sequence numbers.
    pub len: u32,
}

impl Add<u32> for Seq {
    type Output = Self;
    fn add(self, n: u32) -> Self {
        Self(self.0.wrapping_add(n))
    }
}

impl AddAssign<u32> for Seq {
    fn add_assign(&mut self, n: u32) {
        *self = *self + n;
    }
}

impl Sub<u32> for Seq {
    type Output = Self;
    fn sub(self, n: u32) -> Self {
        Self(self.0.wrapping_sub(n))
    }
}

impl Sub for Seq {
    type Output = i32;
    fn sub(self, other: Self) -> i32 {
        self.0.wrapping_sub(other.0) as i32
    }
}

/// Control bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct TcpFlags(pub u8);

impl TcpFlags {
    /// No flag at all.
    pub const NONE: Self = Self(0);
    /// No more data from the sender.
    pub const FIN: Self = Self(0x01);
    /// Synchronise sequence numbers.
    pub const SYN: Self = Self(0x02);
    /// Reset the connection.
    pub const RST: Self = Self(0x04);
    /// Push function.
    pub const PSH: Self = Self(0x08);
    /// The acknowledgement number is significant.
    pub const ACK: Self = Self(0x10);
    /// The urgent pointer is significant.
    pub const URG: Self = Self(0x20);
    /// ECN echo.
    pub const ECE: Self = Self(0x40);
    /// Congestion window reduced.
    pub const CWR: Self = Self(0x80);

    /// Whether all bits of `other` are set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether any bit of `other` is set.
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

impl BitOr for TcpFlags {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for TcpFlags {
    fn bitor_assign(&mut self, other: Self) {
        *self = *self | other;
    }
}

/// One block of a SACK option (RFC 2018, section 3), as received: its edges may be in any order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SackBlock {
    /// First sequence number of the block.
    pub left: Seq,
    /// Sequence number that follows the last one of the block.
    pub right: Seq,
}

impl SackBlock {
    /// No sequence number at all.
    const EMPTY: Self = Self { left: Seq(0), right: Seq(0) };

    /// Whether `other` lies within this block.
    pub fn contains(self, other: Self) -> bool {
        self.left.le(other.left) && other.right.le(self.right)
    }
}

/// Selective acknowledgement blocks, in the order of the option.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SackBlocks {
    // Entries from `len` on stay zero, so that derived equality is right.
    blocks: [SackBlock; Self::MAX],
    len: u8,
}

impl SackBlocks {
    /// As many as the option space holds (RFC 2018 section 3); three beside timestamps.
    pub const MAX: usize = 4;

    /// No blocks.
    pub const EMPTY: Self = Self { blocks: [SackBlock::EMPTY; Self::MAX], len: 0 };

    /// Adds a block; false, and nothing is added, if there are [`SackBlocks::MAX`] already.
    pub fn push(&mut self, block: SackBlock) -> bool {
        let Some(slot) = self.blocks.get_mut(usize::from(self.len)) else { return false };
        *slot = block;
        self.len += 1;
        true
    }

    /// The blocks.
    pub fn as_slice(&self) -> &[SackBlock] {
        &self.blocks[..usize::from(self.len)]
    }

    /// The blocks sorted by sequence number from `base` on.
    #[must_use]
    pub fn ascending(mut self, base: Seq) -> Self {
        self.blocks[..usize::from(self.len)].sort_unstable_by_key(|block| block.left - base);
        self
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Options of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TcpOptions {
    /// Maximum segment size in bytes.
    pub mss: Option<u16>,
    /// Window scale, a shift of at most 14: larger values are received and sent as 14 (RFC 7323 section 2.3).
    pub window_scale: Option<u8>,
    /// Selective acknowledgements are understood.
    pub sack_permitted: bool,
    /// Timestamp value and echo reply.
    pub timestamps: Option<(u32, u32)>,
    /// Selective acknowledgements. `emit` writes as many as fit beside the other options, in order.
    pub sack: SackBlocks,
}

/// The largest window scale.
pub const WINDOW_SCALE_MAX: u8 = 14;

const END: u8 = 0;
const NOP: u8 = 1;
const MSS: u8 = 2;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const TIMESTAMPS: u8 = 8;

impl TcpOptions {
    /// Most bytes of options a header holds.
    pub const LEN_MAX: usize = 40;

    /// Parses the option bytes of a header.
    fn parse(mut rest: &[u8]) -> Result<Self, DropReason> {
        const BAD: DropReason = DropReason::MalformedTcp;
        let mut options = Self::default();
        while let [kind, after @ ..] = rest {
            match *kind {
                END => break,
                NOP => {
                    rest = after;
                    continue;
                }
                _ => {}
            }
            // The length counts kind and length bytes too.
            let len = usize::from(*after.first().ok_or(BAD)?);
            if len < 2 {
                return Err(BAD);
            }
            let (option, next) = rest.split_at_checked(len).ok_or(BAD)?;
            rest = next;
            match (*kind, &option[2..]) {
                (MSS, &[a, b]) => options.mss = Some(u16::from_be_bytes([a, b])),
                (WINDOW_SCALE, &[shift]) => options.window_scale = Some(shift.min(WINDOW_SCALE_MAX)),
                (SACK_PERMITTED, []) => options.sack_permitted = true,
                (TIMESTAMPS, pair) if pair.len() == 8 => {
                    options.timestamps = u32_at(pair, 0).zip(u32_at(pair, 4));
                }
                (SACK, blocks) => options.sack = parse_sack(blocks).ok_or(BAD)?,
                (MSS | WINDOW_SCALE | SACK_PERMITTED | TIMESTAMPS, _) => return Err(BAD),
                _ => {}
            }
        }
        Ok(options)
    }

    /// Length in bytes of everything but SACK blocks, padded.
    const fn fixed_len(&self) -> usize {
        let mss = if self.mss.is_some() { 4 } else { 0 };
        // SACK-permitted takes the place of the two NOPs before timestamps.
        let timestamps = if self.timestamps.is_some() {
            12
        } else if self.sack_permitted {
            4
        } else {
            0
        };
        let scale = if self.window_scale.is_some() { 4 } else { 0 };
        mss + timestamps + scale
    }

    /// Number of SACK blocks that fit beside the other options.
    fn sack_count(&self) -> usize {
        let room = Self::LEN_MAX - self.fixed_len();
        self.sack.as_slice().len().min((room - 4) / 8)
    }

    /// Length in bytes as emitted, a multiple of 4, at most [`TcpOptions::LEN_MAX`].
    pub fn len(&self) -> usize {
        let sack = match self.sack_count() {
            0 => 0,
            n => 4 + 8 * n,
        };
        self.fixed_len() + sack
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes the options to the start of `out`, which holds [`TcpOptions::len`] bytes.
    fn emit(&self, out: &mut [u8]) {
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        if let Some(mss) = self.mss {
            put(&[MSS, 4]);
            put(&mss.to_be_bytes());
        }
        match (self.sack_permitted, self.timestamps) {
            (true, _) if self.timestamps.is_some() => put(&[SACK_PERMITTED, 2]),
            (true, _) => put(&[NOP, NOP, SACK_PERMITTED, 2]),
            (false, Some(_)) => put(&[NOP, NOP]),
            (false, None) => {}
        }
        if let Some((value, echo)) = self.timestamps {
            put(&[TIMESTAMPS, 10]);
            put(&value.to_be_bytes());
            put(&echo.to_be_bytes());
        }
        if let Some(shift) = self.window_scale {
            put(&[NOP, WINDOW_SCALE, 3, shift.min(WINDOW_SCALE_MAX)]);
        }
        let count = self.sack_count();
        if count > 0 {
            put(&[NOP, NOP, SACK, 2 + 8 * count as u8]);
            for SackBlock { left, right } in &self.sack.as_slice()[..count] {
                put(&left.0.to_be_bytes());
                put(&right.0.to_be_bytes());
            }
        }
    }
}

/// The blocks of a SACK option: one to four pairs.
fn parse_sack(data: &[u8]) -> Option<SackBlocks> {
    let (pairs, rest) = data.as_chunks::<8>();
    if pairs.is_empty() || !rest.is_empty() {
        return None;
    }
    let mut sack = SackBlocks::EMPTY;
    for pair in pairs {
        // Cannot be full: 40 bytes of options hold four.
        sack.push(SackBlock { left: Seq(u32_at(pair, 0)?), right: Seq(u32_at(pair, 4)?) });
    }
    Some(sack)
}

/// The header of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpHeader {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Sequence number of the first byte of payload, or of SYN.
    pub seq: Seq,
    /// Acknowledgement number, if [`TcpFlags::ACK`] is set.
    pub ack: Seq,
    /// Control bits.
    pub flags: TcpFlags,
    /// Window as on the wire, not scaled.
    pub window: u16,
    /// Urgent pointer, if [`TcpFlags::URG`] is set.
    pub urgent: u16,
    /// Options of the segment.
    pub options: TcpOptions,
}

impl TcpHeader {
    /// Length in bytes without options.
    pub const LEN: usize = 20;

    /// Length in bytes with as many options as a header holds.
    pub const LEN_MAX: usize = Self::LEN + TcpOptions::LEN_MAX;

    /// Offset of the checksum field in the header, bytes.
    pub const CHECKSUM_OFFSET: usize = 16;

    /// The header and its payload. The checksum is not verified.
    ///
    /// # Errors
    /// [`DropReason::MalformedTcp`].
    pub fn parse(segment: &[u8]) -> Result<(Self, &[u8]), DropReason> {
        const BAD: DropReason = DropReason::MalformedTcp;
        let fixed = segment.first_chunk::<{ Self::LEN }>().ok_or(BAD)?;
        let header_len = usize::from(fixed[12] >> 4) * 4;
        let options = segment.get(Self::LEN..header_len).ok_or(BAD)?;
        let header = Self {
            src_port: u16_at(fixed, 0).ok_or(BAD)?,
            dst_port: u16_at(fixed, 2).ok_or(BAD)?,
            seq: Seq(u32_at(fixed, 4).ok_or(BAD)?),
            ack: Seq(u32_at(fixed, 8).ok_or(BAD)?),
            flags: TcpFlags(fixed[13]),
            window: u16_at(fixed, 14).ok_or(BAD)?,
            urgent: u16_at(fixed, 18).ok_or(BAD)?,
            options: TcpOptions::parse(options)?,
        };
        Ok((header, &segment[header_len..]))
    }

    /// Length in bytes as emitted, a multiple of 4, at most [`TcpHeader::LEN_MAX`].
    pub fn header_len(&self) -> usize {
        Self::LEN + self.options.len()
    }

    /// Writes the header to the start of `out`, the checksum field as 0.
    ///
    /// # Panics
    /// If `out` is shorter than [`TcpHeader::header_len`].
    pub fn emit(&self, out: &mut [u8]) {
        let len = self.header_len();
        let out = &mut out[..len];
        out[..2].copy_from_slice(&self.src_port.to_be_bytes());
        out[2..4].copy_from_slice(&self.dst_port.to_be_bytes());
        out[4..8].copy_from_slice(&self.seq.0.to_be_bytes());
        out[8..12].copy_from_slice(&self.ack.0.to_be_bytes());
        out[12] = (len as u8 / 4) << 4;
        out[13] = self.flags.0;
        out[14..16].copy_from_slice(&self.window.to_be_bytes());
        out[16..18].fill(0);
        out[18..20].copy_from_slice(&self.urgent.to_be_bytes());
        self.options.emit(&mut out[Self::LEN..]);
    }
}
