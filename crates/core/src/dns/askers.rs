//! Fair shares of the pending questions: when there are as many as there may be, the oldest of the greediest
//! gives way.
//!
//! The one thing known of the programs of a guest is from which address and port they ask. So the greediest
//! is the port with the most questions that wait, among equals the one that has waited longest: a program
//! that leaves a thousand questions open loses its own, and of a program that opens a thousand ports the
//! oldest go first, most likely never to be answered.

use crate::flow::{Endpoint, FlowId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// One question of one asker, by the order in which they were asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

/// All questions that wait.
#[derive(Debug, Default)]
pub(crate) struct Askers {
    asked: u64,
    /// The port that asks each, and the flow that has it.
    tickets: BTreeMap<Ticket, (Endpoint, FlowId)>,
    ports: BTreeMap<Endpoint, BTreeSet<Ticket>>,
    /// Ports by how many questions they have, then by the oldest; the last is the greediest.
    ranking: BTreeSet<(usize, Reverse<Ticket>, Endpoint)>,
}

impl Askers {
    /// Questions that wait.
    pub(crate) fn len(&self) -> usize {
        self.tickets.len()
    }

    /// Adds a question of `port`, which `flow` has.
    pub(crate) fn add(&mut self, port: Endpoint, flow: FlowId) -> Ticket {
        self.asked += 1;
        let ticket = Ticket(self.asked);
        self.tickets.insert(ticket, (port, flow));
        self.change(port, |tickets| tickets.insert(ticket));
        ticket
    }

    /// Removes a question.
    pub(crate) fn remove(&mut self, ticket: Ticket) {
        if let Some((port, _)) = self.tickets.remove(&ticket) {
            self.change(port, |tickets| tickets.remove(&ticket));
        }
    }

    /// The question that gives way first, and the flow that has it.
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
