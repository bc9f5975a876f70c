//! Tests of the journal: what is read is what was written, and half a record is none.

use super::*;

fn slots(count: usize) -> &'static [Slot] {
    Box::leak((0..count).map(|_| Slot::default()).collect())
}

fn key(protocol: Protocol, v6: bool) -> FlowKey {
    let ip = |last: u8| -> IpAddr {
        if v6 {
            [0xfd, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, last].into()
        } else {
            [10, 0, 0, last].into()
        }
    };
    FlowKey { protocol, guest: Endpoint::new(ip(2), 40_000), remote: Endpoint::new(ip(9), 443) }
}

fn state() -> TcpState {
    TcpState {
        tx: 3,
        rx: 1,
        advertised: Advertised { ack: Seq(1), edge: Seq(2) },
        una: Seq(u32::MAX),
        wnd: 65_535 << 14,
        socket: Some(0),
        mss: 1460,
        peer_scale: Some(14),
        scale: 7,
        sack: true,
        inbound: true,
        broken: false,
        passive: true,
        tx_begin: Seq(5),
        rx_begin: Seq(6),
    }
}

#[test]
fn records_are_read_as_written() {
    let slots = slots(4);
    let journal = Journal::new(slots);
    let (one, two) = (FlowId { index: 2, generation: u32::MAX }, FlowId { index: 0, generation: 0 });
    let (tcp, udp) = (key(Protocol::Tcp, true), key(Protocol::Udp, false));
    let at = Instant::from_ns(77);
    journal.tcp(one, &tcp, at, &state());
    let other = TcpState { socket: None, peer_scale: None, sack: false, broken: true, ..state() };
    let three = FlowId { index: 1, generation: 9 };
    journal.tcp(three, &tcp, at, &other);
    journal.advertise(one, Seq(7), Seq(8));
    journal.datagrams(two, &udp, at, u32::MAX - 1, true);
    let remains = Remains::take(slots);
    let opened_at = at;
    let advertised = Advertised { ack: Seq(7), edge: Seq(8) };
    let newer = TcpState { advertised, ..state() };
    let expected = [
        Record {
            id: two,
            key: udp,
            socket: Some(u32::MAX - 1),
            opened_at,
            kind: RecordKind::Datagrams { answered: true },
        },
        Record { id: three, key: tcp, socket: None, opened_at, kind: RecordKind::Tcp(other) },
        Record { id: one, key: tcp, socket: Some(0), opened_at, kind: RecordKind::Tcp(newer) },
    ];
    assert_eq!(remains.records, expected);
    assert_eq!(Remains::take(slots).flows(), 0, "the memory is cleared");
}

#[test]
fn the_mac_address_of_the_guest_is_read_as_written() {
    let slots = slots(1);
    assert_eq!(Remains::take(slots).guest_mac, None);
    let journal = Journal::new(slots);
    for (mac, read) in [([2, 0, 0, 0, 0, 7], true), ([0; 6], true), ([0xff; 6], false)] {
        journal.guest_mac(MacAddr(mac));
        assert_eq!(Remains::take(slots).guest_mac, read.then_some(MacAddr(mac)));
        assert_eq!(Remains::take(slots).guest_mac, None, "the memory is cleared");
    }
}

#[test]
fn the_end_of_a_flow_ends_its_record() {
    let slots = slots(2);
    let journal = Journal::new(slots);
    let id = FlowId { index: 0, generation: 1 };
    journal.tcp(id, &key(Protocol::Tcp, false), Instant::ZERO, &state());
    journal.forget_socket(id);
    assert_eq!(read(&slots[0], 0).map(|record| record.socket), Some(None));
    journal.end(id);
    // A segment that is still sent, its reset for example, makes none.
    journal.advertise(id, Seq(1), Seq(2));
    assert_eq!(read(&slots[0], 0), None);
    // The next flow in the slot is another one.
    let next = FlowId { generation: 2, ..id };
    journal.datagrams(next, &key(Protocol::Echo, true), Instant::ZERO, 4, false);
    assert_eq!(read(&slots[0], 0).map(|record| record.key), Some(key(Protocol::Echo, true)));
}

#[test]
fn a_flow_without_a_slot_has_no_record() {
    let journal = Journal::default();
    assert!(!journal.is_on());
    let id = FlowId { index: 5, generation: 1 };
    journal.tcp(id, &key(Protocol::Tcp, false), Instant::ZERO, &state());
    journal.advertise(id, Seq(1), Seq(2));
    journal.end(id);
}
