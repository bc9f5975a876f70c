//! The link's arithmetic, against times computed by hand.

use super::{Losses, Overflow, Path, Piece, Queue, Shaper};
use crate::wan::segments::{FRAME_OVERHEAD, Segments};
use std::time::Duration;

const MS: u64 = 1_000_000;

/// A plain packet that takes exactly `wire` bytes.
fn plain(wire: u64) -> Segments {
    Segments::of(&vec![0; 12 + (wire - FRAME_OVERHEAD) as usize])
}

/// A super-packet of `count` segments that take 1,500 bytes each.
fn super_packet(count: usize) -> Segments {
    let payload = 1500 - FRAME_OVERHEAD as usize - 40;
    let mut packet = vec![0; 12 + 40 + count * payload];
    packet[0] = 1;
    packet[1] = 1;
    packet[4..6].copy_from_slice(&(payload as u16).to_le_bytes());
    packet[12] = 0x45;
    packet[12 + 20 + 12] = 5 << 4;
    Segments::of(&packet)
}

/// 10 ms, 12 Mbit/s: 1,500 bytes take one millisecond.
fn path(queue: Queue) -> Path {
    Path {
        delay: Duration::from_millis(10),
        rate_bit: Some(12_000_000),
        queue,
        overflow: Overflow::Drop,
        loss: 0.0,
        seed: 0,
    }
}

fn pass(shaper: &mut Shaper, now_ns: u64, segments: &Segments) -> (Vec<Piece>, Losses) {
    let mut pieces = Vec::new();
    let losses = shaper.pass(now_ns, segments, &mut pieces);
    (pieces, losses)
}

#[test]
fn packets_arrive_after_waiting_sending_and_delay() {
    let mut shaper = Shaper::new(path(Queue::Bytes(1_000_000)));
    let mut due = |at_ms: u64, wire| pass(&mut shaper, at_ms * MS, &plain(wire)).0[0].due_ns;
    assert_eq!(due(0, 1500), 11 * MS);
    assert_eq!(due(0, 3000), 13 * MS, "behind the first");
    assert_eq!(due(20, 1500), 31 * MS, "on an idle link");
}

#[test]
fn a_link_without_a_rate_only_delays() {
    let mut shaper = Shaper::new(Path { rate_bit: None, ..path(Queue::Packets(1)) });
    for at_ms in [0, 0, 0, 7] {
        let (pieces, losses) = pass(&mut shaper, at_ms * MS, &super_packet(40));
        assert_eq!(pieces, [Piece { range: 0..40, due_ns: (at_ms + 10) * MS }]);
        assert_eq!(losses, Losses::default());
    }
}

#[test]
fn long_packets_are_passed_on_in_pieces() {
    let mut shaper = Shaper::new(path(Queue::Bytes(1_000_000)));
    let (pieces, _) = pass(&mut shaper, 0, &super_packet(3));
    let expected = [0, 1, 2].map(|i| Piece { range: i..i + 1, due_ns: (11 + u64::from(i)) * MS });
    assert_eq!(pieces, expected);
}

#[test]
fn a_full_queue_drops_from_its_tail() {
    for queue in [Queue::Packets(4), Queue::Bytes(4 * 1500)] {
        let mut shaper = Shaper::new(path(queue));
        let (pieces, losses) = pass(&mut shaper, 0, &super_packet(6));
        assert_eq!(losses, Losses { dropped: 2, lost: 0 }, "{queue}");
        assert_eq!(pieces.last().expect("four").range.end, 4, "{queue}");
        assert_eq!(pass(&mut shaper, 0, &plain(100)).1.dropped, 1, "{queue}");
        // After two milliseconds two have been sent.
        assert_eq!(pass(&mut shaper, 2 * MS, &super_packet(6)).1.dropped, 4, "{queue}");
    }
}

#[test]
fn a_full_queue_can_let_its_sender_wait() {
    for queue in [Queue::Packets(4), Queue::Bytes(4 * 1500)] {
        let mut shaper = Shaper::new(Path { overflow: Overflow::Wait, ..path(queue) });
        assert_eq!(shaper.full_until_ns(0), None, "{queue}");
        // A packet is accepted as a whole.
        assert_eq!(pass(&mut shaper, 0, &super_packet(6)).1, Losses::default(), "{queue}");
        let until_ns = shaper.full_until_ns(0).expect("full");
        assert!(until_ns > 0, "{queue}");
        assert_eq!(shaper.full_until_ns(3 * MS), None, "three are left, {queue}");
    }
}

#[test]
fn losses_are_by_chance_and_repeatable() {
    let lossy = |seed| {
        let mut shaper = Shaper::new(Path { rate_bit: None, loss: 0.1, seed, ..path(Queue::Packets(1)) });
        let (mut arrived, mut lost, mut all) = (0, 0, Vec::new());
        for _ in 0..1000 {
            let (pieces, losses) = pass(&mut shaper, 0, &super_packet(10));
            arrived += pieces.iter().map(|piece| piece.range.end - piece.range.start).sum::<u32>();
            lost += losses.lost;
            all.push(pieces);
        }
        assert_eq!(arrived + lost, 10_000);
        // Six standard deviations.
        assert!((820..1180).contains(&lost), "{lost} of 10,000, seed {seed}");
        all
    };
    assert_eq!(lossy(1), lossy(1));
    assert_ne!(lossy(1), lossy(2));
}

#[test]
fn lengths_of_queues_are_read_and_written_alike() {
    for (text, queue) in [("500p", Queue::Packets(500)), ("2000000", Queue::Bytes(2_000_000))] {
        assert_eq!(text.parse(), Ok(queue));
        assert_eq!(queue.to_string(), text);
    }
    assert!("many".parse::<Queue>().is_err());
}
