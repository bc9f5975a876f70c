//! Whole transfers between smoltcp and programs behind host sockets.

use super::seeds;
use brodo_core::config::{Bulk, BulkBounds, Config};
use brodo_core::link::LinkCaps;
use brodo_core::time::{Duration, Instant};
use brodo_sim::driver::SimDriver;
use brodo_sim::kernel_stream::Wire;
use brodo_sim::net::{Bottleneck, Corrupt, Delay, Duplicate, Loss, Node, Path, Reorder};
use brodo_sim::promotions::Done;
use brodo_sim::rng::Rng;
use brodo_sim::world::{Behind, Conversation, Cost, Ending, Pace, Report, World};
use std::cell::Cell;

const OFFLOADS: [LinkCaps; 3] = [
    LinkCaps { checksum: false, tso: false, uso: false, packet_max: None },
    LinkCaps { checksum: true, tso: false, uso: false, packet_max: None },
    LinkCaps { checksum: true, tso: true, uso: true, packet_max: None },
];

/// A machine with short rings.
const SHORT_RINGS: LinkCaps = LinkCaps { checksum: true, tso: false, uso: false, packet_max: Some(1504) };

/// Every connection is a candidate, at every event. Not again and again without an end: a guest whose FIN is
/// all that is outstanding gets a duplicate acknowledgement with every return, and smoltcp forgets to send it
/// again after three.
pub(crate) const EAGER: BulkBounds = BulkBounds {
    bytes: 0,
    rate: 0,
    period: Duration::ZERO,
    quiet_max: Duration::from_secs(2),
    trial: Duration::from_millis(500),
    wait: Duration::from_millis(2),
    flows_max: 64,
    idle_min: Duration::from_secs(1),
};

fn wire(us: u64) -> Path {
    Path::new(vec![Box::new(Delay(Duration::from_micros(us)))])
}

fn config(mtu: u16) -> Config {
    Config { mtu, ..Config::default() }
}

/// A world without faults has no retransmissions.
fn clean(mtu: u16, caps: LinkCaps, conversations: &[Conversation]) -> Report {
    let mut world = World::new(config(mtu), caps, 1, wire(50), wire(50));
    for c in conversations {
        world.add(c.clone());
    }
    let report = world.run(Instant::from_ms(100_000));
    assert_eq!(report.retransmitted, 0);
    let drops: Vec<_> = world.driver.stack.counters().drops().collect();
    assert_eq!(drops, [], "nothing is dropped on a clean link");
    report
}

#[test]
fn bulk_both_ways_over_every_kind_of_link() {
    for caps in OFFLOADS.into_iter().chain([SHORT_RINGS]) {
        for mtu in [1280, 1500, 9000] {
            for v6 in [false, true] {
                let bulk = Conversation { v6, ..Conversation::default() };
                for (up, down) in [(1 << 20, 0), (0, 1 << 20), (300_000, 300_000)] {
                    let report = clean(mtu, caps, &[Conversation { up, down, ..bulk.clone() }]);
                    // 64 KiB in each round trip of 100 us, and no wait for a timer.
                    assert!(report.ended < Instant::from_ms(5), "{:?}", report.ended);
                }
            }
        }
    }
}

#[test]
fn the_smallest_links_carry_both_ways() {
    for mtu in [68, 100, 576, 1279] {
        for caps in OFFLOADS {
            let small = Config { v6: None, ..config(mtu) };
            let mut world = World::new(small, caps, 1, wire(50), wire(50));
            world.add(Conversation { up: 20_000, down: 20_000, ..Conversation::default() });
            let report = world.run(Instant::from_ms(100_000));
            assert_eq!(report.retransmitted, 0, "{mtu}");
        }
    }
}

#[test]
fn every_ending() {
    for ending in [
        Ending::Each,
        Ending::GuestFirst,
        Ending::HostFirst,
        Ending::GuestResets,
        Ending::HostResets,
        Ending::Refused,
    ] {
        for (up, down) in [(0, 0), (1, 0), (0, 1), (100_000, 0), (0, 100_000), (50_000, 50_000)] {
            for v6 in [false, true] {
                let plan = Conversation { v6, up, down, ending, ..Conversation::default() };
                let mut world = World::new(config(1500), OFFLOADS[0], 1, wire(50), wire(50));
                world.add(plan);
                world.run(Instant::from_ms(100_000));
            }
        }
    }
}

#[test]
fn slow_readers_on_either_side_hold_the_other_back_without_loss() {
    let slow = Conversation { up: 300_000, down: 300_000, ..Conversation::default() };
    clean(1500, OFFLOADS[0], &[Conversation { guest_reads: Some(1000), ..slow.clone() }]);
    clean(1500, OFFLOADS[2], &[Conversation { peer_reads: Some(1000), ..slow.clone() }]);
    clean(1500, OFFLOADS[1], &[Conversation { guest_buffer: 1000, behind: Behind::Buffer(700), ..slow }]);
}

/// Zero copy: of every segment only the beginning is read, and no byte twice.
#[test]
fn ends_of_segments_stay_in_the_guest_s_memory() {
    let both = Conversation { up: 300_000, down: 300_000, ..Conversation::default() };
    let plans = [
        both.clone(),
        Conversation { v6: true, ..both.clone() },
        Conversation { peer_reads: Some(1000), ..both.clone() },
        Conversation { behind: Behind::Buffer(700), ..both.clone() },
        Conversation { ending: Ending::HostResets, ..both.clone() },
        Conversation { ending: Ending::GuestFirst, ..both },
    ];
    // The shortest beginning that has all headers, and a longer one.
    for (plan, begin, sends) in plans.iter().flat_map(|plan| [(plan, 134, true), (plan, 256, false)]) {
        let mut world = World::new(config(1500), OFFLOADS[1], 1, wire(50), wire(50));
        let ends = world.driver.leave_unread(begin, sends);
        world.add(plan.clone());
        let report = world.run(Instant::from_ms(100_000));
        assert_eq!(report.retransmitted, 0, "{plan:?}");
        assert_eq!(world.driver.stack.counters().drops().count(), 0, "{plan:?}");
        let (sent, read) = ends.taken();
        assert_eq!(world.driver.stack.counters().tcp_zero_copy_bytes, sent);
        assert_eq!(sent > 0, sends, "{plan:?}");
        assert!(sent + read > 100_000 && (sends || read > 0), "{sent} sent, {read} read: {plan:?}");
    }
}

#[test]
fn ends_of_segments_stay_on_faulty_links() {
    seeds::each("ends_of_segments_stay_on_faulty_links", 100, |seed| {
        let mut rng = Rng::new(seed);
        let faults = |rng: &mut Rng| {
            let per_mille = rng.range(0, 30) as u32;
            let by_max = Duration::from_micros(rng.range(1, 500));
            Path::new(vec![
                Box::new(Delay(Duration::from_micros(rng.range(20, 2000)))),
                Box::new(Loss { per_mille, rng: Rng::new(rng.next()) }),
                Box::new(Reorder { per_mille, by_max, rng: Rng::new(rng.next()) }),
                Box::new(Duplicate { per_mille, rng: Rng::new(rng.next()) }),
            ])
        };
        let (up, down) = (faults(&mut rng), faults(&mut rng));
        let mut world = World::new(config(1500), OFFLOADS[rng.range(0, 2) as usize], seed, up, down);
        world.driver.leave_unread(rng.range(134, 1000) as usize, rng.chance(700));
        for n in 0..rng.range(1, 5) {
            world.add(Conversation {
                start: Instant::from_ms(n * rng.range(0, 3)),
                v6: rng.chance(500),
                up: rng.range(0, 400_000),
                down: rng.range(0, 100_000),
                peer_reads: rng.chance(300).then(|| rng.range(100, 10_000)),
                ..Conversation::default()
            });
        }
        world.run(Instant::from_ms(1_000_000));
    });
}

#[test]
fn a_hundred_connections_share_a_link() {
    let plans: Vec<_> = (0..100)
        .map(|i| Conversation {
            start: Instant::from_ms(i % 10),
            v6: i % 2 == 1,
            up: i * 700,
            down: (100 - i) * 700,
            connect_after: Duration::from_millis(i % 7),
            guest_buffer: 16 << 10,
            ..Conversation::default()
        })
        .collect();
    clean(1500, OFFLOADS[0], &plans);
}

#[test]
fn a_link_with_little_credit_delivers_everything_without_retransmission() {
    for credit in [1, 2, 5] {
        for caps in OFFLOADS {
            let mut world = World::new(config(1500), caps, credit as u64, wire(50), wire(50));
            world.credit_per_tick = Some(credit);
            for v6 in [false, true] {
                world.add(Conversation { v6, up: 60_000, down: 60_000, ..Conversation::default() });
            }
            let report = world.run(Instant::from_ms(100_000));
            assert_eq!(report.retransmitted, 0);
            assert!(credit > 1 || world.driver.link.refused() > 0);
        }
    }
}

#[test]
fn every_pace_over_a_long_path_behind_the_host_socket() {
    let far = Behind::Kernel(Wire::new(Duration::from_millis(20), 100_000_000));
    let requests = Conversation::requests(20, 300, 5000, Duration::ZERO);
    let every = Duration::from_millis(30);
    for (plan, ms) in [
        // Six round trips of slow start, and 80 ms at 100 Mbit/s less what these carried.
        (Conversation { up: 1_000_000, ..Conversation::default() }, 195),
        (Conversation { down: 1_000_000, ..Conversation::default() }, 195),
        // A round trip to connect, one for every answer, one to close.
        (requests.clone(), 450),
        (Conversation { pace: Pace::Requests { request: 300, response: 5000, every }, ..requests }, 650),
        (
            Conversation {
                up: 100_000,
                pace: Pace::Bursts { bytes: 10_000, every },
                ..Conversation::default()
            },
            280,
        ),
    ] {
        let report = clean(1500, OFFLOADS[0], &[Conversation { behind: far, ..plan.clone() }]);
        let ended_ms = report.ended.as_ns() / 1_000_000;
        assert!((ms * 9 / 10..ms * 11 / 10).contains(&ended_ms), "{ended_ms} ms, not {ms}: {plan:?}");
    }
}

#[test]
fn a_guest_in_a_loop_connects_again_and_again() {
    let mut world = World::new(config(1500), OFFLOADS[0], 1, wire(10), wire(10));
    world.cost = Some(Cost::default());
    let one = Conversation::requests(1, 1, 1, Duration::ZERO);
    world.add(Conversation { ending: Ending::GuestFirst, repetitions: 99, ..one });
    world.run(Instant::from_ms(10_000));
    assert_eq!(world.answers().len(), 100);
    for answer in &world.answers()[1..] {
        // Two round trips of 20 us, and the machine's work: 80 us for one connection, a part of it for the
        // last one's closing.
        assert!((100..160).contains(&answer.took.as_micros()), "{answer:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let run = |seed| faulty(seed).1;
    assert_eq!(run(11), run(11));
    assert_ne!(run(11).trace, run(12).trace);
}

/// A world drawn from a seed: its link, its faults, its conversations.
fn faulty(seed: u64) -> (World, Report) {
    faulty_after(seed, |_| {})
}

/// The same, changed by `change` before it begins.
fn faulty_after(seed: u64, change: impl FnOnce(&mut World)) -> (World, Report) {
    faulty_with(seed, |_| {}, change)
}

/// The same, with its configuration changed by `configure`.
fn faulty_with(
    seed: u64,
    configure: impl FnOnce(&mut Config),
    change: impl FnOnce(&mut World),
) -> (World, Report) {
    let mut rng = Rng::new(seed);
    let caps = rng.pick(&OFFLOADS);
    let mtu = rng.pick(&[1280, 1500, 4000, 9000]);
    let mut config = config(mtu);
    config.tcp_rx.initial = rng.pick(&[4 << 10, 64 << 10, 256 << 10]);
    config.tcp_tx.initial = rng.pick(&[4 << 10, 64 << 10, 256 << 10]);
    config.memory = rng.pick(&[300_000, 256 << 20]);
    configure(&mut config);
    let up = faults(&mut rng);
    let down = faults(&mut rng);
    let mut world = World::new(config, caps, rng.next(), up, down);
    if rng.chance(300) {
        world.credit_per_tick = Some(rng.range(1, 20) as usize);
    }
    if rng.chance(300) {
        world.driver.host.set_send_at_most(rng.range(100, 5000) as usize);
    }
    world.driver.host.set_chatty(rng.chance(300));
    for _ in 0..rng.range(1, 4) {
        let rate = |rng: &mut Rng| rng.chance(300).then(|| rng.range(100, 3000));
        let (up, down, pace) = traffic(&mut rng);
        world.add(Conversation {
            start: Instant::from_ms(rng.below(50)),
            v6: rng.chance(500),
            connect_after: Duration::from_millis(rng.pick(&[0, 0, 20, 300])),
            up,
            down,
            pace,
            guest_reads: rate(&mut rng),
            guest_dwells: Duration::from_millis(rng.pick(&[0, 0, 3, 40])),
            peer_reads: rate(&mut rng),
            peer_dwells: Duration::from_millis(rng.pick(&[0, 0, 0, 40])),
            guest_buffer: rng.pick(&[600, 4000, 64 << 10, 200_000]),
            behind: behind(&mut rng),
            // Without resets: one that is lost leaves the other side waiting, as on any network.
            ending: rng.pick(&[Ending::Each, Ending::GuestFirst, Ending::HostFirst]),
            repetitions: 0,
        });
    }
    change(&mut world);
    let report = world.run(Instant::from_ms(3_600_000));
    (world, report)
}

/// The same although the stack is handed over at random, to a driver that registers all sockets anew.
#[test]
fn random_worlds_survive_hand_overs_at_random() {
    seeds::each("random_worlds_survive_hand_overs_at_random", 40, |seed| {
        let (world, _) = faulty_after(seed, |world| world.driver.handovers.at_random(seed));
        assert_eq!(world.driver.handovers.kept(), 0, "nothing is left out");
        assert!(world.driver.handovers.done() > 0, "no event had a hand-over");
    });
}

/// A world drawn from a seed in which every connection is a candidate at once, and again and again.
fn promoting(seed: u64, change: impl FnOnce(&mut World)) -> World {
    let configure = |config: &mut Config| {
        // Bytes that come back need memory.
        config.memory = 256 << 20;
        (config.bulk, config.bulk_bounds) = (Bulk::Kernel, EAGER);
    };
    let (world, _) = faulty_with(seed, configure, |world| {
        let SimDriver { promotions, host, .. } = &mut world.driver;
        promotions.at_random(host, seed);
        change(world);
    });
    let counters = world.driver.stack.counters();
    assert_eq!((world.driver.stack.promoted(), counters.promotions_broken), (0, 0));
    world
}

/// A kernel socket may have a connection at any time, for any time: what is delivered is what was sent, and
/// the guest sees one connection.
#[test]
fn random_worlds_survive_promotions_at_random() {
    let total = Cell::new(Done::default());
    seeds::each("random_worlds_survive_promotions_at_random", 60, |seed| {
        // A hand-over would end what is being made quiet, and so change the trace.
        let world = promoting(seed, |world| world.driver.handovers.switch_off());
        let (Done { made, returned, ended }, sum) = (world.driver.promotions.done(), total.get());
        total.set(Done {
            made: sum.made + made,
            returned: sum.returned + returned,
            ended: sum.ended + ended,
        });
    });
    let Done { made, returned, ended } = total.get();
    assert!(made > 0 && returned > 0 && ended > 0, "{:?}", total.get());
}

/// A program that has exited answers late data with a reset. All that it had sent before was acknowledged,
/// and is delivered to a peer that reads slowly.
#[test]
fn a_reset_behind_a_fin_loses_nothing() {
    for (ending, promoted) in
        [Ending::GuestLeaves, Ending::HostLeaves].into_iter().flat_map(|e| [(e, false), (e, true)])
    {
        let mut carried = 0;
        for seed in 0..30 {
            let mut config = config(1500);
            if promoted {
                (config.bulk, config.bulk_bounds) = (Bulk::Kernel, EAGER);
            }
            let mut world = World::new(config, OFFLOADS[0], 1, wire(50), wire(50));
            if promoted {
                let SimDriver { promotions, host, handovers, .. } = &mut world.driver;
                promotions.at_random(host, seed);
                // One would end what is being made quiet, and so change the trace.
                handovers.switch_off();
            }
            let slow = Some(200 + 50 * seed);
            let (bytes, small) = (100_000, 4000);
            world.add(match ending {
                Ending::GuestLeaves => Conversation {
                    up: bytes,
                    peer_reads: slow,
                    behind: Behind::Buffer(small),
                    ending,
                    ..Conversation::default()
                },
                _ => Conversation {
                    down: bytes,
                    guest_reads: slow,
                    guest_buffer: small,
                    behind: Behind::Buffer(20_000),
                    ending,
                    ..Conversation::default()
                },
            });
            world.run(Instant::from_ms(100_000));
            carried += world.driver.promotions.done().ended;
        }
        assert_eq!(carried > 2, promoted, "{carried} ended with the kernel, {ending:?}");
    }
}

/// The same with hand-overs, of connections that are being made quiet among them. Connections that are away
/// are not handed over.
#[test]
fn random_worlds_survive_promotions_and_hand_overs() {
    seeds::each("random_worlds_survive_promotions_and_hand_overs", 40, |seed| {
        let world = promoting(seed, |world| world.driver.handovers.at_random(seed));
        assert!(world.driver.handovers.done() > 0, "no event had a hand-over");
    });
}

/// Bytes up and down, and when they are sent.
fn traffic(rng: &mut Rng) -> (u64, u64, Pace) {
    let every = Duration::from_millis(rng.range(1, 50));
    let pace = match rng.below(4) {
        0 => Pace::Bursts { bytes: rng.range(500, 20_000), every },
        1 => Pace::Requests { request: rng.range(1, 3000), response: rng.range(1, 10_000), every },
        _ => Pace::Bulk,
    };
    if let Pace::Requests { request, response, .. } = pace {
        let count = rng.range(1, 20);
        return (count * request, count * response, pace);
    }
    (rng.pick(&[0, 1, 1000, 20_000, 100_000]), rng.pick(&[0, 1, 1000, 20_000, 100_000]), pace)
}

/// A near peer, or a path of any length whose queue may be too short.
fn behind(rng: &mut Rng) -> Behind {
    if rng.chance(500) {
        return Behind::Buffer(rng.pick(&[600, 4000, 64 << 10, 200_000]));
    }
    let rtt = Duration::from_micros(rng.range(10, 300_000));
    let wire = Wire::new(rtt, rng.range(1, 1000) * 1_000_000);
    Behind::Kernel(Wire { queue: rng.pick(&[3000, 20_000, wire.queue]), ..wire })
}

/// Up to five nodes with faults, in random order.
fn faults(rng: &mut Rng) -> Path {
    let mut nodes: Vec<Box<dyn Node>> = vec![Box::new(Delay(Duration::from_micros(rng.range(10, 20_000))))];
    let mut corrupts = false;
    for _ in 0..rng.below(5) {
        let per_mille = rng.pick(&[1, 10, 50, 100]);
        let own = rng.fork();
        nodes.push(match rng.below(5) {
            0 => Box::new(Loss { per_mille, rng: own }),
            1 => Box::new(Duplicate { per_mille, rng: own }),
            2 => Box::new(Reorder { per_mille, by_max: Duration::from_millis(rng.range(1, 50)), rng: own }),
            // Two flipped bits in one frame may cancel out in the checksum, which is no fault of the stack.
            3 if !corrupts => {
                corrupts = true;
                Box::new(Corrupt { per_mille: per_mille.min(20), rng: own })
            }
            _ => Box::new(Bottleneck::new(rng.range(1, 100) * 1_000_000, rng.range(3, 100) as usize)),
        });
    }
    Path::new(nodes)
}

/// The stream delivered is the stream sent, both ways, under any loss, duplication, reordering and
/// corruption, and nothing is left at the end.
#[test]
fn random_worlds_deliver_everything() {
    seeds::each("random_worlds_deliver_everything", 60, |seed| _ = faulty(seed));
}
