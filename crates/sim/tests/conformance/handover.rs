//! Snapshots that are not whole: flows that are lost, state that is left out, records of other versions; and
//! the first version of the format, which stays readable.

use brodo_core::config::Config;
use brodo_core::flow::FlowId;
use brodo_core::flow::info::Carrier;
use brodo_core::host::SocketId;
use brodo_core::memory::budget::Budget;
use brodo_core::snapshot::{Record, Records, RestoreError, Tag};
use brodo_core::stack::{Adopt, Omitted, Restored, Settings, SocketKind, Stack};
use brodo_core::time::{Duration, Instant};
use brodo_sim::handover::Snapshot;
use brodo_sim::samples::{SAMPLES, script, snapshot};
use brodo_sim::script::Script;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

/// The host's side of a restored script: sockets as they were, but for the refused ones.
struct Sockets<'a> {
    sockets: &'a [SocketId],
    refused: &'a [u32],
}

impl Adopt for Sockets<'_> {
    fn socket(&mut self, _: FlowId, index: u32, _: SocketKind) -> Option<SocketId> {
        self.sockets.get(index as usize).copied().filter(|_| !self.refused.contains(&index))
    }

    fn carrier(&mut self, _: FlowId, _: Carrier, number: u32) -> Option<u32> {
        Some(number)
    }
}

fn config() -> Config {
    Config { mtu: 1500, ..Config::default() }
}

fn settings(t: &Script) -> Settings {
    let config = t.driver.stack.config().clone();
    let budget = Arc::new(Budget::new(config.memory));
    Settings {
        config,
        caps: t.setup().caps,
        budget,
        worker: 0,
        host_addresses: Arc::default(),
        payload: None,
        room: None,
    }
}

/// Restores the stack of a script from `bytes`; the descriptors of `refused` are not there.
fn restore(
    t: &Script,
    bytes: &[u8],
    sockets: &[SocketId],
    refused: &[u32],
) -> Result<Restored, RestoreError> {
    Stack::restore(settings(t), t.now(), bytes, &mut Sockets { sockets, refused })
}

/// The records of a snapshot, each changed by `change`, which may leave it out.
fn changed(snapshot: &Snapshot, change: impl Fn(Record<'_>) -> Option<Record<'_>>) -> Vec<u8> {
    let mut out = Vec::new();
    Records::new(&snapshot.bytes).filter_map(change).for_each(|record| record.write(&mut out));
    out
}

/// Hands the script's stack over to the one restored from `bytes`; gives the numbers of lost flows and of
/// unused records.
fn hand_over(t: &mut Script, bytes: &[u8], sockets: &[SocketId], refused: &[u32]) -> (usize, usize) {
    let Restored { stack, mut lost, unused } = restore(t, bytes, sockets, refused).expect("restored");
    t.driver.stack = stack;
    let (now, count) = (t.now(), lost.len());
    let sent = t.driver.turn_with(now, |stack, io| stack.reset_lost(io, &mut lost));
    t.see_all(&sent);
    (count, unused)
}

/// Two connections with data both ways; gives the index of the second.
fn two(t: &mut Script) -> usize {
    t.establish();
    t.guest("ACK data=100");
    t.expect("ACK ack=101");
    let second = t.connection(40_001, 80);
    t.establish();
    t.host_sends(50);
    t.expect("ACK|PSH data=50");
    second
}

#[test]
fn a_flow_of_another_version_is_reset_alone() {
    let mut t = script(config());
    let second = two(&mut t);
    let saved = snapshot(&t);
    let mut first = true;
    let mut out = Vec::new();
    for record in Records::new(&saved.bytes) {
        let later = record.tag == Tag::TcpFlow as u16 && std::mem::take(&mut first);
        Record { version: if later { 2 } else { record.version }, ..record }.write(&mut out);
    }
    assert_eq!(hand_over(&mut t, &out, &saved.sockets, &[]), (1, 1));
    assert_eq!(t.driver.stack.flows(), 1);
    // SND.NXT and RCV.NXT of the connection that is lost.
    t.expect("RST|ACK seq=1 ack=101");
    t.expect_nothing();
    t.select(second);
    t.guest("ACK ack=51 data=7");
    t.expect("ACK ack=8");
    t.host_received(7);
}

/// A connection that was recovered from a crash, and whose guest has not acknowledged yet what was sent
/// before.
#[test]
fn a_connection_that_has_resumed_goes_on() {
    let mut t = super::crash::resumed();
    t.driver.crashes = None;
    let saved = snapshot(&t);
    assert_eq!(hand_over(&mut t, &saved.bytes, &saved.sockets, &[]), (0, 0));
    t.expect_nothing();
    t.guest("ACK ack=1301");
    t.host_sends(10);
    t.expect("ACK|PSH seq=1301 ack=1 data=10");
}

#[test]
fn a_flow_without_its_descriptor_is_reset() {
    let mut t = script(config());
    two(&mut t);
    let saved = snapshot(&t);
    assert_eq!(hand_over(&mut t, &saved.bytes, &saved.sockets, &[1]), (1, 1));
    t.expect("RST|ACK seq=51 ack=1");
    t.expect_nothing();
    assert_eq!((t.driver.stack.flows(), t.driver.stack.memory_used()), (1, 0));
}

#[test]
fn two_flows_cannot_have_one_descriptor() {
    let mut t = script(config());
    two(&mut t);
    let mut bytes = Vec::new();
    let write = |record: Record<'_>| record.write(&mut bytes);
    assert_eq!(t.driver.stack.save(t.now(), |_, _| 0, write), Omitted::default());
    let sockets: Vec<SocketId> = t.driver.host.all().collect();
    assert_eq!(hand_over(&mut t, &bytes, &sockets, &[]), (1, 1));
}

#[test]
fn records_of_unknown_tags_are_skipped() {
    let mut t = script(config());
    two(&mut t);
    let saved = snapshot(&t);
    // The learnt names, of which there are none, as something that this version does not know.
    let out = changed(&saved, |record| {
        Some(Record { tag: if record.tag == Tag::LearntNames as u16 { 999 } else { record.tag }, ..record })
    });
    let Restored { stack, lost, unused } = restore(&t, &out, &saved.sockets, &[]).expect("restored");
    assert_eq!((lost, unused), (vec![], 1));
    assert!(Snapshot::of(&stack, t.now()).bytes == saved.bytes, "nothing but that record was left out");
}

#[test]
fn without_the_orders_all_flows_go_on() {
    let orders = [Tag::Table, Tag::Timers, Tag::Schedule, Tag::Parked];
    for left_out in orders {
        let mut t = script(config());
        let second = two(&mut t);
        let third = t.connection(40_002, 80);
        t.guest("SYN win=65535 mss=1460");
        let saved = snapshot(&t);
        // A version that this one does not know: as if it were not there.
        let out = changed(&saved, |record| {
            let later = record.tag == left_out as u16;
            Some(Record { version: if later { 2 } else { record.version }, ..record })
        });
        assert_eq!(hand_over(&mut t, &out, &saved.sockets, &[]), (0, 1), "{left_out:?}");
        t.select(0);
        t.guest("ACK data=3");
        t.expect("ACK ack=104");
        t.select(second);
        // The tail is sent again.
        t.expect_within_ms(2000, "ACK seq=1 data=50");
        t.guest("FIN|ACK ack=51");
        t.expect("ACK ack=2");
        t.select(third);
        t.host_connected();
        t.expect("SYN|ACK seq=0 ack=1");
    }
}

#[test]
fn a_snapshot_that_is_none_gives_no_stack() {
    let mut t = script(config());
    two(&mut t);
    let saved = snapshot(&t);
    let error = |t: &Script, bytes: &[u8]| restore(t, bytes, &saved.sockets, &[]).map(|_| ()).unwrap_err();
    assert_eq!(error(&t, &[]), RestoreError::NotASnapshot);
    assert_eq!(error(&t, &saved.bytes[1..]), RestoreError::NotASnapshot);
    assert_eq!(error(&t, &saved.bytes[..saved.bytes.len() - 1]), RestoreError::Truncated);
    let without = |tag: Tag| changed(&saved, |record| (record.tag != tag as u16).then_some(record));
    assert_eq!(error(&t, &without(Tag::Parked)), RestoreError::Truncated);
    let keyless = changed(&saved, |record| {
        Some(Record { version: if record.tag == Tag::Keys as u16 { 2 } else { record.version }, ..record })
    });
    assert_eq!(error(&t, &keyless), RestoreError::NoKeys);
    let later = changed(&saved, |record| {
        Some(Record { version: if record.tag == Tag::Begin as u16 { 7 } else { record.version }, ..record })
    });
    assert_eq!(error(&t, &later), RestoreError::UnknownVersion(7));
    let before = Instant::ZERO + (t.now() - Instant::from_ms(1));
    let mut adopt = Sockets { sockets: &saved.sockets, refused: &[] };
    let early = Stack::restore(settings(&t), before, &saved.bytes, &mut adopt).map(|_| ()).unwrap_err();
    assert_eq!(early, RestoreError::ClockBehind);
}

/// By design a pending query is not handed over; its flow and socket are gone, and the guest's repetition is
/// answered.
#[test]
fn a_pending_query_is_left_out_and_asked_again() {
    let mut t = script(config());
    let dns = SocketAddr::new(t.setup().config.v4.expect("IPv4").dns.expect("DNS").into(), 53);
    let question = [0, 9, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, b'x', 0, 0, 1, 0, 1];
    t.connection(43_000, 53);
    t.guest_udp(dns, &question);
    let saved = snapshot(&t);
    assert_eq!(saved.omitted, Omitted { dns_flows: 1, ..Omitted::default() });
    assert_eq!(saved.sockets, []);
    assert_eq!(hand_over(&mut t, &saved.bytes, &saved.sockets, &[]), (0, 0));
    assert_eq!(t.driver.stack.flows(), 0);
    t.guest_udp(dns, &question);
    let socket = t.driver.host.last().expect("asked again");
    let (mut answer, _) = t.driver.host.take_datagram(socket).expect("a query");
    answer[2] |= 0x80;
    t.driver.host.peer_datagram(socket, &answer, None);
    t.poll();
    t.expect("UDP sport=53 dport=43000 data=19 tos=0");
}

/// By design an incomplete packet is not handed over: its first fragment is sent again with the others.
#[test]
fn an_incomplete_packet_is_left_out() {
    let mut t = script(config());
    t.connection(42_000, 9);
    let whole = t.frame("UDP data=40");
    // The first 24 bytes behind the header, with more to follow.
    let mut first = whole[..14 + 20 + 24].to_vec();
    first[14 + 2..14 + 4].copy_from_slice(&44u16.to_be_bytes());
    first[14 + 6] |= 0x20;
    first[14 + 10..14 + 12].fill(0);
    let sum = first[14..34].chunks(2).map(|b| u32::from(b[0]) << 8 | u32::from(b[1])).sum::<u32>();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    first[14 + 10..14 + 12].copy_from_slice(&sum.to_be_bytes());
    t.guest_raw(&first);
    let saved = snapshot(&t);
    assert_eq!(saved.omitted, Omitted { fragments: 1, ..Omitted::default() });
    assert_eq!(hand_over(&mut t, &saved.bytes, &saved.sockets, &[]), (0, 0));
    t.guest_raw(&whole);
    assert_eq!(t.driver.stack.counters().udp_opened, 1);
}

/// Where the snapshot of version 1 is kept.
fn fixture() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/conformance/snapshot-v1.bin"))
}

/// Snapshot of version 1, written when there was no other. It stays as it is: this version's stack goes on
/// from it. (`BRODO_BLESS=1` writes it where it is missing.)
#[test]
fn a_snapshot_of_version_1_is_restored() {
    let mut t = script(config());
    for (_, play) in SAMPLES {
        play(&mut t);
    }
    let sockets = snapshot(&t).sockets;
    if std::env::var_os("BRODO_BLESS").is_some() && !fixture().exists() {
        std::fs::write(fixture(), snapshot(&t).bytes).expect("the fixture can be written");
    }
    let bytes = std::fs::read(fixture()).expect("the fixture");
    let flows = t.driver.stack.flows();
    let restored = restore(&t, &bytes, &sockets, &[]).expect("a snapshot");
    assert_eq!((restored.lost, restored.unused), (vec![], 0));
    assert_eq!(restored.stack.flows(), flows);
    t.driver.stack = restored.stack;
    // The rest of the batch comes first, a datagram in fragments and a small one; then a segment is sent
    // again.
    t.link_credit(None);
    assert_eq!(t.take_all().len(), 2);
    t.advance_ms(400);
    let again = t.take_all();
    assert!(again.iter().any(|line| line.to_string().contains("seq=1 ")), "sent again: {again:?}");
    // Bytes that the host did not take, and those ahead of a gap.
    t.connection(41_001, 80);
    assert!(t.driver.stack.memory_used() > 0);
    assert_eq!(t.driver.stack.name_of([203, 0, 113, 5].into()), Some("www.example.org"));
    let ends = t.driver.stack.ends_at_shutdown(t.now() + Duration::from_secs(1)).count();
    assert!(ends >= flows - 2, "{ends} of {flows} flows are there still");
}
