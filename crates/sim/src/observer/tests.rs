//! The observer accepts correct exchanges and names each violation.

use super::*;
use crate::packet::flags::{ACK, FIN, RST, SYN};

struct Link {
    observer: Observer,
    guest: SocketAddr,
    remote: SocketAddr,
}

impl Link {
    /// A connection with guest ISN 100, stack ISN `0xffff_fff0`, guest window 1000, scale 2 offered by both.
    fn open() -> Self {
        let [guest, remote] =
            ["10.0.2.15:4000", "192.0.2.1:80"].map(|a| a.parse().expect("an address literal"));
        let mut link = Self { observer: Observer::default(), guest, remote };
        let mut syn = TcpSegment::new(guest, remote);
        (syn.flags, syn.seq, syn.window, syn.wscale, syn.mss) = (SYN, 100, 1000, Some(2), Some(500));
        link.observer.from_guest(&syn);
        let mut answer = link.segment(SYN | ACK, 0xffff_fff0, 101, 4000, 0);
        answer.wscale = Some(3);
        assert_eq!(link.observer.to_guest(&answer), Ok(()));
        link
    }

    fn segment(&self, flags: u8, seq: u32, ack: u32, window: u16, len: usize) -> TcpSegment {
        let mut s = TcpSegment::new(self.remote, self.guest);
        (s.flags, s.seq, s.ack, s.window, s.data) = (flags, seq, ack, window, vec![0; len]);
        s
    }

    fn guest(&mut self, flags: u8, seq: u32, ack: u32, window: u16, len: usize) {
        let mut s = self.segment(flags, seq, ack, window, len);
        std::mem::swap(&mut s.src, &mut s.dst);
        self.observer.from_guest(&s);
    }

    fn stack(&mut self, flags: u8, seq: u32, ack: u32, window: u16, len: usize) -> Result<(), String> {
        let s = self.segment(flags, seq, ack, window, len);
        self.observer.to_guest(&s)
    }
}

#[test]
fn a_correct_exchange_passes_across_the_wrap() {
    let mut l = Link::open();
    l.guest(ACK, 101, 0xffff_fff1, 250, 300);
    assert_eq!(l.stack(ACK, 0xffff_fff1, 401, 463, 500), Ok(()));
    assert_eq!(l.stack(ACK | FIN, 485, 401, 463, 500), Ok(()));
    assert_eq!(l.observer.retransmitted(), 0);
    assert_eq!(l.stack(ACK | FIN, 485, 401, 463, 500), Ok(()));
    assert_eq!((l.observer.retransmitted(), l.observer.data_bytes()), (1, 1500));
    assert_eq!(l.stack(RST | ACK, 986, 401, 0, 0), Ok(()));
}

#[test]
fn resets_stand_where_the_guest_takes_them() {
    let base = 0xffff_fff1_u32;
    let mut l = Link::open();
    assert_eq!(l.stack(ACK, base, 101, 500, 300), Ok(()));
    l.observer.begin_batch();
    l.guest(ACK, 101, base.wrapping_add(100), 250, 50);
    for at in [100, 250, 300] {
        assert_eq!(l.stack(RST | ACK, base.wrapping_add(at), 151, 0, 0), Ok(()), "{at}");
    }
    for (flags, at, ack) in [(RST | ACK, 99, 151), (RST | ACK, 301, 151), (RST, 0, 0), (RST | ACK, 200, 152)]
    {
        let found = l.stack(flags, base.wrapping_add(at), ack, 0, 0);
        assert!(found.as_ref().is_err_and(|e| e.contains("a reset")), "{at}: {found:?}");
    }
    // Of a segment that comes when the connection is gone, and in the same batch alone.
    l.guest(ACK, 9000, 5, 250, 0);
    assert_eq!(l.stack(RST, 5, 0, 0, 0), Ok(()));
    assert!(l.stack(RST | ACK, 5, 0, 0, 0).is_err());
    l.observer.begin_batch();
    assert!(l.stack(RST, 5, 0, 0, 0).is_err());
    // A SYN that is refused long after it came; not that of the connection.
    l.guest(SYN, 700, 0, 1000, 0);
    l.observer.begin_batch();
    assert_eq!(l.stack(RST | ACK, 0, 701, 0, 0), Ok(()));
    assert!(l.stack(RST | ACK, 0, 101, 0, 0).is_err());
}

#[test]
fn each_rule_is_checked() {
    let base = 0xffff_fff1;
    // (flags, seq, ack, window, length, a word of the complaint)
    let cases = [
        (ACK, base, 101, 499, 0, "edge"),
        (ACK, base, 100, 500, 0, "back"),
        (ACK, base, 102, 500, 0, "has not sent"),
        (0, base, 101, 500, 0, "neither"),
        (ACK, base + 1, 101, 500, 0, "gap"),
        (ACK, base, 101, 500, 501, "MSS"),
        (SYN | ACK, 7, 99, 500, 0, "does not acknowledge"),
    ];
    for (flags, seq, ack, window, len, word) in cases {
        let found = Link::open().stack(flags, seq, ack, window, len);
        assert!(found.as_ref().is_err_and(|e| e.contains(word)), "{word}: {found:?}");
    }
    let mut l = Link::open();
    assert_eq!(l.stack(ACK, base, 101, 500, 500), Ok(()));
    assert_eq!(l.stack(ACK, base.wrapping_add(500), 101, 500, 500), Ok(()));
    assert_eq!(l.stack(ACK, base.wrapping_add(1000), 101, 500, 1), Ok(()), "a probe");
    assert!(l.stack(ACK, base.wrapping_add(1001), 101, 500, 2).is_err_and(|e| e.contains("window")));
    let mut l = Link::open();
    assert_eq!(l.stack(ACK | FIN, base, 101, 500, 10), Ok(()));
    assert_eq!(l.stack(ACK, base.wrapping_add(11), 101, 500, 0), Ok(()));
    assert!(l.stack(ACK, base.wrapping_add(10), 101, 500, 1).is_err_and(|e| e.contains("after FIN")));
}
