//! Shares of the TX queue budget: of one and of several connections, over time and with changing frames.

use super::{PERIOD, TxQueueBudget, TxQueueShare};
use crate::time::Instant;

const MSS: u16 = 1460;

fn ring(frames: u32) -> TxQueueBudget {
    let mut slots = TxQueueBudget::default();
    slots.set_len(Some(frames));
    slots.advance(Instant::from_ms(1));
    slots
}

/// Of a link without offload.
fn window_max(slots: &TxQueueBudget, claim: TxQueueShare) -> u32 {
    slots.window_max(claim, false, MSS)
}

fn set(slots: &mut TxQueueBudget, claim: &mut TxQueueShare, window: u32) {
    slots.claim(claim, window, 1);
}

/// Lets every claim take what it may, again and again.
fn settle(slots: &mut TxQueueBudget, claims: &mut [TxQueueShare]) -> Vec<u32> {
    let mut windows = Vec::new();
    for _ in 0..200 {
        windows.clear();
        for one in &mut *claims {
            let window = window_max(slots, *one);
            set(slots, one, window);
            windows.push(window);
        }
    }
    windows
}

#[test]
fn one_gets_nearly_all_and_several_share_without_a_number_to_tune() {
    for (n, frames, each) in [(1, 1000, 600), (2, 1000, 343), (8, 1000, 96), (1, 10, 6), (2, 10, 3)] {
        let mut slots = ring(frames);
        let mut claims = vec![TxQueueShare::new(MSS); n];
        let windows = settle(&mut slots, &mut claims);
        let (bound, claimed) = slots.tx_queue_usage().unwrap();
        assert!(claimed <= bound, "{claimed} of {bound}");
        for window in windows {
            let got = window / u32::from(MSS);
            assert!(got.abs_diff(each) <= each / 50 + 1, "{n} in {frames}: {got}, not {each}");
        }
    }
}

#[test]
fn what_is_given_back_is_there_for_others() {
    let mut slots = ring(1000);
    let mut claims = [TxQueueShare::new(MSS); 3];
    settle(&mut slots, &mut claims);
    for claim in &mut claims[1..] {
        set(&mut slots, claim, 0);
    }
    assert_eq!(window_max(&slots, claims[0]), 600 * u32::from(MSS));
}

#[test]
fn a_claim_is_forgotten_after_silence_and_counts_again_with_the_next_segment() {
    let mut slots = ring(1000);
    let (mut busy, mut idle) = (TxQueueShare::new(MSS), TxQueueShare::new(MSS));
    set(&mut slots, &mut idle, 400 * u32::from(MSS));
    let mut now = Instant::from_ms(1);
    for _ in 0..2 {
        assert_eq!(window_max(&slots, busy), 300 * u32::from(MSS));
        now = now + PERIOD;
        slots.advance(now);
    }
    assert_eq!(window_max(&slots, busy), 600 * u32::from(MSS));
    set(&mut slots, &mut busy, 600 * u32::from(MSS));
    set(&mut slots, &mut idle, 400 * u32::from(MSS));
    // More than there is, because advertised windows stand: neither may advance.
    assert_eq!(slots.tx_queue_usage(), Some((800, 1000)));
    assert_eq!(window_max(&slots, idle), 150 * u32::from(MSS));
    assert_eq!(window_max(&slots, busy), 300 * u32::from(MSS));
    set(&mut slots, &mut idle, 0);
    assert_eq!(slots.tx_queue_usage(), Some((800, 600)));
}

#[test]
fn a_pause_of_ours_forgets_nothing() {
    let mut slots = ring(1000);
    let mut claim = TxQueueShare::new(MSS);
    set(&mut slots, &mut claim, 400 * u32::from(MSS));
    slots.advance(Instant::from_ms(60_000));
    assert_eq!(slots.tx_queue_usage(), Some((800, 400)));
    slots.advance(Instant::from_ms(60_000) + PERIOD / 2);
    assert_eq!(slots.tx_queue_usage(), Some((800, 400)));
}

#[test]
fn what_a_frame_carries_is_measured() {
    let mut slots = ring(1000);
    let mut claim = TxQueueShare::new(MSS);
    assert_eq!(window_max(&slots, claim), 600 * u32::from(MSS));
    for _ in 0..60 {
        claim.measure(65_160);
    }
    let super_segments = window_max(&slots, claim);
    assert!((600 * 65_000..=600 * 65_160).contains(&super_segments), "{super_segments}");
    // Frames that begin to shrink are believed at once, and large ones only after a while.
    for _ in 0..4 {
        claim.measure(1460);
    }
    assert!(window_max(&slots, claim) < 600 * 24_000, "{}", window_max(&slots, claim));
    for _ in 0..60 {
        claim.measure(1460);
    }
    assert!((600 * 1460..=600 * 1470).contains(&window_max(&slots, claim)), "{}", window_max(&slots, claim));
    // A request-response connection.
    for _ in 0..60 {
        claim.measure(1);
    }
    assert_eq!(window_max(&slots, claim), 600 * 1460);
    // A segment of less than that.
    assert_eq!(window_max(&slots, TxQueueShare::new(536)), 600 * 536);
    set(&mut slots, &mut claim, 10 * 1460 + 1);
    assert_eq!(slots.tx_queue_usage(), Some((800, 11)));
}

#[test]
fn without_a_bound_nothing_is_claimed() {
    let mut slots = ring(10);
    let mut claim = TxQueueShare::new(MSS);
    set(&mut slots, &mut claim, 100_000);
    slots.set_len(None);
    assert_eq!((window_max(&slots, claim), slots.tx_queue_usage()), (u32::MAX, None));
    set(&mut slots, &mut claim, 200_000);
    slots.set_len(Some(1000));
    // The old claim, of which nothing is counted any more, takes nothing from others when it changes.
    set(&mut slots, &mut claim, 3 * u32::from(MSS));
    assert_eq!(slots.tx_queue_usage(), Some((800, 3)));
}

#[test]
fn a_ring_of_one_has_room_for_one_and_every_number_is_safe() {
    for frames in [0, 1, 2, u32::MAX] {
        let mut slots = ring(frames);
        let mut claim = TxQueueShare::new(MSS);
        for window in [0, 1, u32::MAX] {
            set(&mut slots, &mut claim, window);
            let _ = window_max(&slots, claim);
        }
    }
    assert_eq!(ring(1).tx_queue_usage(), Some((1, 0)));
}
