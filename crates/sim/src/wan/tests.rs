//! The wide-area world with fixed windows, where every figure follows from the path.

use super::Path;
use super::record::{Record, Transfer, Way};
use super::tun::WhenFull;
use crate::linux_guest::Options;
use brodo_core::config::{BufferBounds, Tuning};
use brodo_core::time::Duration;

fn transfer(way: Way, window: u32, rtt_us: u64, bits_per_s: Option<u64>, lasts_ms: u64) -> Transfer {
    Transfer {
        way,
        tuning: Tuning::Fixed,
        bounds: BufferBounds { initial: window, max: window },
        path: Path { rtt: Duration::from_micros(rtt_us), bits_per_s, tun: None },
        guest: Options::default(),
        reader: None,
        then: None,
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
        assert_near(&record, 125e6 * 1460.0 / 1514.0, 0.5);
        assert_eq!(record.retransmitted, 0);
    }
}

#[test]
fn explore() {
    for q in [10, 50, 100, 500, 1000, 5000] {
        for when_full in [WhenFull::Drop, WhenFull::Stop] {
            let mut t = transfer(Way::Up, 4 << 20, 120_000, None, 20_000);
            t.guest = Options { burst: 1, send_buffer: 2_684_354, ..t.guest };
            t.path.tun = Some((q, when_full));
            let r = t.run();
            println!(
                "{q} {when_full:?} {:.2} Mbit/s dropped {} again {}",
                r.mean(0.5, 1.0) * 8e-6,
                r.dropped,
                r.retransmitted
            );
        }
    }
}
