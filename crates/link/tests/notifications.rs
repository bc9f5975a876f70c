//! Notifications of a ring under a model checker: every interleaving of device and driver, and every value
//! that the memory model lets either of them read.
//!
//! `src/virtio/ring.rs` is compiled here a second time, with loom's atomic integers as the guest's memory and
//! loom's fence; the shipped code is unaffected. The driver's side is written out after virtio 1.3, 2.7.7 and
//! 2.7.10. A notification is lost if one side sleeps and the other has not notified it. No thread really
//! sleeps: each returns whether it would, and the check runs when both have ended. Variants of the driver
//! without its fence must be found: a model that cannot fail proves nothing.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "the file is part of a crate, and the models do not use all of it"
)]

mod atomic {
    pub(crate) use loom::sync::atomic::{Ordering, fence};
}
mod memory;
#[path = "../src/virtio/ring.rs"]
mod ring;

use atomic::{Ordering, fence};
use loom::sync::Arc;
use loom::thread;
use memory::GuestMemory;
use ring::{Filled, Layout, Ring};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Places of a ring with one entry.
const AVAILABLE: u64 = 16;
const USED: u64 = 24;
const SIZE: usize = 40;

/// Whether the checker finds a run in which `model` panics.
fn is_refuted(model: impl Fn() + Sync + Send + 'static) -> bool {
    catch_unwind(AssertUnwindSafe(|| loom::model(model))).is_err()
}

/// An empty ring.
fn ring(event_index: bool, memory: &GuestMemory) -> Ring {
    let layout = Layout {
        size: 1,
        descriptors: 0,
        available: AVAILABLE,
        used: USED,
        indirect: false,
        event_index,
        logged: None,
    };
    Ring::start(layout, Filled::Driver, memory).expect("a ring")
}

fn load(memory: &GuestMemory, address: u64, order: Ordering) -> u16 {
    memory.user(address, 2).expect("in memory").load(0, order)
}

fn store(memory: &GuestMemory, address: u64, value: u16, order: Ordering) {
    memory.user(address, 2).expect("in memory").store(0, value, order);
}

/// The driver offers a chain; whether it kicks.
fn offer(memory: &GuestMemory, event_index: bool, fenced: bool) -> bool {
    store(memory, AVAILABLE + 2, 1, Ordering::Release);
    if fenced {
        fence(Ordering::SeqCst);
    }
    if event_index {
        // Its index moves from 0 to 1.
        load(memory, USED + 12, Ordering::Relaxed) == 0
    } else {
        load(memory, USED, Ordering::Relaxed) == 0
    }
}

/// The driver goes to sleep until a chain is used; whether it does.
fn sleep(memory: &GuestMemory, event_index: bool, fenced: bool) -> bool {
    if event_index {
        store(memory, AVAILABLE + 6, 0, Ordering::Relaxed);
    } else {
        store(memory, AVAILABLE, 0, Ordering::Relaxed);
    }
    if fenced {
        fence(Ordering::SeqCst);
    }
    load(memory, USED + 2, Ordering::Acquire) == 0
}

/// The device goes to sleep while the driver offers a chain.
fn kick(event_index: bool, fenced: bool) {
    let memory = Arc::new(GuestMemory::new(SIZE));
    let mut ring = ring(event_index, &memory);
    if event_index {
        // Not armed: the driver's index has passed it.
        store(&memory, USED + 12, u16::MAX, Ordering::Relaxed);
    }
    let guest = memory.clone();
    let driver = thread::spawn(move || offer(&guest, event_index, fenced));
    let asleep = !ring.arm(&memory, 1).expect("sound");
    let kicked = driver.join().expect("offers");
    assert!(!asleep || kicked, "lost kick");
}

/// The driver goes to sleep while the device uses a chain.
fn call(event_index: bool, fenced: bool) {
    let memory = Arc::new(GuestMemory::new(SIZE));
    let mut ring = ring(event_index, &memory);
    store(&memory, AVAILABLE + 2, 1, Ordering::Relaxed);
    if event_index {
        store(&memory, AVAILABLE + 6, u16::MAX, Ordering::Relaxed);
    } else {
        store(&memory, AVAILABLE, 1, Ordering::Relaxed);
    }
    let guest = memory.clone();
    let driver = thread::spawn(move || sleep(&guest, event_index, fenced));
    let chain = ring.peek(&memory, 0, &mut Vec::new()).expect("sound").expect("offered");
    ring.complete(&memory, chain.head, 0).expect("sound");
    ring.publish(&memory).expect("sound");
    let called = ring.needs_call(&memory).expect("sound");
    let asleep = driver.join().expect("looks");
    assert!(called || !asleep, "lost call");
}

#[test]
fn a_device_that_sleeps_is_kicked() {
    for event_index in [false, true] {
        loom::model(move || kick(event_index, true));
        assert!(is_refuted(move || kick(event_index, false)), "event index {event_index}");
    }
}

#[test]
fn a_driver_that_sleeps_is_called() {
    for event_index in [false, true] {
        loom::model(move || call(event_index, true));
        assert!(is_refuted(move || call(event_index, false)), "event index {event_index}");
    }
}
