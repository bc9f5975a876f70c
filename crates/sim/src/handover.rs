//! Hand-over in virtual time: at an event the stack is saved, dropped, and built anew from the bytes.
//!
//! The world around it stays: link, host sockets, clock. So a script, its golden trace and the observer's
//! rules tell any difference between the stack that was saved and the one that goes on. The second stack
//! is saved at once: its snapshot must be the first one, byte for byte.
//!
//! *Exceptions.* State that a save leaves out by design ([`Omitted`]) is lost at a hand-over. At an event
//! where there is any, namely a pending DNS query, an incomplete packet, or a record of an ended flow that
//! the test has not taken yet, the stack is saved and goes on itself. Both kinds of event are counted.
//!
//! *Switch.* Every driver of the test program `handover` hands over; so the same scripts run as they are.

use crate::host::SimHost;
use crate::rng::Rng;
use brodo_core::flow::FlowId;
use brodo_core::flow::info::Carrier;
use brodo_core::host::SocketId;
use brodo_core::link::LinkCaps;
use brodo_core::memory::budget::Budget;
use brodo_core::snapshot::RestoreError;
use brodo_core::stack::{Adopt, Omitted, Restored, Settings, SocketKind, Stack};
use brodo_core::time::Instant;
use std::cell::Cell;
use std::sync::{Arc, OnceLock};

/// Events of one test with a hand-over at each: whole scripts, and the beginning of worlds.
const EVERY_EVENT: u64 = 5000;
/// One of so many later events has one. Each driver of a test begins elsewhere, so that of the hundreds of
/// scripts that a table of states makes, all events of its last ones have some.
const LATER: u64 = 97;
/// Events with a hand-over of a driver that has them at random, in thousandths.
const RANDOM_PER_MILLE: u32 = 20;

thread_local! {
    /// Events of the drivers of this test, and their number.
    static EVENTS: Cell<u64> = const { Cell::new(0) };
    static DRIVERS: Cell<u64> = const { Cell::new(0) };
}

/// A stack as bytes, with the sockets of its host by index.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// The records, one after another.
    pub bytes: Vec<u8>,
    /// Sockets, each at its index.
    pub sockets: Vec<SocketId>,
    /// State that was left out.
    pub omitted: Omitted,
}

impl Snapshot {
    /// Saves a stack.
    pub fn of(stack: &Stack, now: Instant) -> Self {
        let mut snapshot = Self::default();
        let Self { bytes, sockets, .. } = &mut snapshot;
        let index_of = |_, socket| {
            sockets.push(socket);
            sockets.len() as u32 - 1
        };
        snapshot.omitted = stack.save(now, index_of, |record| record.write(bytes));
        snapshot
    }

    /// The stack that goes on, with the sockets of `host`.
    ///
    /// # Panics
    /// If anything of the snapshot cannot be restored, or a socket is not as it was.
    pub fn restore(&self, settings: Settings, now: Instant, host: &SimHost) -> Stack {
        let Restored { stack, lost, .. } = self.restore_with_lost(settings, now, host);
        assert!(lost.is_empty(), "lost are {lost:?}");
        stack
    }

    /// The same with the flows that end with the hand-over.
    ///
    /// # Panics
    /// If a record cannot be restored, or a socket is not as it was.
    pub fn restore_with_lost(&self, settings: Settings, now: Instant, host: &SimHost) -> Restored {
        let (restored, adopted) = self.attempt(settings, now, host);
        assert_eq!(adopted, self.sockets.len(), "every socket is claimed");
        match restored {
            Ok(restored) if restored.unused == 0 => restored,
            Ok(Restored { lost, unused, .. }) => panic!("{unused} records are unused, lost are {lost:?}"),
            Err(error) => panic!("nothing is restored: {error}"),
        }
    }

    /// The same where records may be of no use.
    ///
    /// # Panics
    /// If nothing can be restored, or a socket is not as it was.
    pub fn restore_any(&self, settings: Settings, now: Instant, host: &SimHost) -> Restored {
        self.attempt(settings, now, host).0.expect("a snapshot")
    }

    /// A restored stack, if it is one, and how many sockets were claimed.
    fn attempt(
        &self,
        settings: Settings,
        now: Instant,
        host: &SimHost,
    ) -> (Result<Restored, RestoreError>, usize) {
        let mut adopt = Adoption { host, sockets: &self.sockets, adopted: 0 };
        let restored = Stack::restore(settings, now, &self.bytes, &mut adopt);
        (restored, adopt.adopted)
    }
}

/// The host's side of a hand-over: sockets stay what they are.
struct Adoption<'a> {
    host: &'a SimHost,
    sockets: &'a [SocketId],
    adopted: usize,
}

impl Adopt for Adoption<'_> {
    fn socket(&mut self, flow: FlowId, index: u32, kind: SocketKind) -> Option<SocketId> {
        let socket = *self.sockets.get(index as usize)?;
        assert!(self.host.is_socket_of(socket, flow, kind), "{socket:?} of {flow:?} is no {kind:?}");
        self.adopted += 1;
        Some(socket)
    }

    fn carrier(&mut self, _: FlowId, _: Carrier, number: u32) -> Option<u32> {
        Some(number)
    }
}

/// Hand-overs of one driver.
#[derive(Debug)]
pub struct Handovers {
    events: u64,
    /// Events with a hand-over, and without one because something would have been left out.
    done: u64,
    kept: u64,
    when: When,
}

/// Events at which a driver hands over.
#[derive(Debug)]
enum When {
    /// At none, but in a program that does it at every event.
    ByProgram,
    /// At none.
    Never,
    /// At random, with all sockets registered anew.
    AtRandom(Rng),
}

impl Default for Handovers {
    fn default() -> Self {
        let drivers = DRIVERS.replace(DRIVERS.get() + 1);
        Self { events: drivers, done: 0, kept: 0, when: When::ByProgram }
    }
}

impl Handovers {
    /// An event has passed: hands the stack over, if it is time and nothing would be lost. True if the
    /// host then registers all sockets anew.
    pub(crate) fn event(&mut self, stack: &mut Stack, caps: LinkCaps, now: Instant, host: &SimHost) -> bool {
        let is_time = match &mut self.when {
            When::Never => false,
            When::AtRandom(rng) => rng.chance(RANDOM_PER_MILLE),
            When::ByProgram => is_on() && self.is_time(stack),
        };
        if is_time {
            self.hand_over(stack, caps, now, host);
        }
        is_time && matches!(self.when, When::AtRandom(_))
    }

    fn hand_over(&mut self, stack: &mut Stack, caps: LinkCaps, now: Instant, host: &SimHost) {
        let before = Snapshot::of(stack, now);
        if before.omitted != Omitted::default() {
            self.kept += 1;
            return;
        }
        let config = stack.config().clone();
        let budget = Arc::new(Budget::new(config.memory));
        let host_addresses = stack.host_addresses();
        let counts = (stack.memory_used(), stack.memory_reserved(), stack.flows(), stack.next_deadline());
        *stack = before.restore(
            Settings { config, caps, budget, worker: 0, host_addresses, payload: None, room: None },
            now,
            host,
        );
        let after = Snapshot::of(stack, now);
        assert!(before.bytes == after.bytes, "at {now:?} a second snapshot differs from the first");
        let now = (stack.memory_used(), stack.memory_reserved(), stack.flows(), stack.next_deadline());
        assert_eq!(counts, now, "memory, windows, flows and deadline after a hand-over");
        self.done += 1;
    }

    /// None from now on: stacks that share a budget are handed over all at once.
    pub fn switch_off(&mut self) {
        self.when = When::Never;
    }

    /// At random from now on, in any program, and with what a driver of real sockets does: it registers them
    /// anew, so that each one's readiness is reported once more.
    pub fn at_random(&mut self, seed: u64) {
        self.when = When::AtRandom(Rng::new(seed));
    }

    /// Hand-overs so far.
    pub fn done(&self) -> u64 {
        self.done
    }

    /// Events at which the stack went on itself, because something would have been left out.
    pub fn kept(&self) -> u64 {
        self.kept
    }

    /// Every event of a short test; of a long one, or with many flows, as many as cost about as much.
    fn is_time(&mut self, stack: &Stack) -> bool {
        self.events += 1;
        let every = if EVENTS.replace(EVENTS.get() + 1) < EVERY_EVENT { 1 } else { LATER };
        self.events.is_multiple_of(every * (1 + stack.flows() as u64 / 16))
    }
}

/// Whether this program hands over, by its name.
pub fn is_on() -> bool {
    static ON: OnceLock<bool> = OnceLock::new();
    *ON.get_or_init(|| {
        let program = std::env::current_exe().ok();
        let name = program.as_ref().and_then(|path| path.file_name()?.to_str());
        name.is_some_and(|name| name.starts_with("handover-"))
    })
}
