//! The wide-area world with fixed windows, where every figure follows from the path.

use super::bulk_host::SlowReader;
use super::record::{Record, Transfer, Way};
use super::tun::WhenFull;
use super::{Path, Wan};
use crate::linux_guest::Options;
use brodo_core::config::{BufferBounds, Config, Tuning};
use brodo_core::time::{Duration, Instant};

fn transfer(way: Way, window: u32, rtt_us: u64, bits_per_s: Option<u64>, lasts_ms: u64) -> Transfer {
    Transfer {
        way,
        tuning: Tuning::Fixed,
        bounds: BufferBounds { initial: window, max: window },
        path: Path { rtt: Duration::from_micros(rtt_us), bits_per_s, tun: None },
        guest: Options::default(),
        slow: None,
        paced: None,
        lasts: Duration::from_millis(lasts_ms),
    }
}

#[track_caller]
fn assert_near(record: &Record, expected: f64, percent: f64) {
    let mean = record.mean(0.5, 1.0);
    assert!((mean / expected - 1.0).abs() < percent / 100.0, "{mean:.0} bytes per second, not {expected:.0}");
}

#[test]
fn a_window_moves_once_per_round_trip() {
    for way in [Way::Up, Way::Down] {
        assert_near(&transfer(way, 140_160, 20_000, None, 2000).run(), 140_160.0 / 0.02, 1.0);
    }
}

#[test]
fn a_window_above_the_product_fills_the_path() {
    for way in [Way::Up, Way::Down] {
        let record = transfer(way, 4 << 20, 17_000, Some(1_000_000_000), 1000).run();
        assert_near(&record, 125e6 * 1460.0 / 1538.0, 0.5);
        assert_eq!(record.retransmitted, 0);
    }
}

/// A guest without offloads behind a TUN queue.
fn behind_queue(frames: usize, when_full: WhenFull) -> Record {
    let mut transfer = transfer(Way::Up, 1 << 20, 40_000, None, 8000);
    transfer.guest = Options { burst: 1, ..transfer.guest };
    transfer.path.tun = Some((frames, when_full));
    transfer.run()
}

#[test]
fn a_queue_that_drops_its_tail_carries_little_more_than_itself_per_round_trip() {
    for frames in [10, 100] {
        let record = behind_queue(frames, WhenFull::Drop);
        let share = record.mean(0.5, 1.0) / (frames as f64 * 1460.0 / 0.04);
        assert!((0.4..1.2).contains(&share), "{share:.2} of {frames} frames per round trip");
        assert!(record.dropped > 0);
        let unrepaired = record.dropped.checked_sub(record.retransmitted);
        assert!(
            unrepaired.is_some_and(|n| n <= frames as u64),
            "{} dropped, {} retransmitted",
            record.dropped,
            record.retransmitted
        );
    }
}

#[test]
fn a_queue_that_stops_the_guest_slows_nothing() {
    for frames in [10, 100] {
        let record = behind_queue(frames, WhenFull::Stop);
        assert_near(&record, f64::from(1 << 20) / 0.04, 2.0);
        assert_eq!(record.retransmitted, 0);
    }
}

#[test]
fn a_queue_whose_length_is_known_drops_nothing() {
    // Three quarters of four fifths.
    for (frames, claims) in [(10, 6), (100, 60)] {
        let record = behind_queue(frames, WhenFull::DropKnown);
        assert_near(&record, f64::from(claims * 1460) / 0.04, 5.0);
        assert_eq!((record.dropped, record.retransmitted), (0, 0), "{frames} frames");
    }
}

#[test]
fn a_slow_reader_sets_the_pace() {
    let mut transfer = transfer(Way::Up, 1 << 20, 10_000, Some(1_000_000_000), 4000);
    let slow = SlowReader { buffer: 256 << 10, bytes_per_s: 2_000_000 };
    transfer.slow = Some((Duration::ZERO..Duration::MAX, slow));
    assert_near(&transfer.run(), 2e6, 2.0);
}

#[test]
fn the_same_run_twice_is_the_same_run() {
    let record = || behind_queue(50, WhenFull::Drop).samples;
    assert!(record() == record());
}

#[test]
fn the_edge_stays_while_much_of_the_window_waits_beyond_gaps() {
    // The observer checks this on every segment.
    let mut transfer = transfer(Way::Up, 1 << 20, 40_000, None, 2000);
    transfer.guest = Options { burst: 1, ..transfer.guest };
    transfer.path.tun = Some((400, WhenFull::Drop));
    assert!(transfer.run().dropped > 0);
}

/// A world with default buffers at 20 ms, and its one connection, open at 100 ms.
fn open_world(guest: Options) -> (Wan, usize) {
    let path = Path { rtt: Duration::from_millis(20), bits_per_s: Some(1_000_000_000), tun: None };
    let mut wan = Wan::new(&Config { mtu: guest.mss + 40, ..Config::default() }, path, guest.burst, 1);
    let flow = wan.connect(guest);
    wan.run_until(Instant::from_ms(100));
    assert!(wan.connections[flow].is_open());
    (wan, flow)
}

#[test]
fn a_question_and_its_answer_take_a_round_trip_and_no_limit_grows() {
    let (mut wan, flow) = open_world(Options::default());
    let server = Wan::server(flow);
    for i in 1..=50 {
        let asked = wan.now();
        wan.connections[flow].write(100);
        wan.poll(flow);
        while wan.host.got(server) < i * 100 {
            wan.run_until(wan.now() + Duration::from_millis(1));
        }
        wan.host.write(server, 5000);
        while wan.connections[flow].received() < i * 5000 {
            wan.run_until(wan.now() + Duration::from_millis(1));
        }
        assert!(wan.now() - asked <= Duration::from_millis(22), "answer {i} after {:?}", wan.now() - asked);
    }
    let info = wan.info(flow).expect("open");
    assert_eq!((info.rx.grows, info.tx.grows), (0, 0), "{info:?}");
}

#[test]
fn bursts_below_the_limit_leave_it_where_it_is() {
    let (mut wan, flow) = open_world(Options::default());
    for i in 1..=30u64 {
        wan.connections[flow].write(40_000);
        wan.poll(flow);
        wan.host.write(Wan::server(flow), 40_000);
        wan.run_until(Instant::from_ms(100 + i * 100));
        let moved = (wan.host.got(Wan::server(flow)), wan.connections[flow].received());
        assert_eq!(moved, (i * 40_000, i * 40_000));
    }
    let info = wan.info(flow).expect("open");
    assert_eq!((info.rx.grows, info.tx.grows), (0, 0), "{info:?}");
}

/// `curl --limit-rate` in the guest: reads all there is, then sleeps for as long as that takes at its rate.
#[test]
fn a_program_that_limits_its_own_rate_does_not_make_the_limit_swing() {
    let mut transfer = transfer(Way::Down, 4 << 20, 20, None, 6000);
    transfer.bounds.initial = 64 << 10;
    transfer.tuning = Tuning::Rtt;
    transfer.guest.receive_buffer = Some(6 << 20);
    transfer.paced = Some(20_000_000);
    let record = transfer.run();
    assert_near(&record, 20e6, 3.0);
    assert!(record.changes(0.5, 1.0) <= 3, "{} changes in three seconds", record.changes(0.5, 1.0));
    let limits: Vec<_> = record.samples[record.samples.len() / 2..].iter().map(|s| s.limit).collect();
    assert!(limits.iter().all(|&limit| limit <= 3 << 20), "{:?}", limits.iter().max());
}

#[test]
fn a_guest_that_reads_slowly_is_sent_what_it_reads_and_no_more() {
    let buffer = 128 << 10;
    let (mut wan, flow) = open_world(Options { receive_buffer: Some(buffer), ..Options::default() });
    wan.host.write(Wan::server(flow), u64::MAX);
    let mut read = 0;
    for i in 1..=400 {
        wan.run_until(Instant::from_ms(100 + i * 10));
        read += wan.connections[flow].read(10_000);
        wan.poll(flow);
        assert!(wan.connections[flow].received() <= read + buffer);
    }
    assert!(read >= 390 * 10_000, "{read} bytes read of those that could be");
    assert_eq!(wan.retransmitted(), 0);
}
