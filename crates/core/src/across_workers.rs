//! Facts that all workers of a guest share beside its flows: one learns them, and each acts on them.
//!
//! - Identifications of IPv4 datagrams that are fragmented or may be: datagrams of two workers with the same
//!   one would be mixed by a guest that puts them together (RFC 791, 3.2).
//! - Path MTU: the guest's report about an answer comes by any queue, not by that of the answer's flow.
//! - Cut answer: a question over UDP and its repetition over TCP have different ports, and so perhaps
//!   different workers.
//!
//! Each is one word, written and read in no order: a fact that is seen a moment later is seen in time.

use crate::time::{Duration, Instant};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Time for which a path is taken to be as narrow as was reported (RFC 8201, section 4).
const PATH_MTU_LIFETIME: Duration = Duration::from_secs(10 * 60);

/// Time for which the resolver of an answer that was cut is dialled first.
const CUT_FOR: Duration = Duration::from_secs(10);

/// Bits of a word below its time in milliseconds.
const VALUE_BITS: u32 = 16;

/// The facts.
#[derive(Debug, Default)]
pub(crate) struct AcrossWorkers {
    /// Identification of the last packet that is fragmented or may be.
    ident: AtomicU32,
    /// Least MTU reported of a path over IPv6 within the guest, in bytes, below the time at which it is
    /// forgotten.
    path_mtu: Stamped,
    /// Number of the resolver, from 1, whose answer was the last that was cut, below the time of that.
    cut: Stamped,
}

impl AcrossWorkers {
    /// Takes what a worker has learnt by itself.
    pub(crate) fn join(&self, own: &Self) {
        self.ident.fetch_max(own.ident.load(Ordering::Relaxed), Ordering::Relaxed);
        if let Some((mtu, until)) = own.path_mtu.read() {
            self.set_path_mtu(mtu, until);
        }
    }

    /// The first of the next `count` identifications.
    pub(crate) fn next_ident(&self, count: u32) -> u32 {
        self.ident.fetch_add(count, Ordering::Relaxed).wrapping_add(1)
    }

    /// The last identification.
    pub(crate) fn ident(&self) -> u32 {
        self.ident.load(Ordering::Relaxed)
    }

    /// Goes on behind an identification.
    pub(crate) fn skip_idents(&self, to: u32) {
        self.ident.fetch_max(to, Ordering::Relaxed);
    }

    /// Notes a report of the guest that a packet over IPv6 was too big for a link of `mtu` bytes behind it.
    pub(crate) fn narrow(&self, now: Instant, mtu: u16) {
        if self.path_mtu(now).is_none_or(|known| mtu <= known) {
            self.path_mtu.write(mtu, now + PATH_MTU_LIFETIME);
        }
    }

    /// Least MTU reported of a path over IPv6 within the guest, in bytes.
    pub(crate) fn path_mtu(&self, now: Instant) -> Option<u16> {
        self.path_mtu.read().filter(|(_, until)| *until > now).map(|(mtu, _)| mtu)
    }

    /// The same with the time at which it is forgotten.
    pub(crate) fn path_mtu_until(&self) -> Option<(u16, Instant)> {
        self.path_mtu.read()
    }

    /// Takes that of another program, unless a narrower path is known.
    pub(crate) fn set_path_mtu(&self, mtu: u16, until: Instant) {
        if self.path_mtu.read().is_none_or(|(known, _)| mtu <= known) {
            self.path_mtu.write(mtu, until);
        }
    }

    /// Notes an answer of a resolver that does not fit into a datagram to the guest, or may not.
    pub(crate) fn cut(&self, resolver: usize, now: Instant) {
        self.cut.write(resolver as u16 + 1, now);
    }

    /// Forgets it: the resolvers are others.
    pub(crate) fn forget_cut(&self) {
        self.cut.0.store(0, Ordering::Relaxed);
    }

    /// The resolver whose answer was cut lately.
    pub(crate) fn cut_by(&self, now: Instant) -> Option<usize> {
        let (number, at) = self.cut.read()?;
        (now.since(at) < CUT_FOR).then(|| usize::from(number) - 1)
    }
}

/// A value with a time, to the millisecond, in one word; none if it is 0.
#[derive(Debug, Default)]
struct Stamped(AtomicU64);

impl Stamped {
    fn write(&self, value: u16, at: Instant) {
        let at_ms = at.as_ns() / 1_000_000;
        self.0.store((at_ms << VALUE_BITS) | u64::from(value), Ordering::Relaxed);
    }

    fn read(&self) -> Option<(u16, Instant)> {
        let word = self.0.load(Ordering::Relaxed);
        let value = word as u16;
        (value != 0).then(|| (value, Instant::from_ms(word >> VALUE_BITS)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_ms(seconds * 1000)
    }

    #[test]
    fn identifications_are_shared_and_go_on() {
        let all = AcrossWorkers::default();
        for last in [7, 3] {
            let own = AcrossWorkers::default();
            own.skip_idents(last);
            all.join(&own);
        }
        assert_eq!([all.next_ident(1), all.next_ident(2), all.next_ident(1)], [8, 9, 11]);
    }

    #[test]
    fn the_narrowest_path_counts_until_it_is_forgotten() {
        let (all, own) = (AcrossWorkers::default(), AcrossWorkers::default());
        assert_eq!(all.path_mtu(at(1)), None);
        all.narrow(at(1), 1400);
        own.narrow(at(100), 1300);
        all.join(&own);
        all.narrow(at(101), 1350);
        assert_eq!(all.path_mtu(at(699)), Some(1300));
        assert_eq!(all.path_mtu(at(700)), None);
        all.narrow(at(700), 1450);
        assert_eq!(all.path_mtu(at(701)), Some(1450));
    }

    #[test]
    fn a_cut_answer_counts_for_a_while() {
        let all = AcrossWorkers::default();
        assert_eq!(all.cut_by(at(0)), None);
        all.cut(0, at(5));
        assert_eq!(all.cut_by(at(14)), Some(0));
        all.cut(7, at(15));
        assert_eq!((all.cut_by(at(24)), all.cut_by(at(25))), (Some(7), None));
        all.forget_cut();
        assert_eq!(all.cut_by(at(16)), None);
    }
}
