//! The receiving half in a snapshot: its saved form, and the rules that a restored one obeys.

use super::{NO_DUPLICATE, NO_WINDOW_CAP, Receiver, ReceiverState, origin};
use crate::flow::FlowId;
use crate::memory::chunk::{ByteQueue, Pool};
use crate::snapshot::saved::{Invalid, Saved, is_count, saved_enum, valid};
use crate::snapshot::v1::ReceiverV1;
use crate::tcp::autosize::Limit;
use crate::tcp::delayed_ack::DelayedAck;
use crate::tcp::limiting_factor::LimitingClock;
use crate::tcp::reassembly::Reassembly;
use crate::tcp::window::{AdvertisedWindow, WindowUpdater};
use crate::time::Instant;
use crate::trace::Direction;
use crate::tx_queue::TxQueueShare;
use crate::wire::tcp::{SackBlock, Seq};

/// Largest limit that a window can express (RFC 7323, 2.2).
const LIMIT_MAX: u32 = 65_535 << 14;

saved_enum!(ReceiverState { Open = 0, Finishing = 1, Finished = 2 });

impl Receiver {
    /// Saved form, with slices of the pool's memory.
    pub(in crate::connection) fn save<'p>(&self, pool: &'p Pool) -> ReceiverV1<'p> {
        let Self { state, window, updater, rx_limit, data_at, queue, gaps, fin, writable, .. } = self;
        let Self { memory_listed, ack, sack, duplicate: _, tx_share, clock, bytes, reserved, .. } = self;
        ReceiverV1 {
            state: state.save(),
            window: window.save(),
            updater: updater.save(),
            rx_limit: rx_limit.saved(),
            data_at: data_at.save(),
            queue: pool.save(queue),
            gaps: gaps.save(pool),
            fin: fin.save(),
            writable: *writable,
            memory_listed: *memory_listed,
            ack: ack.save(),
            sack: *sack,
            duplicate: self.duplicate().map(|SackBlock { left, right }| (left.0, right.0)),
            tx_share: tx_share.save(),
            clock: clock.save(),
            bytes: *bytes,
            reserved: *reserved,
        }
    }

    /// Receiver of a saved form, without its payload ([`Receiver::restore_payload`]). `mss_max` is the
    /// largest payload of a segment on this link.
    ///
    /// # Errors
    /// [`Invalid`] if it contradicts itself.
    pub(in crate::connection) fn restore(saved: &ReceiverV1<'_>, mss_max: u16) -> Result<Self, Invalid> {
        let state = ReceiverState::restore(saved.state)?;
        let window = AdvertisedWindow::restore(saved.window)?;
        let held = saved.queue.len() + saved.gaps.iter().map(|range| range.bytes.len()).sum::<usize>();
        valid(window.mss() > 0 && window.mss() <= mss_max)?;
        // Held bytes were in a window once.
        valid(held <= LIMIT_MAX as usize && is_count(saved.bytes))?;
        valid(saved.reserved <= window.size())?;
        valid(match state {
            ReceiverState::Open => true,
            ReceiverState::Finishing => saved.gaps.is_empty(),
            ReceiverState::Finished => held == 0,
        })?;
        Ok(Self {
            state,
            window,
            updater: WindowUpdater::restore(saved.updater)?,
            rx_limit: Limit::from_saved(Direction::Receive, LIMIT_MAX, saved.rx_limit)?,
            data_at: Instant::restore(saved.data_at)?,
            queue: ByteQueue::new(),
            gaps: Reassembly::default(),
            fin: Saved::restore(saved.fin)?,
            writable: saved.writable,
            frozen: false,
            held_back: false,
            held_by_rate: false,
            window_cap: NO_WINDOW_CAP,
            memory_listed: false,
            ack: DelayedAck::restore(saved.ack)?,
            sack: saved.sack,
            duplicate: saved
                .duplicate
                .map_or(NO_DUPLICATE, |(left, right)| SackBlock { left: Seq(left), right: Seq(right) }),
            tx_share: TxQueueShare::restore(saved.tx_share)?,
            clock: LimitingClock::restore(saved.clock)?,
            bytes: saved.bytes,
            reserved: 0,
            gate: None,
            // Not in the record: a change of the policy takes the connection for one without a name.
            named: None,
        })
    }

    /// Takes the payload of the saved form, and reserves the window. [`Receiver::clear`] undoes both, also
    /// after an error.
    ///
    /// # Errors
    /// [`Invalid`] if memory does not suffice, or ranges ahead of gaps contradict the window.
    pub(in crate::connection) fn restore_payload(
        &mut self,
        pool: &mut Pool,
        id: FlowId,
        saved: &ReceiverV1<'_>,
    ) -> Result<(), Invalid> {
        let held = saved.queue.len() as u32 + u32::from(!self.is_open());
        let origin = Some(origin(id, self.nxt() - held));
        pool.restore(&mut self.queue, origin, &saved.queue)?;
        let edge = self.window.nxt() + self.window.size();
        self.gaps.restore(pool, id, self.window.nxt()..edge, &saved.gaps)?;
        pool.reserve_window(0, saved.reserved);
        self.reserved = saved.reserved;
        Ok(())
    }

    /// Listed among the flows parked for a window.
    pub(in crate::connection) fn restore_listed(&mut self) {
        self.memory_listed = true;
    }
}
