//! The ring against a queue of vectors, over many laps.

use super::Ring;
use crate::probe::mix;
use std::collections::VecDeque;

#[test]
fn records_come_out_as_they_went_in() {
    for seed in 0..50 {
        let mut ring = Ring::new(1000);
        let mut model = VecDeque::<(Vec<u8>, u64)>::new();
        let mut refused = 0;
        for step in 0..2000_u64 {
            let draw = mix(mix(seed) ^ step);
            let length = (draw >> 8) as usize % 300;
            if draw.is_multiple_of(2) {
                let Some(room) = ring.room(300) else {
                    refused += 1;
                    assert!(!model.is_empty(), "an empty ring has room, seed {seed}");
                    continue;
                };
                room[..length].fill(step as u8);
                assert_eq!(ring.written(length), vec![step as u8; length], "seed {seed}");
                ring.push(length, step);
                model.push_back((vec![step as u8; length], step));
            } else {
                let expected = model.pop_front();
                assert_eq!(ring.front(), expected.as_ref().map(|(bytes, _)| &bytes[..]), "seed {seed}");
                assert_eq!(ring.next_due_ns(), expected.map(|(_, due_ns)| due_ns), "seed {seed}");
                ring.pop();
            }
        }
        assert!(refused > 0, "was full at times, seed {seed}");
    }
}

#[test]
fn a_full_ring_says_so() {
    let mut ring = Ring::new(100);
    assert!(ring.room(101).is_none());
    for _ in 0..2 {
        assert!(ring.room(50).is_some());
        ring.push(50, 0);
    }
    assert!(ring.room(1).is_none());
    ring.pop();
    assert!(ring.room(49).is_some(), "the room given back at the beginning");
}
