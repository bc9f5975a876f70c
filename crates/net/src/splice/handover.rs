//! Spliced connections in a hand-over: both sockets, and the pipes that hold bytes, with their number.
//!
//! A pipe in use goes along with its content; empty ones stay behind. The sockets are registered anew, so
//! that each reports what it is ready for, and each connection has a turn.

use super::{End, Pair, Pipe, Place, Splices, Way};
use crate::handover::v1::{PairV1, SpliceEndV1, SplicesV1, WayV1};
use crate::handover::{Expected, Handover, Incoming};
use brodo_core::flow::FlowId;
use brodo_core::flow::info::Initiator;
use rustix::event::epoll::EventData;
use rustix::fd::{AsFd, BorrowedFd};

impl Splices {
    /// Saves all connections.
    pub(crate) fn save<'a>(&'a self, into: &mut Handover<'a>) -> SplicesV1 {
        let pairs = self.pairs.slots_where(|_| true).into_iter();
        SplicesV1 { pairs: pairs.filter_map(|slot| Some(self.pairs.get(slot)?.save(slot, into))).collect() }
    }

    /// Takes a connection; its number. Descriptors that do not fit stay with `incoming`, and the others go
    /// back there.
    pub(crate) fn restore(
        &mut self,
        epoll: BorrowedFd<'_>,
        saved: &PairV1,
        incoming: &mut Incoming,
        event: impl Fn(u32) -> EventData,
    ) -> Option<u32> {
        if self.pairs.len() >= self.max {
            return None;
        }
        let pair = Pair::restore(saved, incoming)?;
        let pipes = pair.ways.iter().filter(|way| way.pipe.is_some()).count();
        let restored = self.insert(epoll, pair, event);
        let restored = restored.map_err(|ends| ends.into_iter().for_each(|end| incoming.put_back(end)));
        self.pipes.made += if restored.is_ok() { pipes } else { 0 };
        restored.ok()
    }

    /// Sets a counter by its name.
    pub(crate) fn set_counter(&mut self, name: &str, value: u64) {
        self.counters.set(name, value);
    }
}

impl Pair {
    fn save<'a>(&'a self, slot: u32, into: &mut Handover<'a>) -> PairV1 {
        let Self { flow, initiator, ends, ways, connecting, unreported, .. } = self;
        PairV1 {
            number: slot,
            flow: (flow.index, flow.generation),
            initiator_is_guest: *initiator == Initiator::Guest,
            ends: std::array::from_fn(|end| ends[end].save(into)),
            ways: std::array::from_fn(|way| ways[way].save(into)),
            connecting: *connecting,
            unreported: *unreported,
        }
    }

    /// A connection of its saved form. Without one of its descriptors the sockets go back to `incoming`.
    fn restore(saved: &PairV1, incoming: &mut Incoming) -> Option<Self> {
        let PairV1 { flow: (index, generation), initiator_is_guest, connecting, unreported, .. } = *saved;
        let ends = saved.ends.each_ref().map(|end| End::restore(end, incoming));
        let id = FlowId { index, generation };
        let mut way = 0..;
        let ways = saved
            .ways
            .each_ref()
            .map(|saved| Way::restore(saved, Place { flow: id, way: way.next()? }, incoming));
        match (ends, ways) {
            ([Some(initiators), Some(responders)], [Some(there), Some(back)]) => Some(Self {
                flow: id,
                initiator: if initiator_is_guest { Initiator::Guest } else { Initiator::Peer },
                ends: [initiators, responders],
                ways: [there, back],
                connecting,
                unreported,
                listed: false,
                starved: false,
                promoted: false,
                paused: false,
                elsewhere: None,
            }),
            (ends, _) => {
                ends.into_iter().flatten().for_each(|end| incoming.put_back(end.fd));
                None
            }
        }
    }
}

impl End {
    fn save<'a>(&'a self, into: &mut Handover<'a>) -> SpliceEndV1 {
        // A socket that was found broken fails again with the next write, by EPIPE.
        let Self { fd, readable: _, writable: _, urgent, failed, broken: _, peer_ended: _ } = self;
        SpliceEndV1 { descriptor: into.descriptor(fd.as_fd()), urgent: *urgent, failed: *failed }
    }

    fn restore(saved: &SpliceEndV1, incoming: &mut Incoming) -> Option<Self> {
        let SpliceEndV1 { descriptor, urgent, failed } = *saved;
        Some(Self { urgent, failed, ..Self::new(incoming.take(descriptor, Expected::Stream)?) })
    }
}

impl Way {
    fn save<'a>(&'a self, into: &mut Handover<'a>) -> WayV1 {
        // The last turn has no bearing on the next.
        let Self { place: _, pipe, held, moved, short: _, ended, fin_sent, fin_unreported } = self;
        debug_assert!(*moved == 0 && !fin_unreported, "a turn reports all of its progress");
        let pipe = pipe.as_ref().filter(|_| *held > 0);
        let pipe = pipe.map(|Pipe { from, to }| (into.descriptor(from.as_fd()), into.descriptor(to.as_fd())));
        WayV1 { pipe, held: *held as u64, ended: *ended, fin_sent: *fin_sent }
    }

    fn restore(saved: &WayV1, place: Place, incoming: &mut Incoming) -> Option<Self> {
        let WayV1 { pipe, held, ended, fin_sent } = *saved;
        let pipe = match pipe {
            Some((from, to)) => Some(incoming.take_pipe(from, to, held)?),
            None if held == 0 => None,
            None => return None,
        };
        let pipe = pipe.map(|(from, to)| Pipe { from, to });
        let held = usize::try_from(held).ok()?;
        Some(Self { pipe, held, ended, fin_sent, ..Self::new(place) })
    }
}
