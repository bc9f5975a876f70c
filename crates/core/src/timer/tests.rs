//! The wheel against a plain list as its model.

use super::*;

fn id(index: u32) -> FlowId {
    FlowId { index, generation: 0 }
}

#[test]
fn fires_each_entry_once_at_its_tick() {
    let mut wheel = Wheel::default();
    let mut model: Vec<(u64, u32)> = Vec::new();
    let mut x = 99u64;
    let mut random = move |n: u64| {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (x >> 33) % n
    };
    let mut now_ms = 0;
    for i in 0..20_000u32 {
        let ahead = match random(4) {
            0 => random(64),
            1 => random(4096),
            2 => random(300_000),
            _ => random(10_000_000),
        };
        let at = now_ms + 1 + ahead;
        wheel.arm(id(i), Instant::from_ms(at));
        model.push((at, i));
        if i % 5 == 0 {
            // Earlier moves the entry, later does not.
            let victim = random(model.len() as u64) as usize;
            let moved = now_ms + 1 + random(100_000);
            wheel.arm(id(model[victim].1), Instant::from_ms(moved));
            model[victim].0 = model[victim].0.min(moved);
        }
        if i % 11 == 0 {
            let victim = random(model.len() as u64) as usize;
            wheel.cancel(id(model.swap_remove(victim).1));
        }
        if i % 7 == 0 && !model.is_empty() {
            let early = wheel.next().unwrap();
            let first = model.iter().map(|m| m.0).min().unwrap();
            assert!(early <= Instant::from_ms(first), "next() is late: {early:?} for {first} ms");
            now_ms += random(200_000);
            wheel.advance(Instant::from_ms(now_ms));
            let mut fired: Vec<u32> = std::iter::from_fn(|| wheel.pop()).map(|f| f.index).collect();
            let mut expected: Vec<u32> = model.iter().filter(|m| m.0 <= now_ms).map(|m| m.1).collect();
            model.retain(|m| m.0 > now_ms);
            fired.sort_unstable();
            expected.sort_unstable();
            assert_eq!(fired, expected, "at {now_ms} ms");
        }
    }
}

#[test]
fn past_deadlines_fire_at_the_next_tick() {
    let mut wheel = Wheel::default();
    wheel.advance(Instant::from_ms(1000));
    wheel.arm(id(1), Instant::from_ms(10));
    assert_eq!(wheel.next(), Some(Instant::from_ms(1001)));
    wheel.advance(Instant::from_ms(1001));
    assert_eq!(wheel.pop(), Some(id(1)));
    assert_eq!(wheel.next(), None);
}

#[test]
fn far_deadlines_are_clamped_not_lost() {
    let mut wheel = Wheel::default();
    wheel.arm(id(1), Instant::from_ms(1 << 40));
    wheel.advance(Instant::from_ms(1 << 24));
    assert!(wheel.pop().is_some());
}

#[test]
fn a_slot_used_again_does_not_inherit_an_entry() {
    let mut wheel = Wheel::default();
    wheel.arm(id(1), Instant::from_ms(10));
    let again = FlowId { index: 1, generation: 1 };
    wheel.arm(again, Instant::from_ms(500));
    wheel.advance(Instant::from_ms(100));
    assert_eq!(wheel.pop(), None);
    wheel.advance(Instant::from_ms(500));
    assert_eq!(wheel.pop(), Some(again));
}
