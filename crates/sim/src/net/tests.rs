//! Nodes, rates, delays and queues in virtual time.

use super::*;

fn ms(n: u64) -> Instant {
    Instant::from_ms(n)
}

/// Sends `count` frames of 1000 bytes at time 0, numbered in their first byte; gives number and time of
/// arrival.
fn run(nodes: Vec<Box<dyn Node>>, count: u8) -> Vec<(u8, Instant)> {
    let mut path = Path::new(nodes);
    (0..count).for_each(|i| path.push(ms(0), vec![i; 1000]));
    let mut arrived = Vec::new();
    while let Some(now) = path.next() {
        while let Some(frame) = path.pop(now) {
            arrived.push((frame[0], now));
        }
    }
    assert_eq!(path.under_way(), 0);
    arrived
}

#[test]
fn no_node_no_change() {
    assert_eq!(run(Vec::new(), 3), [(0, ms(0)), (1, ms(0)), (2, ms(0))]);
}

#[test]
fn rate_then_delay() {
    // 8000 bits at 8 Mbit/s take 1 ms.
    let nodes: Vec<Box<dyn Node>> = vec![
        Box::new(Bottleneck::new(8_000_000, 3)),
        Box::new(Delay(Duration::from_millis(10))),
        Box::new(Mtu(986)),
    ];
    assert_eq!(run(nodes, 5), [(0, ms(11)), (1, ms(12)), (2, ms(13))]);
    assert_eq!(run(vec![Box::new(Mtu(985))], 5), []);
}

#[test]
fn a_queue_drains_between_bursts() {
    let mut node = Bottleneck::new(8_000_000, 2);
    let mut out = Vec::new();
    for at in [0, 0, 0, 1, 5] {
        node.pass(ms(at), vec![0; 1000], &mut out);
    }
    let times: Vec<_> = out.iter().map(|(at, _)| *at).collect();
    assert_eq!((times, node.dropped()), (vec![ms(1), ms(2), ms(3), ms(6)], 1));
}

#[test]
fn faults_come_as_often_as_asked_and_the_same_for_the_same_seed() {
    let rng = || Rng::new(7);
    let arrivals = |node: Box<dyn Node>| run(vec![node], 200).len();
    let lost = arrivals(Box::new(Loss { per_mille: 300, rng: rng() }));
    assert_eq!(lost, arrivals(Box::new(Loss { per_mille: 300, rng: rng() })));
    assert!((110..170).contains(&lost), "{lost}");
    let doubled = arrivals(Box::new(Duplicate { per_mille: 300, rng: rng() }));
    assert!((230..290).contains(&doubled), "{doubled}");
    let by_max = Duration::from_millis(5);
    let mixed = run(vec![Box::new(Reorder { per_mille: 300, by_max, rng: rng() })], 200);
    let late = mixed.windows(2).filter(|w| w[0].0 > w[1].0).count();
    assert!(mixed.len() == 200 && late > 20, "{late}");
    let mut out = Vec::new();
    let mut corrupt = Corrupt { per_mille: 1000, rng: rng() };
    corrupt.pass(ms(0), vec![0; 100], &mut out);
    let bits: u32 = out[0].1.iter().map(|b| b.count_ones()).sum();
    assert!(bits == 1 && out[0].1[..14] == [0; 14]);
}
