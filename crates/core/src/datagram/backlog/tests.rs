//! Records in chunks: order, runs, bounds and what is given back.

use super::*;
use crate::config::{Config, Keys};
use crate::flow::FlowId;
use crate::host::{Close, Connect, IcmpReport, Received};
use crate::link::LinkCaps;
use crate::memory::budget::Budget;
use crate::time::Duration;
use std::io::IoSliceMut;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// A host that takes a number of datagrams and notes each send: sizes of its datagrams, and TOS.
#[derive(Default)]
struct Recorder {
    room: usize,
    sends: Vec<(Vec<usize>, u8)>,
    bytes: Vec<u8>,
}

fn marked(tos: u8) -> IpHeaderFields {
    IpHeaderFields { tos, ..IpHeaderFields::default() }
}

impl Host for Recorder {
    fn datagram_send(
        &mut self,
        _: SocketId,
        data: &[IoSlice<'_>],
        segment: Option<u16>,
        fields: IpHeaderFields,
    ) -> Result<usize, HostError> {
        if self.room == 0 {
            return Err(HostError::WouldBlock);
        }
        let mut all: Vec<u8> = data.iter().flat_map(|slice| slice.to_vec()).collect();
        let size = segment.map_or(all.len(), usize::from).max(1);
        all.truncate(size * self.room);
        self.room -= all.len().div_ceil(size).max(1);
        self.sends.push((all.chunks(size).map(<[u8]>::len).collect(), fields.tos));
        self.bytes.extend_from_slice(&all);
        Ok(all.len())
    }

    fn tcp_connect(&mut self, _: FlowId, _: SocketAddr) -> Result<(SocketId, Connect), HostError> {
        unreachable!()
    }
    fn tcp_connected(&mut self, _: SocketId) -> Result<Connect, HostError> {
        unreachable!()
    }
    fn tcp_send(&mut self, _: SocketId, _: &[IoSlice<'_>]) -> Result<usize, HostError> {
        unreachable!()
    }
    fn tcp_recv(&mut self, _: SocketId, _: &mut [IoSliceMut<'_>]) -> Result<usize, HostError> {
        unreachable!()
    }
    fn tcp_error(&mut self, _: SocketId) -> Option<HostError> {
        unreachable!()
    }
    fn tcp_shutdown(&mut self, _: SocketId) -> Result<(), HostError> {
        unreachable!()
    }
    fn tcp_keep_alive(&mut self, _: SocketId) {}
    fn udp_open(&mut self, _: FlowId, _: Option<SocketAddr>, _: SocketAddr) -> Result<SocketId, HostError> {
        unreachable!()
    }
    fn ping_open(&mut self, _: FlowId, _: IpAddr) -> Result<SocketId, HostError> {
        unreachable!()
    }
    fn datagram_recv(
        &mut self,
        _: SocketId,
        _: &mut [IoSliceMut<'_>],
        _: &mut [Received],
    ) -> Result<usize, HostError> {
        unreachable!()
    }
    fn datagram_error(&mut self, _: SocketId) -> Option<IcmpReport> {
        None
    }
    fn close(&mut self, _: SocketId, _: Close) {}
}

const SOCKET: SocketId = SocketId(1);
const NOW: Instant = Instant::from_ms(1000);

fn shared(memory: usize) -> Shared {
    let budget = Arc::new(Budget::new(memory));
    let keys = Keys { table: [0; 16], isn: [0; 16], dns: [1; 16] };
    Shared::new(Config { memory, ..Config::default() }, LinkCaps::default(), &keys, budget, 0)
}

/// A datagram with content of its own.
fn content(n: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (n * 31 + i) as u8).collect()
}

#[test]
fn runs_leave_together_and_in_order() {
    let mut shared = shared(64 << 20);
    let (mut backlog, mut host) = (Backlog::default(), Recorder::default());
    // Lengths and TOS, and the runs they make: a shorter one ends a run, a longer one begins another.
    let datagrams: Vec<(usize, u8)> = [(1400, 0); 50]
        .into_iter()
        .chain([(600, 0), (1400, 0), (1400, 2), (1400, 2), (0, 2), (0, 2), (7, 2), (60_000, 2), (8, 2)])
        .collect();
    let mut all = Vec::new();
    for (n, &(len, tos)) in datagrams.iter().enumerate() {
        backlog.push(&mut shared, NOW, &content(n, len), marked(tos));
        all.extend_from_slice(&content(n, len));
    }
    assert_eq!(shared.datagrams_held, all.len() + datagrams.len() * 16);
    host.room = 1000;
    assert_eq!(backlog.send(&mut shared, &mut host, SOCKET, NOW), Ok(()));
    let runs: Vec<_> =
        host.sends.iter().map(|(sizes, tos)| (sizes.len(), sizes.iter().sum::<usize>(), *tos)).collect();
    assert_eq!(
        runs,
        [
            // 65,487 bytes are 46 of them.
            (46, 64_400, 0),
            (5, 6200, 0),
            (1, 1400, 0),
            (2, 2800, 2),
            (0, 0, 2),
            (0, 0, 2),
            (1, 7, 2),
            (2, 60_008, 2),
        ]
    );
    assert!(host.bytes == all);
    assert!(backlog.is_empty());
    assert_eq!((shared.datagrams_held, shared.memory.pool.budget().used()), (0, 0));
}

#[test]
fn refused_datagrams_stay() {
    let mut shared = shared(64 << 20);
    let (mut backlog, mut host) = (Backlog::default(), Recorder::default());
    let mut all = Vec::new();
    for n in 0..150 {
        backlog.push(&mut shared, NOW, &content(n, 100), marked(0));
        all.extend_from_slice(&content(n, 100));
    }
    let mut at = NOW;
    while !backlog.is_empty() {
        at = at + Duration::from_micros(10);
        host.room = 7;
        let result = backlog.send(&mut shared, &mut host, SOCKET, at);
        assert_eq!(result, if backlog.is_empty() { Ok(()) } else { Err(HostError::WouldBlock) });
    }
    assert!(host.bytes == all);
    assert!(host.sends.iter().all(|(sizes, _)| sizes.len() <= 7 && sizes.iter().all(|&s| s == 100)));
    assert_eq!((shared.datagrams_held, shared.memory.pool.budget().used()), (0, 0));
}

#[test]
fn bounded_for_a_flow_and_for_all() {
    let mut shared = shared(4 << 20);
    let mut flows: Vec<Backlog> = (0..8).map(|_| Backlog::default()).collect();
    for (n, flow) in flows.iter_mut().enumerate() {
        (0..1000).for_each(|_| flow.push(&mut shared, NOW, &content(n, 1000), marked(0)));
        assert!(flow.records.len() <= FLOW_BYTES);
        assert!(n >= 3 || flow.records.len() > FLOW_BYTES - 1100);
    }
    assert!(shared.datagrams_held <= 1 << 20, "{}", shared.datagrams_held);
    assert!(shared.datagrams_held > (1 << 20) - 1100);
    assert!(shared.memory.pool.budget().used() <= (1 << 20) + 8 * SMALL * 2);
    let held = shared.counters.udp_held;
    assert_eq!(shared.counters.dropped(DropReason::HostSocketFull), 8000 - held);
    for flow in &mut flows {
        flow.clear(&mut shared);
    }
    assert_eq!((shared.datagrams_held, shared.memory.pool.budget().used()), (0, 0));
}

#[test]
fn memory_that_is_spent_is_not_asked_for() {
    let mut shared = shared(1 << 20);
    let mut other = ByteQueue::new();
    shared.memory.pool.push(&mut other, None, &vec![0; 990 << 10]);
    let mut backlog = Backlog::default();
    backlog.push(&mut shared, NOW, &[1; 1000], marked(0));
    assert!(backlog.is_empty());
    assert_eq!(shared.counters.dropped(DropReason::MemoryBudget), 1);
    shared.memory.pool.clear(&mut other);
}

/// One datagram arrives and one leaves every millisecond, behind 40 that wait: 40 ms for each.
fn standing(tos: u8) -> (Shared, Recorder) {
    let mut shared = shared(64 << 20);
    let (mut backlog, mut host) = (Backlog::default(), Recorder::default());
    let at = |ms: usize| NOW + Duration::from_millis(ms as u64);
    (0..40).for_each(|n| backlog.push(&mut shared, at(n), &[0; 1000], marked(tos)));
    for n in 40..1000 {
        backlog.push(&mut shared, at(n), &[0; 1000], marked(tos));
        host.room = 1;
        let _ = backlog.send(&mut shared, &mut host, SOCKET, at(n));
    }
    backlog.clear(&mut shared);
    (shared, host)
}

#[test]
fn a_standing_queue_is_thinned_or_marked() {
    let (shared, host) = standing(0xb8);
    let dropped = shared.counters.dropped(DropReason::HostQueueDelay);
    assert!((10..40).contains(&dropped), "{dropped}");
    assert!(host.sends.iter().all(|(_, tos)| *tos == 0xb8));
    for ect in [0xb9, 0xba] {
        let (shared, host) = standing(ect);
        assert_eq!(shared.counters.dropped(DropReason::HostQueueDelay), 0);
        let marked = host.sends.iter().filter(|(_, tos)| *tos == 0xbb).count() as u64;
        assert!(marked >= 10, "{marked}");
        assert!((marked..=marked + 1).contains(&shared.counters.udp_marked));
    }
}

#[test]
fn records_keep_their_marks() {
    for (tos, ttl, dont_fragment) in [(0, 0, false), (3, 1, true), (255, 255, true), (1, 63, false)] {
        let fields = IpHeaderFields { tos, ttl: NonZeroU8::new(ttl), dont_fragment };
        let record = Record { len: 1400, fields, at: NOW };
        let again = Record::from_bytes(record.to_bytes());
        assert_eq!((again.len, again.fields, again.at), (1400, fields, NOW));
    }
}
