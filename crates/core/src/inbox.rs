//! Receive batch: datagrams read from a host socket, on their way to the guest.
//!
//! One batch per worker, read only while the link has credit and sent at once. If the link refuses a frame in
//! the middle, the rest stays here and goes first when there is credit again ([`Inbox::deliver`]); nothing
//! more is read meanwhile, so datagrams wait in the kernel and none that was read is lost.
//!
//! Neighbours of one size become one super-datagram (USO) where the link takes such: for a TAP the write
//! costs more than all else. Payload is never copied. Each datagram has a buffer of its own, because neither
//! its length nor the number that the kernel has coalesced is known beforehand; only the used part of a
//! buffer is touched.

use crate::context::{Cx, Platform};
use crate::counters::DropReason;
use crate::egress::fragments::FragmentProgress;
use crate::egress::headers::{ip_header_len, ip_payload_max};
use crate::flow::{FlowKey, Protocol};
use crate::host::{Host, HostError, Received, SEGMENTS_MAX, SEND_BYTES_MAX, SocketId};
use crate::icmp;
use crate::link::NoCredit;
use crate::snapshot::saved::{Invalid, Saved, valid};
use crate::snapshot::v1::{Bytes, InboxV1, ReceivedV1};
use crate::wire::udp::UdpHeader;
use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;

/// Most buffers of one batch, each for a datagram or a coalesced run.
pub(crate) const BATCH: usize = 32;
/// Distance of two buffers in bytes: room for any datagram, and not a multiple of a power of two, so that the
/// beginnings of all do not compete for the same lines of the cache.
const STRIDE: usize = (64 << 10) + 1472;

/// A datagram received on a published port, or several of one size.
#[derive(Debug, Clone, Copy)]
pub struct Arrived<'a> {
    /// Address and port of the sender, as its packet claims.
    pub peer: SocketAddr,
    /// The payload.
    pub payload: &'a [u8],
    /// Size of the datagrams if the kernel has coalesced several (UDP_GRO); the last may be shorter.
    pub segment: Option<u16>,
    /// DSCP and ECN of the packet, as one byte.
    pub tos: u8,
}

/// One batch.
pub(crate) struct Inbox {
    /// None before the first datagram.
    buffers: Box<[u8]>,
    received: [Received; BATCH],
    /// Flow of the datagrams in the batch.
    key: Option<FlowKey>,
    count: usize,
    /// The first datagram that is not sent yet, and the number of its bytes that are.
    next: usize,
    offset: usize,
    /// Progress of the next datagram, if it is sent in fragments.
    progress: FragmentProgress,
}

/// Result of a receive.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Batch {
    pub(crate) count: usize,
    /// Number of datagrams, with coalesced ones counted singly.
    pub(crate) datagrams: usize,
    pub(crate) bytes: usize,
    /// Length of the longest, in bytes.
    pub(crate) longest: usize,
    /// Datagrams dropped by the kernel before these.
    pub(crate) lost: u64,
}

impl Default for Inbox {
    fn default() -> Self {
        Self {
            buffers: Box::default(),
            received: [Received::default(); BATCH],
            key: None,
            count: 0,
            next: 0,
            offset: 0,
            progress: FragmentProgress::default(),
        }
    }
}

/// The buffers of a batch, made at first use. A stack without datagrams needs none, and one that is restored
/// would clear two MiB: those of its predecessor, which the allocator has kept.
fn made(buffers: &mut Box<[u8]>) -> &mut [u8] {
    if buffers.is_empty() {
        // From the kernel page by page, each at its first use.
        *buffers = vec![0; BATCH * STRIDE].into_boxed_slice();
    }
    buffers
}

impl Inbox {
    /// Whether everything has been sent.
    pub(crate) fn is_empty(&self) -> bool {
        self.next == self.count
    }

    /// Reads up to `want` datagrams of the flow `key`. The previous batch must be sent.
    pub(crate) fn receive<H: Host>(
        &mut self,
        host: &mut H,
        key: FlowKey,
        socket: SocketId,
        want: usize,
    ) -> Result<Batch, HostError> {
        debug_assert!(self.is_empty(), "a batch is still on its way");
        let want = want.clamp(1, BATCH);
        let mut into = [const { None }; BATCH];
        for (slot, buffer) in into.iter_mut().zip(made(&mut self.buffers).chunks_exact_mut(STRIDE)) {
            *slot = Some(IoSliceMut::new(buffer));
        }
        let mut into = into.map(|slot| slot.unwrap_or_else(|| IoSliceMut::new(&mut [])));
        let received = &mut self.received[..want];
        let count = host.datagram_recv(socket, &mut into[..want], received)?;
        (self.key, self.count, self.next, self.offset) = (Some(key), count.min(want), 0, 0);
        let mut batch = Batch { count: self.count, ..Batch::default() };
        for received in &self.received[..self.count] {
            batch.bytes += received.len;
            batch.datagrams += received.len.div_ceil(datagram_size(received).max(1)).max(1);
            batch.longest = batch.longest.max(received.len);
            batch.lost += u64::from(received.lost);
        }
        Ok(batch)
    }

    /// Takes the batch out if it has come to a socket that is connected to none: the flow and the sender. It
    /// is gone unless [`Self::pass`] puts it back at once.
    pub(crate) fn take_answer(&mut self) -> Option<(FlowKey, SocketAddr)> {
        let from = self.received[..self.count].get_mut(self.next)?.from.take()?;
        let key = self.key?;
        (self.next, self.key) = (self.count, None);
        Some((key, from))
    }

    /// Puts the datagram that [`Self::take_answer`] has taken back, as one of the flow `key`.
    pub(crate) fn pass(&mut self, key: FlowKey) {
        (self.next, self.key) = (0, Some(key));
    }

    /// Takes a datagram of the flow `key` received on another socket. The previous batch must be sent.
    pub(crate) fn put(&mut self, key: FlowKey, arrived: &Arrived<'_>) {
        debug_assert!(self.is_empty(), "a batch is still on its way");
        let len = arrived.payload.len().min(STRIDE);
        made(&mut self.buffers)[..len].copy_from_slice(&arrived.payload[..len]);
        self.received[0] =
            Received { len, segment: arrived.segment, tos: arrived.tos, ..Received::default() };
        (self.key, self.count, self.next, self.offset) = (Some(key), 1, 0, 0);
    }

    /// Sends the rest of the batch to the guest.
    ///
    /// # Errors
    /// The link has no credit; the rest stays.
    pub(crate) fn deliver<P: Platform>(&mut self, cx: &mut Cx<'_, P>) -> Result<(), NoCredit> {
        let Some(key) = self.key else { return Ok(()) };
        while self.next < self.count {
            if key.protocol == Protocol::Echo {
                let message = &mut self.buffers[self.next * STRIDE..][..self.received[self.next].len];
                icmp::reply(cx, &key, message, &mut self.progress)?;
                (self.next, self.progress) = (self.next + 1, FragmentProgress::default());
            } else {
                self.deliver_udp(cx, &key)?;
            }
        }
        Ok(())
    }

    /// Sends the next datagram, or the next several as one super-datagram.
    fn deliver_udp<P: Platform>(&mut self, cx: &mut Cx<'_, P>, key: &FlowKey) -> Result<(), NoCredit> {
        let max = usize::from(cx.shared.datagram_mtu(cx.now, key.guest.ip()))
            - ip_header_len(key.guest.ip())
            - UdpHeader::LEN;
        let first = self.received[self.next];
        let size = datagram_size(&first);
        if size > max {
            return self.deliver_fragments(cx, key, size);
        }
        let datagrams = if cx.shared.tx.caps.uso && size > 0 {
            (SEND_BYTES_MAX / size).clamp(1, SEGMENTS_MAX)
        } else {
            1
        };
        let mut payload = [IoSlice::new(&[]); BATCH];
        let (mut count, mut room, mut next, mut offset) = (0, datagrams * size, self.next, self.offset);
        loop {
            let here = &self.buffers[next * STRIDE..][offset..self.received[next].len];
            let n = here.len().min(room);
            payload[count] = IoSlice::new(&here[..n]);
            (count, room) = (count + 1, room - n);
            if n < here.len() {
                offset += n;
                break;
            }
            (next, offset) = (next + 1, 0);
            // Shorter than the segment size: the last of a super-datagram.
            let ended = size == 0 || n % size > 0 || room < size || next == self.count;
            if ended || !follows(&self.received[next], size, first.tos) {
                break;
            }
        }
        let segment = u16::try_from(size).ok().filter(|_| datagrams > 1);
        cx.egress().udp(key.to_guest(), first.tos, &payload[..count], segment)?;
        (self.next, self.offset) = (next, offset);
        // One that was begun in fragments goes whole when the MTU of its path is forgotten.
        self.progress = FragmentProgress::default();
        Ok(())
    }
}

impl Inbox {
    /// Sends the next datagram in fragments; `size` is its length if it is one of a coalesced run.
    fn deliver_fragments<P: Platform>(
        &mut self,
        cx: &mut Cx<'_, P>,
        key: &FlowKey,
        size: usize,
    ) -> Result<(), NoCredit> {
        let received = self.received[self.next];
        let rest = &self.buffers[self.next * STRIDE..][self.offset..received.len];
        let datagram = &rest[..rest.len().min(size)];
        if UdpHeader::LEN + datagram.len() > ip_payload_max(key.guest.ip()) {
            cx.shared.counters.drop(DropReason::DatagramTooBig);
        } else {
            let mtu = cx.shared.datagram_mtu(cx.now, key.guest.ip());
            cx.egress().udp_fragments(mtu, key.to_guest(), received.tos, datagram, &mut self.progress)?;
        }
        self.progress = FragmentProgress::default();
        self.offset += datagram.len();
        if self.offset >= received.len {
            (self.next, self.offset) = (self.next + 1, 0);
        }
        Ok(())
    }
}

/// Size of the datagrams in one receive.
fn datagram_size(received: &Received) -> usize {
    match received.segment {
        Some(size) if received.len > usize::from(size) => usize::from(size).max(1),
        _ => received.len,
    }
}

/// Whether a received datagram, or run, can follow datagrams of `size` bytes in one super-datagram.
fn follows(received: &Received, size: usize, tos: u8) -> bool {
    let own = datagram_size(received);
    // A single one may be shorter, and is the last then.
    received.tos == tos && (own == size || (own == received.len && (1..size).contains(&own)))
}

/// For a snapshot.
impl Inbox {
    /// Saved form of what is not sent yet, if anything is.
    pub(crate) fn save(&self) -> Option<InboxV1<'_>> {
        let Self { buffers, received, key, count, next, offset, progress } = self;
        let key = key.as_ref().filter(|_| !self.is_empty())?;
        let left = received[..*count].iter().zip(buffers.chunks_exact(STRIDE)).skip(*next);
        let left = left.map(|(Received { len, segment, tos, lost: _, from: _ }, buffer)| ReceivedV1 {
            bytes: Bytes(&buffer[..*len]),
            segment: *segment,
            tos: *tos,
        });
        Some(InboxV1 {
            key: key.save(),
            received: left.collect(),
            offset: *offset as u32,
            progress: progress.save(),
        })
    }

    /// Batch of a saved form.
    ///
    /// # Errors
    /// [`Invalid`] if it contradicts itself; then the batch is empty.
    pub(crate) fn restore(&mut self, saved: &InboxV1<'_>) -> Result<(), Invalid> {
        debug_assert!(self.is_empty(), "a batch is still on its way");
        let InboxV1 { key, received, offset, progress } = saved;
        let (key, progress) = (FlowKey::restore(*key)?, FragmentProgress::restore(*progress)?);
        let (offset, first) = (*offset as usize, received.first().ok_or(Invalid)?);
        valid(key.protocol != Protocol::Tcp && received.len() <= BATCH)?;
        valid(received.iter().all(|one| one.bytes.0.len() <= STRIDE))?;
        let len = first.bytes.0.len();
        valid(offset == 0 || offset < len)?;
        for (i, ReceivedV1 { bytes, segment, tos }) in received.iter().enumerate() {
            made(&mut self.buffers)[i * STRIDE..][..bytes.0.len()].copy_from_slice(bytes.0);
            let len = bytes.0.len();
            self.received[i] = Received { len, segment: *segment, tos: *tos, ..Received::default() };
        }
        (self.key, self.count, self.next, self.offset) = (Some(key), received.len(), 0, offset);
        self.progress = progress;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
