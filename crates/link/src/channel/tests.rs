//! Channel link: order, content, back pressure and notification, also between threads.

use super::{ChannelLink, GuestEnd, Options, SendError, pair};
use crate::batch::{ARENA_LEN, Batch};
use crate::{CreditWait, GuestLink};
use brodo_core::link::{FRAME_MAX, Gso, Link, LinkCaps, NoCredit, RxChecksum, RxMeta, TxFrame};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use std::io::IoSlice;
use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

/// Deadline of waits for events that must come; reaching it is a failure.
const LIMIT: Duration = Duration::from_secs(20);

/// Next frame from the guest, if there is one.
fn take(link: &mut ChannelLink, arena: &mut [u8]) -> Option<(RxMeta, Vec<u8>)> {
    // A batch after a small frame takes one at a time.
    let mut batch = Batch::new(arena, false);
    let room = batch.room().expect("an empty batch has room").len();
    assert!(room >= FRAME_MAX);
    link.take(&mut batch).expect("a channel does not fail");
    assert!(batch.frames().len() <= 1, "the frames of these tests are small or alone");
    batch.frames().first().map(|frame| (frame.meta, frame.bytes.to_vec()))
}

fn frame<'a>(headers: &'a [u8], payload: &'a [IoSlice<'a>]) -> TxFrame<'a> {
    TxFrame { headers, payload, partial: None, gso: Gso::None }
}

#[test]
fn frames_arrive_whole_in_order_and_with_their_metadata() {
    let (mut link, mut guest) = pair(Options::default()).unwrap();
    let meta = RxMeta { checksum: RxChecksum::Valid, gso: Gso::Tcp4(1460) };
    guest.send_parts(meta, &[b"ab", b"", b"c"]).unwrap();
    guest.send(b"second").unwrap();
    let mut arena = vec![0; ARENA_LEN];
    assert_eq!(take(&mut link, &mut arena), Some((meta, b"abc".to_vec())));
    assert_eq!(take(&mut link, &mut arena), Some((RxMeta::default(), b"second".to_vec())));
    assert_eq!(take(&mut link, &mut arena), None);

    link.send(&TxFrame {
        gso: Gso::Tcp6(1440),
        ..frame(b"head", &[IoSlice::new(b"pay"), IoSlice::new(b"load")])
    })
    .unwrap();
    let (meta, bytes) = guest.recv().unwrap();
    assert_eq!((meta.header_len, meta.gso, bytes), (4, Gso::Tcp6(1440), &b"headpayload"[..]));
    assert!(guest.recv().is_none());
}

#[test]
fn capabilities_are_the_guests() {
    let caps = LinkCaps { checksum: true, tso: true, uso: false, packet_max: None };
    let (link, _guest) = pair(Options { caps, ..Options::default() }).unwrap();
    assert_eq!(link.caps(), caps);
}

#[test]
fn a_full_queue_refuses_and_takes_again_after_a_swap() {
    let options = Options { queue_bytes: FRAME_MAX, ..Options::default() };
    let (mut link, mut guest) = pair(options).unwrap();
    let long = vec![7; FRAME_MAX];
    assert_eq!(guest.send(&vec![0; FRAME_MAX + 1]), Err(SendError::TooLong));
    guest.send(&long).unwrap();
    assert_eq!(guest.send(b"x"), Err(SendError::NoCredit));
    guest.wait(Some(Duration::ZERO)).unwrap();
    let mut arena = vec![0; ARENA_LEN];
    assert_eq!(take(&mut link, &mut arena).unwrap().1.len(), FRAME_MAX);
    // Notified by the swap: this returns at once.
    guest.wait(Some(LIMIT)).unwrap();
    guest.send(b"x").unwrap();

    link.send(&frame(&long, &[])).unwrap();
    assert_eq!(link.send(&frame(b"y", &[])), Err(NoCredit));
    assert_eq!(link.credit_wait(), Some(CreditWait::Event));
    assert_eq!(guest.recv().unwrap().1.len(), FRAME_MAX);
    link.forget_refusal();
    link.send(&frame(b"y", &[])).unwrap();
    assert_eq!(link.credit_wait(), None);
}

#[test]
fn an_end_that_is_dropped_is_noticed_after_its_last_frame() {
    let (mut link, mut guest) = pair(Options::default()).unwrap();
    guest.send(b"last").unwrap();
    drop(guest);
    assert!(!link.gone());
    let mut arena = vec![0; ARENA_LEN];
    assert_eq!(take(&mut link, &mut arena).unwrap().1, b"last");
    assert!(link.gone());

    let (link, mut guest) = pair(Options::default()).unwrap();
    drop(link);
    guest.wait(Some(LIMIT)).unwrap();
    assert!(guest.is_closed());
    assert_eq!(guest.send(b"late"), Err(SendError::Closed));
}

/// The frame of a number: most significant byte first, in which order none reads as a tag.
fn numbered(number: u32) -> Vec<u8> {
    number.to_be_bytes().repeat(100)
}

/// Sends until a frame is refused for good, sleeping on the notification in between.
fn send_numbers(guest: &mut GuestEnd, count: u32) {
    for number in 0..count {
        let frame = numbered(number);
        while guest.send(&frame) == Err(SendError::NoCredit) {
            guest.wait(Some(LIMIT)).unwrap();
        }
    }
}

#[test]
fn no_wake_up_is_lost_between_threads() {
    let options = Options { queue_bytes: FRAME_MAX, ..Options::default() };
    let (mut link, mut guest) = pair(options).unwrap();
    let sender = thread::spawn(move || {
        send_numbers(&mut guest, 100_000);
        guest
    });
    let mut arena = vec![0; ARENA_LEN];
    let mut expected = 0u32;
    while expected < 100_000 {
        if let Some((_, bytes)) = take(&mut link, &mut arena) {
            assert!(bytes == numbered(expected), "frame {expected}");
            expected += 1;
            continue;
        }
        let timeout = Timespec { tv_sec: LIMIT.as_secs() as i64, tv_nsec: 0 };
        let descriptor = link.shared.link_notify.as_fd();
        let mut fds = [PollFd::new(&descriptor, PollFlags::IN)];
        assert_eq!(poll(&mut fds, Some(&timeout)).unwrap(), 1, "at frame {expected}");
        rustix::io::read(descriptor, &mut [0; 8][..]).unwrap();
    }
    sender.join().unwrap();
}
