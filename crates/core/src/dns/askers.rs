//! Fair shares of the pending queries: at the bound, the oldest query of the port with the most pending ones
//! is replaced.
//!
//! Programs of a guest are distinguished only by source address and port. The port with the most pending
//! queries yields first, among equals the one whose query is oldest: a program that leaves a thousand queries
//! open loses its own, and of a program that opens a thousand ports the oldest go first, which are the least
//! likely to be answered.

use crate::flow::{Endpoint, FlowId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// One asker's pending query, ordered by age.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

/// All pending queries.
#[derive(Debug, Default)]
pub(crate) struct Askers {
    asked: u64,
    /// For each the port that asked, and the flow that keeps it.
    tickets: BTreeMap<Ticket, (Endpoint, FlowId)>,
    ports: BTreeMap<Endpoint, BTreeSet<Ticket>>,
    /// Ports by number of pending queries, then by the oldest of them; the last one yields first.
    ranking: BTreeSet<(usize, Reverse<Ticket>, Endpoint)>,
}

impl Askers {
    /// Number of pending queries.
    pub(crate) fn len(&self) -> usize {
        self.tickets.len()
    }

    /// Adds a query of `port`, kept by `flow`.
    pub(crate) fn add(&mut self, port: Endpoint, flow: FlowId) -> Ticket {
        self.asked += 1;
        let ticket = Ticket(self.asked);
        self.tickets.insert(ticket, (port, flow));
        self.change(port, |tickets| tickets.insert(ticket));
        ticket
    }

    /// Removes a query.
    pub(crate) fn remove(&mut self, ticket: Ticket) {
        if let Some((port, _)) = self.tickets.remove(&ticket) {
            self.change(port, |tickets| tickets.remove(&ticket));
        }
    }

    /// The query that yields first, and the flow that keeps it.
    pub(crate) fn first_to_go(&self) -> Option<(Ticket, FlowId)> {
        let (_, Reverse(ticket), _) = self.ranking.last()?;
        Some((*ticket, self.tickets.get(ticket)?.1))
    }

    fn change(&mut self, port: Endpoint, change: impl FnOnce(&mut BTreeSet<Ticket>) -> bool) {
        let tickets = self.ports.entry(port).or_default();
        let place = |tickets: &BTreeSet<Ticket>| {
            tickets.first().map(|&oldest| (tickets.len(), Reverse(oldest), port))
        };
        if let Some(before) = place(tickets) {
            self.ranking.remove(&before);
        }
        let changed = change(tickets);
        debug_assert!(changed, "a ticket is added once and removed once");
        match place(tickets) {
            Some(now) => _ = self.ranking.insert(now),
            None => _ = self.ports.remove(&port),
        }
        debug_assert_eq!(self.ranking.len(), self.ports.len(), "each port has one place");
    }
}

#[cfg(test)]
mod tests;
