//! A batch of frames from the guest, contiguous in one arena.
//!
//! A link fills a batch with as few system calls as it can ([`GuestLink::take`](crate::GuestLink::take)). The
//! batch ends by its own rule: bulk is gathered; a small frame ends it, for its sender may wait for the
//! answer, except small datagrams in a row, which are many because one program sends many.
//!
//! A link may leave the ends of frames unread ([`Unread`]) in a batch that allows it
//! ([`Batch::allow_unread`]): for a loop that has no use for them but the stack's.
//!
//! Priority tags (IEEE 802.1Q, VLAN 0) are taken out here, where frames of all links pass: all readers behind
//! find EtherType and packet in their places. Windows sends them for programs that ask for a traffic class.

use brodo_core::link::{FRAME_MAX, RxFrame, RxMeta, Unread};
use brodo_core::wire::ethernet::EthernetHeader;

/// Most frames per batch: acknowledgements stay frequent, and sockets get their turn.
pub const BATCH_FRAMES: usize = 64;
/// Most bytes per batch, so that they stay in the cache.
pub const BATCH_BYTES: usize = 512 << 10;
/// Length of an arena for the largest batch: the last frame may begin just below [`BATCH_BYTES`].
pub const ARENA_LEN: usize = BATCH_BYTES + FRAME_MAX;
/// Length in bytes from which a frame counts as part of a bulk transfer, of which more may be waiting.
const BULK_MIN: usize = 1024;

/// Frames taken from a link together.
#[derive(Debug)]
pub struct Batch<'a> {
    /// Free rest of the arena.
    rest: &'a mut [u8],
    /// Most bytes of frames, read and unread: the arena's length.
    bytes_max: usize,
    frames: [RxFrame<'a>; BATCH_FRAMES],
    count: usize,
    datagrams: usize,
    bytes: usize,
    /// Ended: to be handled before more is taken.
    complete: bool,
    /// Whether the last frame carries a datagram.
    after_datagram: bool,
    /// Whether ends of frames may be left unread.
    unread: bool,
}

impl<'a> Batch<'a> {
    /// An empty batch. `after_datagram`: whether the last frame of the batch before carried a datagram.
    pub fn new(arena: &'a mut [u8], after_datagram: bool) -> Self {
        let (frames, bytes_max) = ([RxFrame::default(); BATCH_FRAMES], arena.len());
        Self {
            rest: arena,
            bytes_max,
            frames,
            count: 0,
            datagrams: 0,
            bytes: 0,
            complete: false,
            after_datagram,
            unread: false,
        }
    }

    /// Allows ends of frames to be left unread: all frames go to the stack, with this link beside them.
    pub fn allow_unread(&mut self) {
        self.unread = true;
    }

    /// Whether ends of frames may be left unread.
    pub fn allows_unread(&self) -> bool {
        self.unread
    }

    /// Room for the next frame, at least [`FRAME_MAX`] bytes; `None` if the batch must be handled first.
    pub fn room(&mut self) -> Option<&mut [u8]> {
        let open = !self.complete && self.count < BATCH_FRAMES && self.bytes + FRAME_MAX <= self.bytes_max;
        open.then_some(&mut *self.rest)
    }

    /// Adds the frame in the first `len` bytes of [`Batch::room`]. Without room the frame is lost.
    pub fn push(&mut self, meta: RxMeta, len: usize) {
        self.push_begin(meta, len, Unread::default());
    }

    /// Adds a frame of which the first `len` bytes are in [`Batch::room`], and the others `unread`.
    pub fn push_begin(&mut self, meta: RxMeta, len: usize, unread: Unread) {
        let rest = std::mem::take(&mut self.rest);
        let len = untag(rest, len.min(rest.len()));
        let (bytes, rest) = rest.split_at_mut(len);
        self.rest = rest;
        let frame = RxFrame { meta, bytes, unread };
        let len = frame.len();
        let follows = std::mem::replace(&mut self.after_datagram, frame.is_datagram());
        self.complete = len < BULK_MIN && !(follows && self.after_datagram);
        if let Some(place) = self.frames.get_mut(self.count) {
            *place = frame;
            self.count += 1;
            self.datagrams += usize::from(self.after_datagram);
            self.bytes += len;
        }
    }

    /// The frames, in order of arrival.
    pub fn frames(&mut self) -> &mut [RxFrame<'a>] {
        &mut self.frames[..self.count]
    }

    /// Number of the frames that carry a datagram.
    pub fn datagrams(&self) -> usize {
        self.datagrams
    }

    /// Bytes of all frames.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the last frame carries a datagram.
    pub fn ends_with_datagram(&self) -> bool {
        self.after_datagram
    }
}

/// Takes the priority tag, if any, out of the frame in the first `len` bytes of `room`; its length then.
fn untag(room: &mut [u8], len: usize) -> usize {
    const TAG: usize = EthernetHeader::TAG_OFFSET;
    if !EthernetHeader::has_priority_tag(&room[..len]) {
        return len;
    }
    room.copy_within(TAG + EthernetHeader::TAG_LEN..len, TAG);
    len - EthernetHeader::TAG_LEN
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pushes one frame of `len` bytes, a UDP datagram over IPv4 or something else.
    fn push(batch: &mut Batch<'_>, len: usize, datagram: bool) {
        let room = batch.room().expect("room");
        room[..len].fill(0);
        if datagram {
            (room[12], room[23]) = (8, 17);
        }
        batch.push(RxMeta::default(), len);
    }

    #[test]
    fn bulk_is_gathered_and_a_small_frame_ends_the_batch() {
        let mut arena = vec![0; ARENA_LEN];
        let mut batch = Batch::new(&mut arena, false);
        push(&mut batch, 9000, false);
        push(&mut batch, 60, false);
        assert!(batch.room().is_none(), "its sender may wait");
        assert_eq!((batch.frames().len(), batch.bytes()), (2, 9060));
        assert_eq!(batch.frames()[1].bytes.len(), 60);
    }

    #[test]
    fn datagrams_in_a_row_are_gathered_over_the_border_of_a_batch() {
        let mut arena = vec![0; ARENA_LEN];
        let mut batch = Batch::new(&mut arena, false);
        push(&mut batch, 100, true);
        assert!(batch.room().is_none(), "one alone is handled at once");
        let after = batch.ends_with_datagram();
        let mut batch = Batch::new(&mut arena, after);
        for _ in 0..BATCH_FRAMES {
            push(&mut batch, 100, true);
        }
        assert!(batch.room().is_none(), "full");
        assert_eq!(batch.frames().len(), BATCH_FRAMES);
    }

    #[test]
    fn the_largest_frames_fill_the_arena_and_no_more() {
        let mut arena = vec![0; ARENA_LEN];
        let mut batch = Batch::new(&mut arena, false);
        while batch.room().is_some() {
            push(&mut batch, FRAME_MAX, false);
        }
        assert!(batch.bytes() >= BATCH_BYTES && batch.bytes() <= ARENA_LEN, "{}", batch.bytes());
    }

    #[test]
    fn priority_tags_are_taken_out() {
        let plain: Vec<u8> = (0..100).collect();
        let tagged = |vlan: u8| [&plain[..12], &[0x81, 0, 0xa0, vlan], &plain[12..]].concat();
        let mut arena = vec![0; ARENA_LEN];
        for (sent, len, taken) in [
            (tagged(0), 104, plain.clone()),
            (tagged(5), 104, tagged(5)),
            (tagged(0), 18, plain[..14].to_vec()),
            // Shorter than a header, with the tag or without it.
            (tagged(0), 17, plain[..13].to_vec()),
            (tagged(0), 16, plain[..12].to_vec()),
            (tagged(0), 15, tagged(0)[..15].to_vec()),
        ] {
            let mut batch = Batch::new(&mut arena, false);
            let unread = Unread { frame: 1, start: 0, len: 2000 };
            for unread in [unread, Unread::default()] {
                batch.room().expect("room")[..len].copy_from_slice(&sent[..len]);
                batch.push_begin(RxMeta::default(), len, unread);
            }
            let [long, short] = batch.frames() else { panic!("two frames") };
            assert_eq!((long.bytes, long.unread), (&*taken, unread));
            assert_eq!(short.bytes, &*taken);
        }
    }

    #[test]
    fn a_tagged_datagram_is_a_datagram() {
        let mut arena = vec![0; ARENA_LEN];
        let mut batch = Batch::new(&mut arena, false);
        let room = batch.room().expect("room");
        room[..60].fill(0);
        (room[12], room[13], room[14], room[16], room[27]) = (0x81, 0, 0xe0, 8, 17);
        batch.push(RxMeta::default(), 60);
        assert_eq!((batch.datagrams(), batch.bytes()), (1, 56));
    }
}
