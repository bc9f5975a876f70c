//! Spliced connections after a crash: both sockets and the pipes, by their numbers in the journal.
//!
//! No count of bytes is kept anywhere but in the kernel, which moves them and counts them in one: bytes read
//! from one socket are those in the pipe and those written to the other. A splice of which that is not true
//! is reset: bytes at an urgent mark pass through memory of the process, which is gone, and a process that
//! was taken over may have written any number into the journal.
//!
//! The end of a stream was passed on if the socket is shut down; else it is met again.

use super::{Pair, Pipe, Splices, Way, number, reset};
use crate::handover::Expected;
use crate::inherited::Inherited;
use crate::inherited::progress::EndProgress;
use brodo_core::carried::Resumed;
use brodo_core::flow::FlowId;
use brodo_core::journal::carried::{DriverJournal, SpliceRecord};
use rustix::event::epoll::EventData;
use rustix::fd::{AsFd, BorrowedFd};

/// A pipe with the number of bytes in it.
#[derive(Debug)]
pub(crate) struct Filled(Pipe, usize);

impl Filled {
    /// Number of bytes in it.
    pub(crate) fn bytes(&self) -> usize {
        self.1
    }
}

/// The pipes of both directions, by the numbers of their ends; `None` if one of them is missing.
pub(crate) fn filled_pipes(
    numbers: &[Option<(u32, u32)>; 2],
    inherited: &mut Inherited,
) -> Option<[Option<Filled>; 2]> {
    let mut take = |(from, to): (u32, u32)| {
        let (from, to, held) = inherited.take_pipe(from, to)?;
        Some(Filled(Pipe { from, to }, held))
    };
    let taken = numbers.map(|ends| ends.and_then(&mut take));
    let is_missing = numbers.iter().zip(&taken).any(|(ends, pipe)| ends.is_some() && pipe.is_none());
    (!is_missing).then_some(taken)
}

impl Splices {
    /// Writes the sockets and pipes of all connections to a journal, and those to come.
    pub(crate) fn set_journal(&mut self, journal: DriverJournal) {
        self.pipes.journal = journal;
        self.pairs.iter().for_each(|pair| pair.write_journal(journal));
    }

    /// Goes on with a connection of which every byte is there; else it is reset.
    pub(crate) fn recover(
        &mut self,
        epoll: BorrowedFd<'_>,
        flow: FlowId,
        record: &SpliceRecord,
        inherited: &mut Inherited,
        event: impl Fn(u32) -> EventData,
    ) -> Option<Resumed> {
        let sockets = record.sockets.map(|socket| inherited.take_socket(socket, Expected::Stream));
        let pipes = filled_pipes(&record.pipes, inherited);
        let (accepted, toward) = match sockets {
            [Some(accepted), Some(toward)] => (accepted, toward),
            sockets => {
                sockets.into_iter().flatten().for_each(reset);
                return None;
            }
        };
        let ends = [accepted, toward];
        let restored = pipes.filter(|_| self.pairs.len() < self.max).and_then(|pipes| {
            let [accepted, toward] = &ends;
            let progress =
                [EndProgress::of(accepted.as_fd(), true)?, EndProgress::of(toward.as_fd(), false)?];
            let held = pipes.each_ref().map(|pipe| pipe.as_ref().map_or(0, |Filled(_, held)| *held));
            is_whole(&progress, held).then_some((pipes, progress))
        });
        let Some((pipes, progress)) = restored else {
            ends.into_iter().for_each(reset);
            return None;
        };
        let made = pipes.iter().flatten().count();
        let mut pair = Pair::new(flow, record.initiator, ends);
        pair.go_on(pipes, &progress);
        match self.insert(epoll, pair, event) {
            Ok(number) => {
                self.pipes.made += made;
                let [initiator, responder] = progress;
                Some(Resumed { number, moved: Some([responder.written, initiator.written]) })
            }
            Err(ends) => {
                ends.into_iter().for_each(reset);
                None
            }
        }
    }
}

/// Whether each byte that was read from one end is in the pipe or was written to the other, and no end of a
/// stream was passed on before its last byte.
fn is_whole([accepted, toward]: &[EndProgress; 2], [there, back]: [usize; 2]) -> bool {
    let passes = |source: &EndProgress, held: usize, sink: &EndProgress| {
        let adds_up = sink.written.checked_add(held as u64) == Some(source.read);
        adds_up && (!sink.shut || (source.peer_closed && held == 0))
    };
    let waits = !toward.connecting || (accepted.read == 0 && accepted.written == 0 && !accepted.shut);
    waits && !accepted.connecting && passes(accepted, there, toward) && passes(toward, back, accepted)
}

impl Pair {
    /// Writes sockets and pipes.
    pub(super) fn write_journal(&self, journal: DriverJournal) {
        let Self { flow, ends: [accepted, toward], ways, promoted, .. } = self;
        if !promoted {
            journal.splice(*flow, [number(&accepted.fd), number(&toward.fd)]);
        }
        for Way { place, pipe, .. } in ways {
            journal.pipe(place.flow, place.way, pipe.as_ref().map(Pipe::numbers));
        }
    }

    /// Takes the pipes, and the state that the kernel tells of.
    pub(super) fn go_on(&mut self, pipes: [Option<Filled>; 2], [accepted, toward]: &[EndProgress; 2]) {
        (self.connecting, self.unreported) = (toward.connecting, toward.connecting);
        let sinks = [toward, accepted];
        for ((way, pipe), sink) in self.ways.iter_mut().zip(pipes).zip(sinks) {
            (way.fin_sent, way.fin_unreported, way.ended) = (sink.shut, sink.shut, sink.shut);
            if let Some(Filled(pipe, held)) = pipe {
                (way.pipe, way.held) = (Some(pipe), held);
            }
        }
    }
}

#[cfg(test)]
mod tests;
