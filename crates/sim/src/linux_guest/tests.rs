//! The guest's TCP by itself: loss recovery, acknowledgements, and frames that smoltcp parses.

use super::receiver::Receiver;
use super::sender::{Outgoing, Sender};
use super::{Algorithm, wire};
use crate::packet::{self, Macs, ParsedFrame, TcpSegment, flags};
use crate::rng::Pattern;
use crate::script::REMOTE_V4;
use brodo_core::time::{Duration, Instant};
use std::net::{Ipv4Addr, SocketAddr};

const MSS: u64 = 1000;
const RTT: Duration = Duration::from_millis(10);

/// A sender with ten segments in flight, sent at 0 ms.
fn ten_in_flight() -> Sender {
    let mut tx = Sender::new(MSS as u16, 1, 1 << 20, Algorithm::Reno);
    tx.open(RTT, MSS as u16, 1 << 20);
    tx.write(u64::MAX);
    assert_eq!(all(&mut tx, Instant::ZERO).len(), 10);
    tx
}

/// All transmissions that the windows allow now.
fn all(tx: &mut Sender, now: Instant) -> Vec<Outgoing> {
    std::iter::from_fn(|| tx.next(now)).collect()
}

/// The `i`th segment.
fn nth(i: u64) -> Outgoing {
    Outgoing { start: i * MSS, end: (i + 1) * MSS }
}

#[test]
fn the_initial_window_doubles_in_a_round_trip() {
    let mut tx = ten_in_flight();
    tx.acknowledge(Instant::from_ms(10), 10 * MSS, 1 << 20, &[]);
    assert_eq!(all(&mut tx, Instant::from_ms(10)).len(), 20);
}

#[test]
fn the_send_buffer_and_the_peer_s_window_bound_what_is_in_flight() {
    let mut tx = Sender::new(MSS as u16, 1, 4500, Algorithm::Reno);
    tx.open(RTT, MSS as u16, 4500);
    tx.write(u64::MAX);
    let sent = all(&mut tx, Instant::ZERO);
    assert_eq!(sent.last(), Some(&Outgoing { start: 4000, end: 4500 }), "Nagle allows one short segment");
    tx.acknowledge(Instant::from_ms(10), 4500, 2000, &[]);
    assert_eq!(all(&mut tx, Instant::from_ms(10)).last(), Some(&Outgoing { start: 5500, end: 6500 }));
}

#[test]
fn a_lost_segment_is_sent_again_once_as_soon_as_three_later_ones_have_arrived() {
    let mut tx = ten_in_flight();
    let now = Instant::from_ms(10);
    tx.acknowledge(now, 2 * MSS, 1 << 20, &[]);
    all(&mut tx, now);
    tx.acknowledge(now, 2 * MSS, 1 << 20, &[(3 * MSS, 5 * MSS)]);
    assert!(all(&mut tx, now).iter().all(|out| *out != nth(2)), "two segments prove nothing yet");
    tx.acknowledge(now, 2 * MSS, 1 << 20, &[(3 * MSS, 6 * MSS)]);
    assert_eq!(tx.next(now), Some(nth(2)));
    tx.acknowledge(now, 2 * MSS, 1 << 20, &[(3 * MSS, 10 * MSS)]);
    assert!(all(&mut tx, now).iter().all(|out| out.start >= 10 * MSS));
    assert_eq!(tx.retransmitted(), 1);
}

#[test]
fn a_recovery_halves_the_window() {
    let mut tx = ten_in_flight();
    let now = Instant::from_ms(10);
    tx.acknowledge(now, 0, 1 << 20, &[(MSS, 10 * MSS)]);
    assert_eq!(tx.next(now), Some(nth(0)));
    tx.acknowledge(Instant::from_ms(20), tx.nxt(), 1 << 20, &[]);
    assert_eq!(tx.cwnd(), 5 * MSS);
}

#[test]
fn a_lost_tail_is_probed_after_two_round_trips() {
    let mut tx = ten_in_flight();
    let at = tx.deadline().expect("something is in flight");
    assert_eq!(at, Instant::from_ms(20));
    // New data is the better probe, but here is none that the windows allow.
    tx.acknowledge(Instant::from_ms(10), 0, 10 * MSS, &[]);
    let probe = tx.expire(tx.deadline().expect("still"));
    assert_eq!(probe.map(|out| out.start >= 9 * MSS), Some(true));
}

#[test]
fn a_time_out_without_acknowledgements_retransmits_all_slowly() {
    let mut tx = ten_in_flight();
    let probe_at = tx.deadline().expect("in flight");
    tx.expire(probe_at);
    let timeout_at = tx.deadline().expect("in flight");
    assert!(timeout_at >= probe_at + Duration::from_millis(200), "{timeout_at:?}");
    assert_eq!(tx.expire(timeout_at), None);
    assert_eq!(all(&mut tx, timeout_at), [nth(0)]);
    tx.acknowledge(timeout_at + RTT, MSS, 1 << 20, &[]);
    assert_eq!(all(&mut tx, timeout_at + RTT), [nth(1), nth(2)]);
}

#[test]
fn a_shut_window_is_probed_one_before_the_next_byte() {
    let mut tx = Sender::new(MSS as u16, 1, 1 << 20, Algorithm::Reno);
    tx.open(RTT, MSS as u16, 0);
    tx.write(5000);
    let at = tx.deadline().expect("a window to ask for");
    let before = 0u64.wrapping_sub(1);
    assert_eq!(tx.expire(at), Some(Outgoing { start: before, end: before }));
}

#[test]
fn blocks_name_the_newest_stretch_first_and_a_repetition_before_all() {
    let mut rx = Receiver::new(None, MSS as u16);
    let now = Instant::ZERO;
    rx.segment(now, 0, 1000);
    for start in [2000, 4000, 6000] {
        rx.segment(now, start, start + 1000);
    }
    assert_eq!(rx.acknowledge().1, [(6000, 7000), (4000, 5000), (2000, 3000)]);
    rx.segment(now, 3000, 4000);
    assert_eq!(rx.acknowledge().1, [(2000, 5000), (6000, 7000)]);
    rx.segment(now, 0, 1000);
    assert_eq!(rx.acknowledge().1, [(0, 1000), (2000, 5000), (6000, 7000)]);
    rx.segment(now, 1000, 2000);
    assert_eq!((rx.nxt(), rx.acknowledge().1), (5000, vec![(6000, 7000)]));
}

#[test]
fn every_second_segment_is_acknowledged_and_a_single_one_late() {
    let mut rx = Receiver::new(None, MSS as u16);
    let mut now = Instant::ZERO;
    for i in 0..16 {
        rx.segment(now, i * MSS, (i + 1) * MSS);
        if rx.ack_due(now) {
            rx.acknowledge();
        }
    }
    rx.segment(now, 16 * MSS, 17 * MSS);
    assert!(!rx.ack_due(now));
    rx.segment(now, 17 * MSS, 18 * MSS);
    assert!(rx.ack_due(now));
    rx.acknowledge();
    rx.segment(now, 18 * MSS, 19 * MSS);
    now = now + Duration::from_millis(40);
    assert!(rx.ack_due(now));
}

#[test]
fn a_full_buffer_offers_nothing_until_it_is_read() {
    let mut rx = Receiver::new(Some(10_000), MSS as u16);
    assert_eq!(rx.acknowledge().0, 10_000);
    rx.segment(Instant::ZERO, 0, 10_000);
    assert_eq!(rx.acknowledge().0, 0);
    assert_eq!(rx.take(6000), 6000);
    assert!(rx.ack_due(Instant::ZERO));
    assert_eq!(rx.acknowledge().0, 6000);
}

#[test]
fn frames_are_what_smoltcp_reads_and_the_other_way_round() {
    let guest = SocketAddr::new(Ipv4Addr::new(10, 0, 2, 15).into(), 20_000);
    let segment = TcpSegment {
        flags: flags::ACK | flags::PSH,
        seq: 0xffff_fff0,
        ack: 77,
        window: 1234,
        sack: vec![(5, 9), (20, 30)],
        data: Pattern(3).bytes(0, 333),
        ..TcpSegment::new(guest, SocketAddr::new(REMOTE_V4, 80))
    };
    let syn = TcpSegment {
        flags: flags::SYN,
        mss: Some(1460),
        wscale: Some(14),
        sack_ok: true,
        sack: Vec::new(),
        data: Vec::new(),
        ..segment.clone()
    };
    for segment in [segment, syn] {
        let macs = Macs { to: [1; 6], from: [2; 6] };
        let mut frame =
            wire::frame(&segment, macs, segment.data.len(), |into| into.copy_from_slice(&segment.data));
        let sum = !packet::l4_sum(segment.src.ip(), segment.dst.ip(), 6, &frame[34..]);
        frame[50..52].copy_from_slice(&sum.to_be_bytes());
        assert_eq!(packet::parse(&frame), Ok(ParsedFrame::Tcp(segment.clone())));

        let frame = segment.to_frame(macs);
        let (mut read, payload) = wire::read(&frame).expect("TCP over IPv4");
        read.data = frame[payload].to_vec();
        assert_eq!(read, segment);
    }
}
