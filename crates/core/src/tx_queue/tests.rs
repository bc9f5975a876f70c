//! Shares of the TX queue budget: of one and of several connections, over time and with changing frames.

use super::{PERIOD, TxQueueBudget, TxQueueShare, TxQueueUsage};
use crate::time::Instant;

const MSS: u16 = 1460;

fn tx_queue(frames: u32) -> TxQueueBudget {
    let mut budget = TxQueueBudget::default();
    budget.set_len(Some(frames));
    budget.advance(Instant::from_ms(1));
    budget
}

fn usage(bound: u32, allotted: u32) -> TxQueueUsage {
    TxQueueUsage { bound, allotted }
}

/// Largest window on a link without offload.
fn window_max(budget: &TxQueueBudget, share: TxQueueShare) -> u32 {
    budget.window_max(share, false, MSS)
}

fn set(budget: &mut TxQueueBudget, share: &mut TxQueueShare, window: u32) {
    budget.renew(share, window);
}

/// Windows after 200 rounds in which every share grows to its largest window.
fn settle(budget: &mut TxQueueBudget, shares: &mut [TxQueueShare]) -> Vec<u32> {
    let mut windows = Vec::new();
    for _ in 0..200 {
        windows.clear();
        for one in &mut *shares {
            let window = window_max(budget, *one);
            set(budget, one, window);
            windows.push(window);
        }
    }
    windows
}

#[test]
fn one_gets_nearly_all_and_several_share_without_a_number_to_tune() {
    for (n, frames, each) in [(1, 1000, 600), (2, 1000, 343), (8, 1000, 96), (1, 10, 6), (2, 10, 3)] {
        let mut budget = tx_queue(frames);
        let mut shares = vec![TxQueueShare::new(MSS); n];
        let windows = settle(&mut budget, &mut shares);
        let TxQueueUsage { bound, allotted } = budget.tx_queue_usage().unwrap();
        assert!(allotted <= bound, "{allotted} of {bound}");
        for window in windows {
            let got = window / u32::from(MSS);
            assert!(got.abs_diff(each) <= each / 50 + 1, "{n} in {frames}: {got}, not {each}");
        }
    }
}

#[test]
fn frames_given_back_are_there_for_others() {
    let mut budget = tx_queue(1000);
    let mut shares = [TxQueueShare::new(MSS); 3];
    settle(&mut budget, &mut shares);
    for share in &mut shares[1..] {
        set(&mut budget, share, 0);
    }
    assert_eq!(window_max(&budget, shares[0]), 600 * u32::from(MSS));
}

#[test]
fn a_share_expires_after_silence_and_counts_again_with_the_next_segment() {
    let mut budget = tx_queue(1000);
    let (mut busy, mut idle) = (TxQueueShare::new(MSS), TxQueueShare::new(MSS));
    set(&mut budget, &mut idle, 400 * u32::from(MSS));
    let mut now = Instant::from_ms(1);
    for _ in 0..2 {
        assert_eq!(window_max(&budget, busy), 300 * u32::from(MSS));
        now = now + PERIOD;
        budget.advance(now);
    }
    assert_eq!(window_max(&budget, busy), 600 * u32::from(MSS));
    set(&mut budget, &mut busy, 600 * u32::from(MSS));
    set(&mut budget, &mut idle, 400 * u32::from(MSS));
    // More than there is, because advertised windows stand: neither may advance.
    assert_eq!(budget.tx_queue_usage(), Some(usage(800, 1000)));
    assert_eq!(window_max(&budget, idle), 150 * u32::from(MSS));
    assert_eq!(window_max(&budget, busy), 300 * u32::from(MSS));
    set(&mut budget, &mut idle, 0);
    assert_eq!(budget.tx_queue_usage(), Some(usage(800, 600)));
}

#[test]
fn a_pause_of_ours_expires_no_share() {
    let mut budget = tx_queue(1000);
    let mut share = TxQueueShare::new(MSS);
    set(&mut budget, &mut share, 400 * u32::from(MSS));
    budget.advance(Instant::from_ms(60_000));
    assert_eq!(budget.tx_queue_usage(), Some(usage(800, 400)));
    budget.advance(Instant::from_ms(60_000) + PERIOD / 2);
    assert_eq!(budget.tx_queue_usage(), Some(usage(800, 400)));
}

#[test]
fn payload_per_frame_is_measured() {
    let mut budget = tx_queue(1000);
    let mut share = TxQueueShare::new(MSS);
    assert_eq!(window_max(&budget, share), 600 * u32::from(MSS));
    for _ in 0..60 {
        share.measure(65_160);
    }
    let super_segments = window_max(&budget, share);
    assert!((600 * 65_000..=600 * 65_160).contains(&super_segments), "{super_segments}");
    // Shrinking frames count at once, large ones only after a while.
    for _ in 0..4 {
        share.measure(1460);
    }
    assert!(window_max(&budget, share) < 600 * 24_000, "{}", window_max(&budget, share));
    for _ in 0..60 {
        share.measure(1460);
    }
    assert!(
        (600 * 1460..=600 * 1470).contains(&window_max(&budget, share)),
        "{}",
        window_max(&budget, share)
    );
    // A request-response connection.
    for _ in 0..60 {
        share.measure(1);
    }
    assert_eq!(window_max(&budget, share), 600 * 1460);
    // A segment of less than that.
    assert_eq!(window_max(&budget, TxQueueShare::new(536)), 600 * 536);
    set(&mut budget, &mut share, 10 * 1460 + 1);
    assert_eq!(budget.tx_queue_usage(), Some(usage(800, 11)));
}

#[test]
fn without_a_bound_no_share_is_counted() {
    let mut budget = tx_queue(10);
    let mut share = TxQueueShare::new(MSS);
    set(&mut budget, &mut share, 100_000);
    budget.set_len(None);
    assert_eq!((window_max(&budget, share), budget.tx_queue_usage()), (u32::MAX, None));
    set(&mut budget, &mut share, 200_000);
    budget.set_len(Some(1000));
    // The old share, of which nothing is counted any more, takes nothing from others when it changes.
    set(&mut budget, &mut share, 3 * u32::from(MSS));
    assert_eq!(budget.tx_queue_usage(), Some(usage(800, 3)));
}

#[test]
fn a_queue_of_one_has_room_for_one_and_every_number_is_safe() {
    for frames in [0, 1, 2, u32::MAX] {
        let mut budget = tx_queue(frames);
        let mut share = TxQueueShare::new(MSS);
        for window in [0, 1, u32::MAX] {
            set(&mut budget, &mut share, window);
            let _ = window_max(&budget, share);
        }
    }
    assert_eq!(tx_queue(1).tx_queue_usage(), Some(usage(1, 0)));
}
