//! The link against a monitor at the other end of a socket pair.

use super::*;
use crate::batch::ARENA_LEN;
use crate::connections::{Arrival, Listening, Once};
use brodo_core::link::{FRAME_MAX, Gso};
use rustix::event::epoll::{self, CreateFlags};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, recv, send, shutdown, socketpair};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Two ends that do not block.
fn ends(kind: SocketType) -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    socketpair(AddressFamily::UNIX, kind, flags, None).expect("pair")
}

/// A link that is connected, the monitor's end, and the loop's epoll instance.
fn connected(kind: SocketType) -> (SocketLink, OwnedFd, OwnedFd) {
    connected_by(ends(kind), kind)
}

fn connected_by((ours, monitor): (OwnedFd, OwnedFd), kind: SocketType) -> (SocketLink, OwnedFd, OwnedFd) {
    let epoll = epoll::create(CreateFlags::CLOEXEC).expect("epoll");
    let mut link = SocketLink::new(Box::new(Once::new(ours)), Framing::of(kind));
    link.register(Poller::new(epoll.as_fd(), 0)).expect("nothing to register");
    link.flush(Poller::new(epoll.as_fd(), 0));
    assert!(link.connection.is_some() && !link.gone());
    (link, monitor, epoll)
}

/// A frame of `len` bytes behind its length.
fn framed(len: usize) -> Vec<u8> {
    let mut bytes = (len as u32).to_be_bytes().to_vec();
    bytes.extend((0..len).map(|at| at as u8));
    bytes
}

/// Lengths of the frames in the next batches, until the link is empty.
fn taken(link: &mut SocketLink) -> Vec<usize> {
    let mut arena = vec![0; ARENA_LEN];
    let mut lengths = Vec::new();
    loop {
        let mut batch = Batch::new(&mut arena, false);
        let left = link.take(&mut batch).expect("the link's failures end its connection alone");
        for frame in batch.frames() {
            assert_eq!(frame.meta.checksum, RxChecksum::Valid);
            assert!(frame.bytes.iter().enumerate().all(|(at, byte)| *byte == at as u8), "content");
            lengths.push(frame.bytes.len());
        }
        if left == Taken::All {
            return lengths;
        }
    }
}

fn frame<'a>(headers: &'a [u8], payload: &'a [IoSlice<'a>]) -> TxFrame<'a> {
    TxFrame { headers, payload, partial: None, gso: Gso::None }
}

/// All bytes that the monitor has received.
fn received(monitor: &OwnedFd) -> Vec<u8> {
    let (mut all, mut buffer) = (Vec::new(), vec![0; 1 << 20]);
    while let Ok((len, _)) = recv(monitor, &mut buffer[..], RecvFlags::empty()) {
        all.extend_from_slice(&buffer[..len]);
        if len == 0 {
            break;
        }
    }
    all
}

/// The events of the loop, passed on; whether one of them reports credit.
fn events(link: &mut SocketLink, epoll: &OwnedFd) -> bool {
    let mut events = Vec::with_capacity(8);
    let none = rustix::time::Timespec::default();
    epoll::wait(epoll, rustix::buffer::spare_capacity(&mut events), Some(&none)).expect("wait");
    let mut credit = false;
    for event in events {
        let crate::poller::Token::Source { key, .. } = crate::poller::Token::read({ event.data }.u64())
        else {
            panic!("no flow is registered")
        };
        credit |= link.ready(key, event.flags).credit;
    }
    credit
}

#[test]
fn frames_of_a_stream_are_found_at_every_cut() {
    let lengths = [14, 60, 1514, FRAME_MAX, 42, 9000];
    let bytes: Vec<u8> = lengths.iter().flat_map(|&len| framed(len)).collect();
    for step in [1, 3, 7, 1000, 65_536, bytes.len()] {
        let (mut link, monitor, _epoll) = connected(SocketType::STREAM);
        let mut found = Vec::new();
        for (index, part) in bytes.chunks(step).enumerate() {
            assert_eq!(send(&monitor, part, SendFlags::empty()), Ok(part.len()));
            // The kernel's buffer holds a few hundred parts, however short.
            if index % 64 == 63 {
                found.extend(taken(&mut link));
            }
        }
        found.extend(taken(&mut link));
        assert_eq!(found, lengths, "in parts of {step}");
    }
}

#[test]
fn frames_too_long_are_skipped_and_counted() {
    let (mut link, monitor, _epoll) = connected(SocketType::STREAM);
    for len in [60, FRAME_MAX + 4, 61] {
        send(&monitor, &framed(len), SendFlags::empty()).expect("room");
    }
    assert_eq!((taken(&mut link), link.losses().oversized), (vec![60, 61], 1));

    let (mut link, monitor, _epoll) = connected(SocketType::SEQPACKET);
    for len in [60, FRAME_MAX + 1, 61] {
        send(&monitor, &framed(len)[4..], SendFlags::empty()).expect("room");
    }
    assert_eq!((taken(&mut link), link.losses().oversized), (vec![60, 61], 1));
}

#[test]
fn frames_too_long_are_skipped_some_at_a_time() {
    let mut arena = vec![0; ARENA_LEN];
    for (kind, bytes) in [
        (SocketType::STREAM, framed(FRAME_MAX + 4)),
        (SocketType::SEQPACKET, vec![0; FRAME_MAX + 1]),
        (SocketType::DGRAM, vec![0; FRAME_MAX + 1]),
    ] {
        let (mut link, monitor, _epoll) = connected(kind);
        // Where the host allows no more than its default, the kernel holds fewer frames than one call skips.
        let _ = sockopt::set_socket_send_buffer_size_force(&monitor, 4 << 20);
        let sent =
            (0..10).take_while(|_| send(&monitor, &bytes, SendFlags::empty()) == Ok(bytes.len())).count();
        let mut skip = || {
            let left = link.take(&mut Batch::new(&mut arena, false)).expect("no failure");
            (link.losses().oversized, left)
        };
        if sent >= SKIPPED_MAX as usize {
            assert_eq!(skip(), (SKIPPED_MAX.into(), Taken::Some), "{kind:?}");
        }
        assert_eq!(skip(), (sent as u64, Taken::All), "{kind:?}");
    }
}

#[test]
fn impossible_lengths_end_the_connection() {
    for prefix in [0, FRAME_MAX as u32 + 5, u32::MAX, u32::from_be_bytes(*b"HTTP")] {
        let (mut link, monitor, epoll) = connected(SocketType::STREAM);
        send(&monitor, &framed(60), SendFlags::empty()).expect("room");
        send(&monitor, &prefix.to_be_bytes(), SendFlags::empty()).expect("room");
        assert_eq!((taken(&mut link), link.losses().bad_lengths), (vec![60], 1), "{prefix:#x}");
        link.flush(Poller::new(epoll.as_fd(), 0));
        assert!(link.gone(), "there is no other connection");
        assert_eq!(recv(&monitor, &mut [0; 8][..], RecvFlags::empty()).map(|(len, _)| len), Ok(0));
    }
}

#[test]
fn short_frames_are_padded_and_small_ones_gathered() {
    let (mut link, monitor, epoll) = connected(SocketType::STREAM);
    let payload = [7; 9];
    for _ in 0..3 {
        link.send(&frame(&[1; 14], &[IoSlice::new(&payload)])).expect("room");
    }
    assert_eq!(received(&monitor), [], "gathered until the turn's end");
    link.flush(Poller::new(epoll.as_fd(), 0));
    let one = [&[0, 0, 0, 60][..], &[1; 14], &payload, &[0; 37]].concat();
    assert_eq!(received(&monitor), one.repeat(3));

    let (mut link, monitor, _epoll) = connected(SocketType::DGRAM);
    link.send(&frame(&[1; 14], &[IoSlice::new(&payload)])).expect("room");
    assert_eq!(received(&monitor), one[4..]);
}

#[test]
fn a_full_stream_refuses_and_loses_nothing() {
    let (mut link, monitor, epoll) = connected(SocketType::STREAM);
    let poller = Poller::new(epoll.as_fd(), 0);
    let large = vec![3; 60_000];
    let (mut sent, mut got) = (Vec::new(), Vec::new());
    for round in 0..200 {
        let payload = if round % 3 == 0 { &large[..] } else { &large[..700] };
        let headers = [round as u8; 54];
        let slices = [IoSlice::new(payload)];
        while link.send(&frame(&headers, &slices)).is_err() {
            assert_eq!(link.credit_wait(), Some(CreditWait::Event));
            link.await_credit(poller, true).expect("epoll");
            let before = got.len();
            got.extend(received(&monitor));
            assert!(got.len() > before, "the socket is full");
            assert!(events(&mut link, &epoll), "room is reported");
            link.forget_refusal();
        }
        sent.extend(((headers.len() + payload.len()) as u32).to_be_bytes());
        sent.extend(headers);
        sent.extend(payload);
    }
    while got.len() < sent.len() {
        link.flush(poller);
        link.await_credit(poller, true).expect("epoll");
        events(&mut link, &epoll);
        got.extend(received(&monitor));
    }
    assert!(got == sent, "the bytes of all frames, in order");
    assert_eq!((link.credit_wait(), link.losses()), (None, LinkLosses::default()));
}

#[test]
fn full_packet_sockets_refuse_and_report_room() {
    for kind in [SocketType::DGRAM, SocketType::SEQPACKET] {
        let (mut link, monitor, epoll) = connected(kind);
        let payload = [9; 1460];
        let slices = [IoSlice::new(&payload)];
        let count = (0..100_000).take_while(|_| link.send(&frame(&[2; 54], &slices)).is_ok()).count();
        assert_eq!(link.credit_wait(), Some(CreditWait::Event), "{kind:?}");
        link.await_credit(Poller::new(epoll.as_fd(), 0), true).expect("epoll");
        assert!(!events(&mut link, &epoll), "{kind:?}: no room yet");
        assert_eq!(received(&monitor).len(), count * 1514);
        assert!(events(&mut link, &epoll), "{kind:?}");
        link.forget_refusal();
        assert_eq!((link.credit_wait(), link.send(&frame(&[2; 54], &slices))), (None, Ok(())));
    }
}

#[test]
fn monitors_come_one_after_another() {
    let path = std::env::temp_dir().join(format!("brodo-link-socket-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let listener = std::os::unix::net::UnixListener::bind(&path).expect("bind");
    listener.set_nonblocking(true).expect("fcntl");
    let epoll = epoll::create(CreateFlags::CLOEXEC).expect("epoll");
    let poller = Poller::new(epoll.as_fd(), 0);
    let mut link = SocketLink::new(Box::new(Listening::new(listener.into())), Framing::Length);
    link.register(poller).expect("epoll");
    link.flush(poller);
    let slices = [IoSlice::new(&[1; 46])];
    assert_eq!(link.send(&frame(&[0; 14], &slices)), Err(NoCredit), "no monitor yet");
    link.await_credit(poller, true).expect("epoll");
    for round in 0..3 {
        let monitor = OwnedFd::from(std::os::unix::net::UnixStream::connect(&path).expect("connect"));
        let waits = std::os::unix::net::UnixStream::connect(&path);
        events(&mut link, &epoll);
        link.flush(poller);
        assert!(events(&mut link, &epoll), "a connection is credit: {round}");
        link.forget_refusal();
        link.send(&frame(&[0; 14], &slices)).expect("connected");
        link.flush(poller);
        let mut got = [0; 64];
        assert_eq!(recv(&monitor, &mut got[..], RecvFlags::empty()).map(|(len, _)| len), Ok(64));
        shutdown(&monitor, Shutdown::Both).expect("connected");
        events(&mut link, &epoll);
        assert_eq!(taken(&mut link), [0; 0]);
        // The other one is next, and ends too.
        link.flush(poller);
        assert!(link.connection.is_some() && !link.gone());
        drop(waits);
        assert_eq!(taken(&mut link), [0; 0]);
        link.flush(poller);
        assert!(link.connection.is_none());
        link.await_credit(poller, true).expect("nothing is registered");
    }
    std::fs::remove_file(path).expect("remove");
}

/// The link of another process that goes on with this one.
fn handed_over(link: &SocketLink, kind: SocketType) -> (SocketLink, OwnedFd) {
    let SavedLink { bytes, descriptors } = link.save().expect("connected");
    let descriptors = descriptors.iter().map(|fd| fd.try_clone_to_owned().expect("dup")).collect();
    let epoll = epoll::create(CreateFlags::CLOEXEC).expect("epoll");
    let mut next = SocketLink::new(Box::new(Once::new(ends(kind).0)), Framing::of(kind));
    next.restore(&bytes, descriptors);
    next.register(Poller::new(epoll.as_fd(), 0)).expect("epoll_ctl");
    (next, epoll)
}

#[test]
fn a_hand_over_within_a_received_frame_loses_nothing() {
    let bytes = [framed(60), framed(9000), framed(70)].concat();
    for cut in [0, 2, 4, 40, 64, 66, 5000, bytes.len()] {
        let (mut link, monitor, _epoll) = connected(SocketType::STREAM);
        let (before, after) = bytes.split_at(cut);
        send(&monitor, before, SendFlags::empty()).expect("room");
        let mut found = taken(&mut link);
        let (mut next, _epoll) = handed_over(&link, SocketType::STREAM);
        drop(link);
        send(&monitor, after, SendFlags::empty()).expect("room");
        found.extend(taken(&mut next));
        assert_eq!(found, [60, 9000, 70], "cut at {cut}");
    }
}

#[test]
fn a_hand_over_within_a_written_frame_loses_nothing() {
    let ends = ends(SocketType::STREAM);
    // Smaller than a frame, so that the kernel takes it in parts.
    sockopt::set_socket_send_buffer_size(&ends.0, 8 << 10).expect("a socket");
    let (mut link, monitor, _epoll) = connected_by(ends, SocketType::STREAM);
    let content = framed(60_000);
    let payload = [IoSlice::new(&content[4 + 54..])];
    let large = frame(&content[4..4 + 54], &payload);
    let mut sent = 0;
    while link.send(&large).is_ok() {
        sent += 1;
    }
    let (mut next, epoll) = handed_over(&link, SocketType::STREAM);
    assert!(link.save().expect("connected").bytes.len() > 4, "a part is left");
    drop(link);
    assert_eq!((next.send(&large), next.credit_wait()), (Err(NoCredit), Some(CreditWait::Event)));
    next.await_credit(Poller::new(epoll.as_fd(), 0), true).expect("epoll_ctl");
    let mut all = received(&monitor);
    let mut waits = 0;
    while !events(&mut next, &epoll) {
        all.extend(received(&monitor));
        waits += 1;
        assert!(waits < 100, "room is credit");
    }
    all.extend(received(&monitor));
    assert_eq!(next.send(&large), Ok(()));
    while all.len() < content.len() * (sent + 1) {
        all.extend(received(&monitor));
        events(&mut next, &epoll);
        waits += 1;
        assert!(waits < 100, "all of it");
    }
    assert!(all == content.repeat(sent + 1), "{} bytes", all.len());
}

#[test]
fn packets_go_on_after_a_hand_over() {
    for kind in [SocketType::SEQPACKET, SocketType::DGRAM] {
        let (link, monitor, _epoll) = connected(kind);
        send(&monitor, &framed(60)[4..], SendFlags::empty()).expect("room");
        let (mut next, _epoll) = handed_over(&link, kind);
        drop(link);
        assert_eq!(taken(&mut next), [60], "{kind:?}");
    }
}

/// A source of one connection that counts how often it was asked to keep it, since it was to forget it.
struct Keeping {
    socket: Option<OwnedFd>,
    kept: Arc<AtomicUsize>,
}

impl Connections for Keeping {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn request(&mut self) {}

    fn take(&mut self) -> Arrival {
        self.socket.take().map_or(Arrival::Pending, Arrival::Connected)
    }

    fn keep(&mut self, state: &SavedLink<'_>) {
        assert_eq!((&state.bytes[..], state.descriptors.len()), (&[][..], 1));
        self.kept.fetch_add(1, Relaxed);
    }

    fn forget(&mut self) -> bool {
        self.kept.store(0, Relaxed);
        true
    }
}

/// A frame that an IPv4 packet of `len` bytes without the frame's header makes, behind its length.
fn packet(len: usize) -> Vec<u8> {
    let mut bytes = framed(len + 14);
    bytes[4 + 12..4 + 18].copy_from_slice(&[8, 0, 0x45, 0, (len >> 8) as u8, len as u8]);
    bytes
}

/// A link whose connection was kept so often.
fn kept_link(ours: OwnedFd) -> (SocketLink, Arc<AtomicUsize>, OwnedFd) {
    let epoll = epoll::create(CreateFlags::CLOEXEC).expect("epoll");
    let kept = Arc::new(AtomicUsize::new(0));
    let source = Keeping { socket: Some(ours), kept: Arc::clone(&kept) };
    let mut link = SocketLink::new(Box::new(source), Framing::Length);
    link.flush(Poller::new(epoll.as_fd(), 0));
    (link, kept, epoll)
}

/// The number of frames that these bytes are.
fn whole_frames(bytes: &[u8]) -> usize {
    let (mut rest, mut count) = (bytes, 0);
    while let Some((prefix, behind)) = rest.split_first_chunk() {
        rest = behind.get(u32::from_be_bytes(*prefix) as usize..).expect("a whole frame");
        count += 1;
    }
    assert!(rest.is_empty(), "a whole length");
    count
}

/// The kernel takes each write whole or not at all, those of the longest frames too, and a stream that has
/// refused a frame gets an event when there is room.
#[test]
fn a_stream_is_between_two_frames_at_any_time() {
    let (ours, monitor) = ends(SocketType::STREAM);
    let (mut link, kept, epoll) = kept_link(ours);
    let poller = Poller::new(epoll.as_fd(), 0);
    let content = vec![5; FRAME_MAX - 54];
    let (mut random, mut sent, mut got) = (1_u32, 0, 0);
    for round in 0..200 {
        loop {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let len = match random >> 30 {
                0 => (random >> 8) as usize % 2000,
                1 => 30_000 + (random >> 8) as usize % 20_000,
                _ => content.len() - (random >> 8) as usize % 9000 * (round % 2),
            };
            if link.send(&frame(&[0; 54], &[IoSlice::new(&content[..len])])).is_err() {
                break;
            }
            sent += 1;
            if random & (1 << 20) == 0 {
                link.flush(poller);
                let left = link.save().expect("connected").bytes.len() - 4;
                assert!(left == 0 || link.credit_wait() == Some(CreditWait::Event), "{left} left of {len}");
            }
        }
        assert_eq!(link.credit_wait(), Some(CreditWait::Event));
        link.await_credit(poller, true).expect("epoll_ctl");
        link.flush(poller);
        got += whole_frames(&received(&monitor));
        assert!(events(&mut link, &epoll), "room is credit");
        link.forget_refusal();
        link.flush(poller);
    }
    got += whole_frames(&received(&monitor));
    assert_eq!((got, kept.load(Relaxed)), (sent, 1));
}

#[test]
fn a_stream_whose_socket_takes_frames_in_parts_is_not_kept() {
    let (ours, _monitor) = ends(SocketType::STREAM);
    sockopt::set_socket_send_buffer_size(&ours, 8 << 10).expect("a socket");
    let (_link, kept, _epoll) = kept_link(ours);
    assert_eq!(kept.load(Relaxed), 0);
}

/// A source that has kept a connection.
struct Kept(Option<OwnedFd>, Arc<AtomicUsize>);

impl Connections for Kept {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn request(&mut self) {}

    fn take(&mut self) -> Arrival {
        let kept = |socket| Arrival::Kept(KeptLink { bytes: Vec::new(), descriptors: vec![socket] });
        self.0.take().map_or(Arrival::Pending, kept)
    }

    fn keep(&mut self, _: &SavedLink<'_>) {
        panic!("it is kept already");
    }

    fn forget(&mut self) -> bool {
        self.1.fetch_add(1, Relaxed);
        true
    }
}

#[test]
fn a_connection_that_was_kept_stays_kept_if_the_link_goes_on_with_it() {
    for (kind, goes_on) in [(SocketType::STREAM, true), (SocketType::SEQPACKET, false)] {
        let (ours, _monitor) = ends(kind);
        let epoll = epoll::create(CreateFlags::CLOEXEC).expect("epoll");
        let forgotten = Arc::new(AtomicUsize::new(0));
        let source = Kept(Some(ours), Arc::clone(&forgotten));
        let mut link = SocketLink::new(Box::new(source), Framing::Length);
        link.flush(Poller::new(epoll.as_fd(), 0));
        assert_eq!((link.connection.is_some(), forgotten.load(Relaxed)), (goes_on, usize::from(!goes_on)));
    }
}

#[test]
fn a_stream_goes_on_after_a_crash_if_its_next_bytes_are_a_frame() {
    for (skipped, found) in [(0, true), (1, false), (4, false), (60, false)] {
        let (mut link, monitor, _epoll) = connected(SocketType::STREAM);
        send(&monitor, &packet(1500), SendFlags::empty()).expect("room");
        let mut arena = vec![0; ARENA_LEN];
        link.take(&mut Batch::new(&mut arena, false)).expect("the link's failures end its connection alone");
        let socket = link.connection.as_ref().expect("connected").socket().try_clone().expect("dup");
        drop(link);
        let (other, _other) = ends(SocketType::STREAM);
        let mut next = SocketLink::new(Box::new(Once::new(other)), Framing::Length);
        next.restore(&[], vec![socket]);
        send(&monitor, &packet(1000)[skipped..], SendFlags::empty()).expect("room");
        send(&monitor, &framed(2000), SendFlags::empty()).expect("room");
        let mut lengths: Vec<usize> = Vec::new();
        loop {
            let mut batch = Batch::new(&mut arena, false);
            let left = next.take(&mut batch).expect("the link's failures end its connection alone");
            lengths.extend(batch.frames().iter().map(|frame| frame.bytes.len()));
            if left == Taken::All {
                break;
            }
        }
        assert_eq!(lengths, if found { vec![1014, 2000] } else { vec![] }, "{skipped} bytes are missing");
        assert_eq!(next.connection.is_some(), found);
    }
}

/// A stream's link with its position in a word, and the monitor's end.
fn noting() -> (SocketLink, OwnedFd, &'static AtomicU64) {
    let (ours, monitor) = ends(SocketType::STREAM);
    let word = &*Box::leak(Box::new(AtomicU64::new(0)));
    let mut link = SocketLink::new(Box::new(Once::new(ours)), Framing::Length).noting(Some(word));
    let epoll = epoll::create(CreateFlags::CLOEXEC).expect("epoll");
    link.flush(Poller::new(epoll.as_fd(), 0));
    (link, monitor, word)
}

/// The link of the next process after a crash of this one's.
fn after_a_crash(link: SocketLink, word: &'static AtomicU64) -> SocketLink {
    let socket = link.connection.as_ref().expect("connected").socket().try_clone().expect("dup");
    drop(link);
    let mut next =
        SocketLink::new(Box::new(Once::new(ends(SocketType::STREAM).0)), Framing::Length).noting(Some(word));
    next.restore(&[], vec![socket]);
    next
}

/// The part of a frame that the crashed process had is lost with it, and the rest of the frame is skipped,
/// also by the process after the next one. In the midst of a length the position is unknown.
#[test]
fn a_stream_goes_on_after_a_crash_in_the_midst_of_a_received_frame() {
    let bytes = [framed(60), framed(60_000)].concat();
    for cut in [0, 1, 3, 4, 40, 64, 66, 68, 69, 30_000, bytes.len() - 1, bytes.len()] {
        for upgraded in [false, true] {
            let (mut link, monitor, word) = noting();
            send(&monitor, &bytes[..cut], SendFlags::empty()).expect("room");
            taken(&mut link);
            let mut next = after_a_crash(link, word);
            let half = cut + (bytes.len() - cut) / 2;
            send(&monitor, &bytes[cut..half], SendFlags::empty()).expect("room");
            taken(&mut next);
            if [1, 3, 66].contains(&cut) {
                assert!(next.connection.is_none(), "cut at {cut}");
                continue;
            }
            let mut last =
                if upgraded { handed_over(&next, SocketType::STREAM).0 } else { after_a_crash(next, word) };
            send(&monitor, &bytes[half..], SendFlags::empty()).expect("room");
            send(&monitor, &framed(70), SendFlags::empty()).expect("room");
            let found = taken(&mut last);
            assert_eq!(found.last(), Some(&70), "cut at {cut}: {found:?}");
        }
    }
}

#[test]
fn a_position_that_no_stream_has_ends_the_connection() {
    for (missing, goes_on) in [(FRAME_MAX as u64 + 4, true), (FRAME_MAX as u64 + 5, false), (1 << 40, false)]
    {
        let (link, _monitor, word) = noting();
        word.store(missing, Relaxed);
        assert_eq!(after_a_crash(link, word).connection.is_some(), goes_on, "{missing}");
    }
}

#[test]
fn a_link_that_was_not_saved_as_one_begins_anew() {
    let file = || rustix::fs::memfd_create(c"link", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd");
    let stream = || ends(SocketType::STREAM).0;
    let pending = [&0_u32.to_le_bytes()[..], &vec![7; 1 << 20]].concat();
    let received = [&(1_u32 << 20).to_le_bytes()[..], &vec![7; 1 << 20]].concat();
    for (bytes, descriptors) in [
        (&[0; 4][..], vec![]),
        (&[0; 4], vec![file()]),
        (&[0; 4], vec![ends(SocketType::DGRAM).0]),
        (&[5, 0, 0, 0, 1, 2, 3, 4], vec![stream()]),
        (&pending, vec![stream()]),
        (&received, vec![stream()]),
    ] {
        let (ours, _monitor) = ends(SocketType::STREAM);
        let mut link = SocketLink::new(Box::new(Once::new(ours)), Framing::Length);
        link.restore(bytes, descriptors);
        assert!(link.connection.is_none(), "{} bytes", bytes.len());
    }
}

/// A source whose connections are all the same socket, that of datagrams.
struct Same(OwnedFd);

impl Connections for Same {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn request(&mut self) {}

    fn take(&mut self) -> Arrival {
        Arrival::Connected(self.0.try_clone().expect("dup"))
    }
}

#[test]
fn a_socket_of_datagrams_is_watched_for_each_monitor() {
    let (ours, monitor) = ends(SocketType::DGRAM);
    let epoll = epoll::create(CreateFlags::CLOEXEC).expect("epoll");
    let mut link = SocketLink::new(Box::new(Same(ours)), Framing::Packet);
    for round in 0..3 {
        link.flush(Poller::new(epoll.as_fd(), 0));
        assert!(link.connection.is_some(), "{round}");
        send(&monitor, &framed(60)[4..], SendFlags::empty()).expect("room");
        let mut ready = Vec::with_capacity(8);
        let none = rustix::time::Timespec::default();
        epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut ready), Some(&none)).expect("wait");
        assert_eq!((ready.len(), taken(&mut link)), (1, vec![60]), "{round}");
        // The end of this monitor.
        send(&monitor, &[], SendFlags::empty()).expect("room");
        assert_eq!(taken(&mut link), []);
        assert!(link.connection.is_none());
    }
}
