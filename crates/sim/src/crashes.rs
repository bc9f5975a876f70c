//! Crashes in virtual time: at a call on the host or the link the stack is gone, and another one recovers the
//! flows from its journal.
//!
//! The world around it stays: frames sent before, host sockets with what was written to them and read from
//! them. All else is lost, as memory is: the stack, and the frames of the guest that it was handling.
//!
//! *Points.* Each call on a host socket and each frame to the guest has two: before it has any effect, and
//! after. Between them the process is in the kernel; every other moment is one of these, so far as anything
//! outside can tell. A crash unwinds from there ([`crash_point`]) to the driver's call, which catches it.

use crate::crash_point;
use crate::host::SimHost;
use crate::promotions::Promotions;
use crate::rng::Rng;
use brodo_core::carried::Resumed;
use brodo_core::config::Config;
use brodo_core::flow::info::{Carrier, Initiator};
use brodo_core::flow::{FlowId, FlowKey};
use brodo_core::host::SocketId;
use brodo_core::journal::carried::{CarriedRecord, DriverJournal, PeerRecord};
use brodo_core::journal::promoted::{CarriedOn, PromotedRecord};
use brodo_core::journal::{Progress, Remains, Slot};
use brodo_core::link::LinkCaps;
use brodo_core::memory::budget::Budget;
use brodo_core::memory::payload::{ChunkRecord, PayloadLayout, PayloadMemory};
use brodo_core::stack::{Adopt, Keys, Lost, Recover, Restored, Room, Settings, SocketKind, Stack};
use brodo_core::time::Instant;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

thread_local! {
    /// Journals of drivers that are gone, for those to come: one is never given back.
    static FREE: RefCell<Vec<&'static [Slot]>> = const { RefCell::new(Vec::new()) };
    /// Payload memory of theirs.
    static PAYLOAD: RefCell<Vec<(usize, PayloadMemory)>> = const { RefCell::new(Vec::new()) };
}

/// Flows of a stack that crashes, at most; its journal has two slots more.
pub const FLOWS_MAX: usize = 15;

/// The world outside of the stack, which a crash leaves as it is.
pub(crate) struct Outside<'a> {
    pub(crate) host: &'a mut SimHost,
    pub(crate) promotions: &'a mut Promotions,
}

/// The crashes of one driver.
#[derive(Debug)]
pub struct Crashes {
    journal: &'static [Slot],
    /// Points left to the next crash, and from there to the one after it.
    next: Option<u64>,
    after_next: Option<u64>,
    rng: Rng,
    /// Crashes so far, and flows that were lost by them.
    done: u64,
    lost: u64,
}

impl Crashes {
    /// None yet. The stack keeps a journal from now on.
    pub fn new(stack: &mut Stack, seed: u64) -> Self {
        let new = || Box::leak((0..FLOWS_MAX + 2).map(|_| Slot::default()).collect());
        let journal = FREE.with_borrow_mut(Vec::pop).unwrap_or_else(|| new());
        stack.use_payload_memory(payload_memory(stack.memory_budget()));
        stack.set_journal(journal);
        Self { journal, next: None, after_next: None, rng: Rng::new(seed), done: 0, lost: 0 }
    }

    /// The next crash comes at the point with this number, counted from now.
    pub fn at(&mut self, points: u64) {
        self.next = Some(points);
    }

    /// So many points after the next crash there is another one.
    pub fn again_after(&mut self, points: u64) {
        self.after_next = Some(points);
    }

    /// The driver's part of the journal.
    pub(crate) fn driver_journal(&self) -> DriverJournal {
        DriverJournal::new(self.journal)
    }

    /// Crashes so far.
    pub fn done(&self) -> u64 {
        self.done
    }

    /// Flows lost by them.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Makes a call of the driver; true if it has crashed.
    pub(crate) fn call(&mut self, call: impl FnOnce()) -> bool {
        let (crashed, left) = crash_point::run(self.next, call);
        self.next = if crashed { self.after_next.take() } else { left };
        crashed
    }

    /// Randomness for the keys of the next stack.
    pub(crate) fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }

    /// A stack that goes on after `crashed`, the flows that are to be reset, and the sockets whose room is
    /// not to be reported. A process before it has made one too, and has crashed before that had records of
    /// its own.
    pub(crate) fn recover(
        &mut self,
        crashed: &mut Stack,
        config: &Config,
        keys: Keys,
        caps: LinkCaps,
        now: Instant,
        Outside { host, promotions }: Outside<'_>,
    ) -> (Stack, Vec<Lost>, BTreeSet<u32>) {
        let recover = |crashed: &mut Stack, host: &SimHost| {
            let remains = Remains::read(self.journal);
            let budget = Arc::new(Budget::new(config.memory));
            // Less than there are flows, in most scripts.
            let (payload, room) = (crashed.take_payload_memory(), Some(Room::of(1)));
            let settings = Settings {
                config: config.clone(),
                caps,
                budget,
                worker: 0,
                host_addresses: Arc::default(),
                payload,
                room,
            };
            let mut adopt = Adoption { host, promotions, claimed: BTreeSet::new(), quiet: BTreeSet::new() };
            let restored = Stack::recover(settings, keys, now, &remains, &mut adopt);
            (restored, remains, adopt.claimed, adopt.quiet)
        };
        let (mut short_lived, ..) = recover(crashed, host);
        let (Restored { mut stack, lost, .. }, remains, claimed, quiet) =
            recover(&mut short_lived.stack, host);
        host.reset_all_but(&claimed);
        promotions.recovered(&stack, host);
        stack.set_journal(self.journal);
        stack.forget_lost(&remains);
        self.done += 1;
        self.lost += lost.len() as u64;
        (stack, lost, quiet)
    }
}

/// Payload memory for a budget of `budget` bytes. It comes from the allocator as zeros, of which no page is
/// there until it is used.
fn payload_memory(budget: usize) -> PayloadMemory {
    let is_fit = |(of, _): &(usize, PayloadMemory)| *of == budget;
    let free = PAYLOAD.with_borrow_mut(|all| all.iter().position(is_fit).map(|at| all.swap_remove(at).1));
    free.unwrap_or_else(|| {
        let layout = PayloadLayout::of(budget);
        let records = (0..layout.records()).map(|_| ChunkRecord::default()).collect::<Vec<_>>();
        let bytes = Vec::leak(vec![0; layout.bytes()]);
        PayloadMemory::new(layout, bytes, Vec::leak(records)).expect("parts of the layout")
    })
}

/// Gives the memory of a stack that is gone to those to come.
pub(crate) fn give_back(stack: &mut Stack) {
    if let Some(memory) = stack.take_payload_memory() {
        PAYLOAD.with_borrow_mut(|all| all.push((stack.memory_budget(), memory)));
    }
}

impl Drop for Crashes {
    fn drop(&mut self) {
        Remains::take(self.journal);
        FREE.with_borrow_mut(|free| free.push(self.journal));
    }
}

/// The host's side: sockets and what their kernel has counted.
struct Adoption<'a> {
    host: &'a SimHost,
    promotions: &'a Promotions,
    claimed: BTreeSet<u32>,
    /// Those whose room is not reported.
    quiet: BTreeSet<u32>,
}

impl Adopt for Adoption<'_> {
    fn socket(&mut self, flow: FlowId, index: u32, kind: SocketKind) -> Option<SocketId> {
        let socket = SocketId(index);
        assert!(self.host.is_socket_of(socket, flow, kind), "{socket:?} of {flow:?} is no {kind:?}");
        self.claimed.insert(index);
        Some(socket)
    }

    fn carrier(&mut self, _: FlowId, _: Carrier, _: u32) -> Option<u32> {
        None
    }
}

impl Recover for Adoption<'_> {
    fn progress(&mut self, index: u32, _: bool, read: u32) -> Option<Progress> {
        let progress = self.host.progress(SocketId(index))?;
        assert!((progress.read as u32).wrapping_sub(read) < 1 << 31, "the record is ahead of {progress:?}");
        Some(progress)
    }

    fn stream(&mut self, flow: FlowId, index: u32, quiet: bool) -> Option<SocketId> {
        if quiet {
            self.quiet.insert(index);
        }
        self.socket(flow, index, SocketKind::Stream)
    }

    fn carried(&mut self, _: FlowId, record: &CarriedRecord) -> Option<Resumed> {
        let CarriedRecord::Splice(splice) = record else { return None };
        Some(Resumed { number: splice.sockets[0], moved: None })
    }

    fn promoted(&mut self, flow: FlowId, _: &FlowKey, _: Initiator, _: &PromotedRecord) -> Option<CarriedOn> {
        self.promotions.carried(flow)
    }

    fn published(&mut self, _: FlowId, _: &PeerRecord) -> Option<SocketId> {
        None
    }
}
