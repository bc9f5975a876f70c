//! A network in a hand-over: all workers saved into one, and a network restored from it.

use super::{Builder, Made, Network, NetworkError};
use crate::driver::{Adoption, FirstTurn, Worker};
use crate::handover::records::{self, Parsed, WorkerRecords, save_clock};
use crate::handover::v1::LinkV1;
use crate::handover::{Handover, Incoming, MAGIC, RestoreFailure, Tag, Takeover, v1};
use brodo_core::stack::{Restored, Settings, Stack};
use brodo_link::GuestLink;
use std::mem::take;

/// All workers of a network, parked.
pub struct Frozen<'a, L> {
    workers: Vec<&'a mut Worker<L>>,
}

impl<'a, L: GuestLink> Frozen<'a, L> {
    /// In the order of their numbers.
    pub(super) fn new(workers: impl Iterator<Item = &'a mut Worker<L>>) -> Self {
        Self { workers: workers.collect() }
    }

    /// Saves the network. Nothing is changed but what a turn would have done too; the network can go on.
    pub fn save(&mut self) -> Handover<'_> {
        self.save_after(0)
    }

    /// The same after so many streams were passed in advance
    /// ([`Command::PassStreams`](crate::command::Command::PassStreams)).
    pub fn save_after(&mut self, passed: u32) -> Handover<'_> {
        // Parked workers have left frames with the first one; from here on none leaves any.
        self.workers.iter_mut().for_each(|worker| worker.settle());
        let mut handover = Handover::after(passed);
        let workers = self.workers.iter().map(|worker| &**worker);
        save(workers, &mut handover);
        handover
    }
}

fn save<'a, L: GuestLink + 'a>(
    workers: impl ExactSizeIterator<Item = &'a Worker<L>>,
    into: &mut Handover<'a>,
) {
    let mut workers = workers.peekable();
    let Some(first) = workers.peek() else { return };
    let clock = save_clock(&first.clock());
    into.record(Tag::Begin, &v1::BeginV1 { magic: MAGIC, workers: workers.len() as u32, clock });
    workers.for_each(|worker| worker.save(into));
    into.end();
}

impl<L: GuestLink> Network<L> {
    /// Saves the network between two turns of the caller's loop ([`crate::handover`]). The network can go on
    /// afterwards.
    pub fn save(&mut self) -> Handover<'_> {
        self.workers.iter_mut().for_each(Worker::settle);
        let mut handover = Handover::default();
        save(self.workers.iter(), &mut handover);
        handover
    }
}

/// A network restored from a hand-over.
pub struct TakenOver<L> {
    /// The network, which does not run yet.
    pub network: Network<L>,
    /// Flows that could not be restored. They are reset in the first turn.
    pub lost: usize,
    /// Descriptors that no flow has claimed. They are closed in the first turn.
    pub unclaimed: usize,
    /// Records that were not used: of unknown tags or versions, or without valid content.
    pub unused: usize,
}

impl<L: GuestLink> Builder<L> {
    /// As [`Builder::build`], but the network goes on where another one was frozen ([`crate::handover`]),
    /// with its clock. Its forwards are in force again, with their ids and sockets; those of this builder are
    /// added.
    ///
    /// # Errors
    /// As [`Builder::build`], and [`NetworkError::Restore`] if nothing can be restored. In each case the
    /// other network may be thawed.
    pub fn restore(mut self, from: Takeover) -> Result<TakenOver<L>, NetworkError> {
        let Takeover { bytes, descriptors, early } = from;
        let Parsed { clock, workers: saved, mut unused } =
            records::parse(&bytes).map_err(NetworkError::Restore)?;
        if saved.len() != self.links.len() {
            let (saved, links) = (saved.len(), self.links.len());
            return Err(NetworkError::Restore(RestoreFailure::Workers { saved, links }));
        }
        self.clock = clock;
        let basis = self.basis()?;
        let mut incoming = Incoming::new(early, descriptors);
        let mut workers = Vec::with_capacity(saved.len());
        let mut losses = 0;
        let mut agents = take(&mut self.promotion).into_iter();
        for ((number, mut link), mut records) in (0..).zip(take(&mut self.links)).zip(saved) {
            let mut sockets = self.sockets(incoming.take_poller(number), &basis)?;
            if let Some(LinkV1 { descriptors, bytes }) = &records.link {
                link.restore(bytes, incoming.take_for_link(descriptors));
            }
            let mut forwards = None;
            if number == 0 {
                forwards = Some(self.no_forwards(&sockets, &basis)?);
            }
            let settings = Settings {
                config: self.config.clone(),
                caps: link.caps(),
                budget: basis.budget.clone(),
                worker: number,
                host_addresses: self.host_addresses(),
                payload: self.payload_memory(number),
                room: incoming.take_room(number),
            };
            let adoption =
                Adoption::new(number, &mut sockets, forwards.as_mut(), &mut records, &mut incoming);
            let Restored { stack, lost, unused: ignored } = self.stack(settings, &records, adoption)?;
            if let Some(forwards) = &mut forwards {
                self.add_forwards(forwards)?;
            }
            (losses, unused) = (losses + lost.len(), unused + ignored);
            let made = Made { link, stack, sockets, forwards, agent: agents.next() };
            let mut worker = self.worker(number, made, &basis)?;
            worker.take_over(&records.worker, FirstTurn { lost, ..FirstTurn::default() });
            workers.push(worker);
        }
        let rest = incoming.rest();
        let unclaimed = rest.len();
        if let Some(first) = workers.first_mut() {
            first.close_first(rest);
        }
        Ok(TakenOver { network: self.network(workers, basis), lost: losses, unclaimed, unused })
    }

    /// The stack of a worker.
    fn stack(
        &self,
        settings: Settings,
        records: &WorkerRecords<'_>,
        mut adoption: Adoption<'_>,
    ) -> Result<Restored, NetworkError> {
        let restored = Stack::restore(settings, self.clock.now(), records.stack, &mut adoption);
        restored.map_err(|error| NetworkError::Restore(RestoreFailure::Stack(error)))
    }
}
