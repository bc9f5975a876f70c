//! Tests of the journal: what is read is what was written, and half a record is none.

use super::carried::{DriverJournal, SpliceRecord};
use super::promoted::PromotedRecord;
use super::*;
use crate::flow::info::Initiator;
use crate::time::Duration;
use std::net::{SocketAddr, SocketAddrV6};

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
        segments: (7, u32::MAX),
        retransmissions: 8,
        connect_us: 9,
        read_all: true,
        away: false,
        tx_end: Seq(u32::MAX - 1),
        rx_nxt: Seq(9),
    }
}

fn datagram_state(socket: Option<u32>) -> DatagramState {
    let from_guest = Traffic { bytes: u64::MAX, packets: u32::MAX.into() };
    DatagramState { socket, answered: true, from_guest, to_guest: Traffic { bytes: 1, packets: 2 } }
}

fn carried_state(initiator: Initiator, protocol: Protocol) -> CarriedState {
    let DatagramState { from_guest, to_guest, .. } = datagram_state(None);
    let state = CarriedState {
        initiator,
        answered: true,
        connect: None,
        from_initiator: Traffic::default(),
        from_responder: Traffic::default(),
    };
    match protocol {
        Protocol::Tcp => CarriedState { connect: Some(Duration::from_micros(77)), ..state },
        _ => CarriedState { from_initiator: from_guest, from_responder: to_guest, ..state },
    }
}

fn only_record(slots: &'static [Slot]) -> Option<RecordKind> {
    Remains::take(slots).records.pop().map(|record| record.kind)
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
    let datagrams = datagram_state(Some(u32::MAX - 1));
    journal.datagrams(two, &udp, at, &datagrams);
    assert_eq!(Remains::read(slots).flows(), 3);
    let remains = Remains::take(slots);
    let opened_at = at;
    let advertised = Advertised { ack: Seq(7), edge: Seq(8) };
    let newer = TcpState { advertised, ..state() };
    let expected = [
        Record { id: two, key: udp, opened_at, kind: RecordKind::Datagrams(datagrams) },
        Record { id: three, key: tcp, opened_at, kind: RecordKind::Tcp(other) },
        Record { id: one, key: tcp, opened_at, kind: RecordKind::Tcp(newer) },
    ];
    assert_eq!(remains.records, expected);
    assert_eq!(remains.descriptors().collect::<Vec<_>>(), [u32::MAX - 1, 0]);
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
fn addresses_of_the_guest_are_read_as_written() {
    let slots = slots(1);
    assert!(Remains::take(slots).guest_addresses.is_empty());
    let journal = Journal::new(slots);
    let addresses: Vec<IpAddr> = ["10.0.2.100", "fd00::7"].map(|text| text.parse().expect("one")).into();
    for _ in 0..2 {
        for ip in &addresses {
            journal.guest_address(*ip);
        }
        assert_eq!(Remains::read(slots).guest_addresses, addresses);
        assert_eq!(Remains::take(slots).guest_addresses, addresses);
        assert!(Remains::take(slots).guest_addresses.is_empty(), "the memory is cleared");
    }
}

#[test]
fn the_end_of_a_flow_ends_its_record() {
    let slots = slots(2);
    let journal = Journal::new(slots);
    let id = FlowId { index: 0, generation: 1 };
    journal.tcp(id, &key(Protocol::Tcp, false), Instant::ZERO, &state());
    journal.forget_socket(id);
    assert_eq!(read(&slots[0], 0).map(|record| record.socket()), Some(None));
    journal.end(id);
    // A segment that is still sent, its reset for example, makes none.
    journal.advertise(id, Seq(1), Seq(2));
    assert_eq!(read(&slots[0], 0), None);
    // The next flow in the slot is another one.
    let next = FlowId { generation: 2, ..id };
    journal.datagrams(next, &key(Protocol::Echo, true), Instant::ZERO, &datagram_state(Some(4)));
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

#[test]
fn a_splice_is_read_with_the_sockets_and_pipes_of_its_driver() {
    let slots = slots(4);
    let (journal, driver) = (Journal::new(slots), DriverJournal::new(slots));
    let (id, key) = (FlowId { index: 2, generation: 5 }, key(Protocol::Tcp, false));
    let state = carried_state(Initiator::Peer, Protocol::Tcp);
    driver.splice(id, [0, 9]);
    assert_eq!(Remains::take(slots).flows(), 0, "the stack has not begun it");
    journal.carried(id, &key, Instant::ZERO, &state);
    driver.pipe(id, 1, Some((3, u32::MAX - 1)));
    let record =
        SpliceRecord { initiator: Initiator::Peer, sockets: [0, 9], pipes: [None, Some((3, u32::MAX - 1))] };
    let remains = Remains::take(slots);
    assert_eq!(remains.records[0].kind, RecordKind::Carried(state, CarriedRecord::Splice(record)));
    assert_eq!(remains.records[0].key, key);
    assert_eq!(remains.descriptors().collect::<Vec<_>>(), [0, 9, 3, u32::MAX - 1]);
    // Words that are there already stand until they change.
    journal.carried(id, &key, Instant::ZERO, &state);
    driver.pipe(id, 1, None);
    let drained = SpliceRecord { pipes: [None; 2], ..record };
    assert_eq!(only_record(slots), Some(RecordKind::Carried(state, CarriedRecord::Splice(drained))));
    journal.carried(id, &key, Instant::ZERO, &state);
    driver.forget(id);
    assert_eq!(only_record(slots), None, "its sockets are closed");
}

#[test]
fn a_promoted_flow_is_read_with_its_kernel_socket_and_pipes() {
    let slots = slots(3);
    let (journal, driver) = (Journal::new(slots), DriverJournal::new(slots).of_promoted());
    let (id, key) = (FlowId { index: 1, generation: 5 }, key(Protocol::Tcp, false));
    // Words of another kind of flow that had the slot before.
    for word in [14, 15] {
        slots[1][word].store(u64::MAX, Ordering::Relaxed);
    }
    journal.tcp(id, &key, Instant::ZERO, &state());
    let away = TcpState { away: true, ..state() };
    let write = || journal.tcp(id, &key, Instant::ZERO, &away);
    write();
    assert_eq!(only_record(slots), Some(RecordKind::Tcp(away)), "no kernel socket was started");
    write();
    driver.promoted(id, 7);
    driver.pipe(id, 0, Some((3, (1 << 21) - 3)));
    driver.pipe(id, 1, Some((0, 5)));
    let record =
        PromotedRecord { kernel: 7, pipes: [Some((3, (1 << 21) - 3)), Some((0, 5))], unsettled: true };
    let remains = Remains::take(slots);
    assert_eq!(remains.records[0].kind, RecordKind::Promoted(away, record));
    assert_eq!(remains.descriptors().collect::<Vec<_>>(), [0, 7, 3, (1 << 21) - 3, 0, 5]);
    // The next process writes the stack's words anew, and the driver's stand meanwhile.
    write();
    driver.promoted_unsettled(id, false);
    driver.pipe(id, 0, None);
    let settled = PromotedRecord { pipes: [None, Some((0, 5))], unsettled: false, ..record };
    assert_eq!(only_record(slots), Some(RecordKind::Promoted(away, settled)));
    write();
    driver.promoted(id, u32::MAX);
    let unknown = PromotedRecord { kernel: (1 << 21) - 2, pipes: [None; 2], unsettled: true };
    assert_eq!(only_record(slots), Some(RecordKind::Promoted(away, unknown)), "a number too large");
    write();
    driver.promoted(FlowId { generation: 6, ..id }, 9);
    driver.promotion_over(id);
    assert_eq!(only_record(slots), Some(RecordKind::Tcp(away)), "it is back");
}

#[test]
fn peers_are_read_as_written() {
    let slots = slots(4);
    let (journal, driver) = (Journal::new(slots), DriverJournal::new(slots));
    let id = FlowId { index: 0, generation: 5 };
    let v6 = SocketAddrV6::new([0xfe80, 0, 0, 0, 0, 0, 0, 1].into(), u16::MAX, 0, 7);
    let sources = [None, Some([127, 0, 0, 9].into()), Some([1, 2, 3, 4, 5, 6, 7, u16::MAX].into())];
    for (peer, source) in [SocketAddr::from(([127, 0, 0, 1], 53)), v6.into()]
        .into_iter()
        .flat_map(|peer| sources.map(|source| (peer, source)))
    {
        for socket in [None, Some(0), Some(12)] {
            let record = PeerRecord { socket, listener: u32::MAX, peer, source };
            driver.peer(id, &record);
            let key = key(Protocol::Udp, peer.is_ipv6());
            let relayed = carried_state(Initiator::Guest, Protocol::Udp);
            journal.carried(id, &key, Instant::ZERO, &relayed);
            let expected = RecordKind::Carried(relayed, CarriedRecord::Relay(record));
            assert_eq!(only_record(slots), Some(expected));
            let state = datagram_state(None);
            journal.datagrams(id, &key, Instant::ZERO, &state);
            assert_eq!(only_record(slots), Some(RecordKind::Published(state, record)));
        }
    }
}

#[test]
fn a_flow_that_is_over_changes_no_word_of_the_next_one() {
    let slots = slots(3);
    let (journal, driver) = (Journal::new(slots), DriverJournal::new(slots));
    let before = FlowId { index: 1, generation: 1 };
    driver.splice(before, [5, 6]);
    journal.carried(
        before,
        &key(Protocol::Tcp, true),
        Instant::ZERO,
        &carried_state(Initiator::Guest, Protocol::Tcp),
    );
    journal.end(before);
    let next = FlowId { generation: 2, ..before };
    journal.tcp(next, &key(Protocol::Tcp, true), Instant::ZERO, &state());
    driver.pipe(before, 0, None);
    driver.pipe(before, 1, Some((1, 2)));
    driver.change_peer(
        before,
        &PeerRecord { socket: None, listener: 0, peer: ([0; 4], 0).into(), source: None },
    );
    driver.forget(before);
    assert_eq!(only_record(slots), Some(RecordKind::Tcp(state())));
    // One without a slot has no words.
    driver.splice(FlowId { index: 2, generation: 1 }, [1, 2]);
    DriverJournal::default().splice(before, [1, 2]);
}
