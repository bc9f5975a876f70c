//! A network recovered from the journal of one that has crashed.

use super::{Builder, Made, NetworkError, TakenOver, keys};
use crate::driver::FirstTurn;
use crate::recovery::{Inherited, Recovering};
use brodo_core::journal::Remains;
use brodo_core::stack::{Restored, Settings, Stack};
use brodo_link::GuestLink;
use std::mem::take;

impl<L: GuestLink> Builder<L> {
    /// As [`Builder::build`], but with the flows of a network that has crashed ([`crate::recovery`]): with
    /// the same links in the same order, the same clock, and `remains` of each of its workers. Flows that
    /// cannot go on are reset in the first turn.
    ///
    /// # Errors
    /// As [`Builder::build`].
    pub fn recover(
        mut self,
        remains: &[Remains],
        mut inherited: Inherited,
    ) -> Result<TakenOver<L>, NetworkError> {
        let basis = self.basis()?;
        let none = Remains::default();
        let mut workers = Vec::with_capacity(self.links.len());
        let mut losses = 0;
        let mut agents = take(&mut self.promotion).into_iter();
        for (number, link) in (0..).zip(take(&mut self.links)) {
            let keys = keys().map_err(NetworkError::io("draw random keys: getrandom"))?;
            let mut sockets = self.sockets(None, &basis)?;
            let settings = Settings {
                config: self.config.clone(),
                caps: link.caps(),
                budget: basis.budget.clone(),
                worker: number,
                host_addresses: self.host_addresses(),
                payload: self.payload_memory(number),
                room: None,
            };
            let remains = remains.get(number as usize).unwrap_or(&none);
            let mut forwards = None;
            if number == 0 {
                let mut none = self.no_forwards(&sockets, &basis)?;
                self.add_forwards(&mut none)?;
                none.take_accepted(inherited.accepted());
                forwards = Some(none);
            }
            let (agent, mut promoted) = (agents.next(), Vec::new());
            let mut adopt = Recovering {
                sockets: &mut sockets,
                forwards: forwards.as_mut(),
                inherited: &mut inherited,
                promoted: agent.is_some().then_some(&mut promoted),
                examined: None,
            };
            let Restored { stack, lost, .. } =
                Stack::recover(settings, keys, self.clock.now(), remains, &mut adopt);
            losses += lost.len();
            let made = Made { link, stack, sockets, forwards, agent };
            let mut worker = self.worker(number, made, &basis)?;
            worker.go_on_with(remains, promoted);
            worker.begin_with(FirstTurn { lost, ..FirstTurn::default() });
            workers.push(worker);
        }
        let rest = inherited.rest();
        let unclaimed = rest.len();
        if let Some(first) = workers.first_mut() {
            first.close_first(rest);
        }
        Ok(TakenOver { network: self.network(workers, basis), lost: losses, unclaimed, unused: 0 })
    }
}
