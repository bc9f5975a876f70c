//! Kernel behaviour that the watch relies on, asserted on the running one.

use super::{QueueState, TxQueueLenWatch};
use brodo_core::link::FRAME_MAX;
use brodo_link::GuestLink;
use brodo_link::tap::{Tap, Wanted};
use brodo_testns::{in_namespace_with_tun, ip};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::net::UdpSocket;

fn is_readable(watch: &TxQueueLenWatch) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(watch.descriptor().expect("an interface"), PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).expect("poll") == 1
}

#[test]
fn length_changes_and_drops_are_seen() {
    in_namespace_with_tun("txqueuelen::tests::length_changes_and_drops_are_seen", || {
        let mut tap = Tap::create("tap0", Wanted::Everything).expect("TAP");
        std::fs::write("/proc/sys/net/ipv6/conf/tap0/disable_ipv6", "1").expect("no IPv6 chatter");
        ip("link set tap0 txqueuelen 4");
        ip("addr add 10.0.2.15/24 dev tap0");
        ip("link set tap0 up");
        ip("neigh add 10.0.2.2 lladdr 02:00:00:00:00:02 dev tap0");
        let watch = TxQueueLenWatch::new(TxQueueLenWatch::socket().expect("socket"), "tap0").expect("watch");
        assert!(!is_readable(&watch), "state from before the watch is not a change");
        assert_eq!(watch.ask(), Ok(QueueState { frames: 4, dropped: 0 }));

        ip("link set tap0 txqueuelen 10");
        assert!(is_readable(&watch), "the change is notified");
        assert_eq!(watch.ask(), Ok(QueueState { frames: 10, dropped: 0 }));
        assert!(!is_readable(&watch), "and that was it");

        let socket = UdpSocket::bind("10.0.2.15:0").expect("bind");
        for _ in 0..15 {
            socket.send_to(b"datagram", "10.0.2.2:9").expect("the sender does not hear of a full ring");
        }
        let dropped = if tap.has_lossy_ring() { 5 } else { 0 };
        assert_eq!(watch.ask(), Ok(QueueState { frames: 10, dropped }));
        let mut frames = 0;
        while tap.recv(&mut vec![0; FRAME_MAX]).expect("read").is_some() {
            frames += 1;
        }
        assert_eq!(frames + dropped, 15);

        assert_eq!((watch.frames(), watch.dropped()), (None, 0), "no query so far");
        watch.look();
        assert_eq!((watch.frames(), watch.dropped()), (Some(10), dropped));

        drop(tap);
        watch.look();
        assert_eq!((watch.frames(), watch.dropped()), (Some(10), dropped));
        assert_eq!(watch.ask(), Err(Errno::NODEV));
        assert_eq!(
            TxQueueLenWatch::new(TxQueueLenWatch::socket().expect("socket"), "tap0").map(drop),
            Err(Errno::NODEV)
        );
    });
}

#[test]
fn an_answer_without_what_was_asked_is_an_error() {
    assert_eq!(QueueState::parse(&[]), Err(Errno::BADMSG));
    assert_eq!(QueueState::parse(&[0; 16]), Err(Errno::BADMSG));
    // A queue length of two bytes, and an attribute longer than the message.
    let short = [[0; 16].as_slice(), &6u16.to_ne_bytes(), &libc::IFLA_TXQLEN.to_ne_bytes(), &[1, 0, 0, 0]];
    assert_eq!(QueueState::parse(&short.concat()), Err(Errno::BADMSG));
    let long = [[0; 16].as_slice(), &60u16.to_ne_bytes(), &libc::IFLA_TXQLEN.to_ne_bytes(), &[1, 0, 0, 0]];
    assert_eq!(QueueState::parse(&long.concat()), Err(Errno::BADMSG));
}
