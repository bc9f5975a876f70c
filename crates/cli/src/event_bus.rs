//! The event bus of the warden: events of the engine and notices of its own, to the flow log, clients of the
//! control socket and the log.
//!
//! Each reader has a [`Mailbox`] and is woken by it. Without a subscriber nothing is kept for clients.

use crate::learnt_policy::learner::Learner;
use crate::log;
use crate::mailbox::Mailbox;
use crate::policy_fail::Unlisted;
use crate::timestamp::Timestamp;
use brodo_control::event::{Event, Level};
use brodo_net::clock::Clock;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Queue of events for one reader.
pub(crate) type Events = Mailbox<Arc<Event>>;

/// Readers of events that keep what they need at once.
#[derive(Debug, Clone, Default)]
pub(crate) struct Watches {
    /// For `--policy-fail`.
    pub(crate) unlisted: Option<Arc<Unlisted>>,
    /// For `--learn`.
    pub(crate) learner: Option<Arc<Learner>>,
}

impl Watches {
    fn see(&self, event: &Event) {
        match (event, &self.unlisted, &self.learner) {
            (Event::Decision { decision }, Some(unlisted), _) => unlisted.note(decision),
            (Event::DecisionsLost { count }, Some(unlisted), _) => unlisted.note_lost(*count),
            (Event::FlowEnded { flow }, _, Some(learner)) => learner.add(flow),
            _ => {}
        }
    }
}

/// Publishes events to their readers.
#[derive(Debug)]
pub(crate) struct EventBus {
    clock: Clock,
    /// For the flow log, if there is one.
    log: Option<Arc<Events>>,
    /// For the audit log, if there is one.
    audit: Option<Arc<Events>>,
    watches: Watches,
    /// For clients of the control socket, if it is served.
    clients: Option<Arc<Events>>,
    /// Whether a client has subscribed.
    subscribed: AtomicBool,
    /// Decisions that are missing in the audit log.
    audit_lost: AtomicU64,
}

impl EventBus {
    /// A bus without readers.
    pub(crate) fn new(clock: Clock) -> Self {
        let (watches, subscribed, audit_lost) = Default::default();
        Self { clock, log: None, audit: None, watches, clients: None, subscribed, audit_lost }
    }

    /// Adds a flow log.
    pub(crate) fn with_log(mut self, log: Option<Arc<Events>>) -> Self {
        self.log = log;
        self
    }

    /// Adds an audit log.
    pub(crate) fn with_audit(mut self, audit: Option<Arc<Events>>) -> Self {
        self.audit = audit;
        self
    }

    /// Goes on with the number of decisions that are missing in the audit log.
    pub(crate) fn with_audit_lost(self, count: u64) -> Self {
        self.count_audit_lost(count);
        self
    }

    /// Adds watches.
    pub(crate) fn with_watches(mut self, watches: Watches) -> Self {
        self.watches = watches;
        self
    }

    /// Adds clients.
    pub(crate) fn with_clients(mut self, clients: Option<Arc<Events>>) -> Self {
        self.clients = clients;
        self
    }

    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    /// The learner of a policy, if there is one.
    pub(crate) fn learner(&self) -> Option<&Learner> {
        self.watches.learner.as_deref()
    }

    /// Counts decisions that are missing in the audit log.
    pub(crate) fn count_audit_lost(&self, count: u64) {
        self.audit_lost.fetch_add(count, Ordering::Relaxed);
    }

    /// Their number; `None` without an audit log.
    pub(crate) fn audit_lost(&self) -> Option<u64> {
        self.audit.as_ref().map(|_| self.audit_lost.load(Ordering::Relaxed))
    }

    /// Whether a reader needs ended flows, without regard to clients.
    pub(crate) fn needs_ends(&self) -> bool {
        self.log.is_some() || self.watches.learner.is_some()
    }

    /// Sets whether a client has a subscription.
    pub(crate) fn set_subscribed(&self, subscribed: bool) {
        self.subscribed.store(subscribed, Ordering::Relaxed);
    }

    /// Publishes an event of the engine. A notice also goes to the log.
    pub(crate) fn publish(&self, event: Event) {
        if let Event::Notice { level, text, .. } = &event {
            log::say(*level, text, &[]);
        }
        self.watches.see(&event);
        let event = Arc::new(event);
        if let Some(log) = self.log.as_ref().filter(|_| matches!(*event, Event::FlowEnded { .. })) {
            log.put(event.clone(), 1);
        }
        if let Some((audit, decisions)) = self.audit.as_ref().zip(decisions(&event)) {
            audit.put_records(event.clone(), 1, decisions);
        }
        self.publish_to_clients(event);
    }

    /// Publishes that so many flows are missing which began, and which ended; the flow log has the latter.
    pub(crate) fn publish_lost(&self, openings: u64, ends: u64) {
        if let Some(log) = self.log.as_ref().filter(|_| ends > 0) {
            log.put_records(Arc::new(Event::Lost { count: ends }), 1, ends);
        }
        self.publish_to_clients(Arc::new(Event::Lost { count: openings.saturating_add(ends) }));
    }

    fn publish_to_clients(&self, event: Arc<Event>) {
        let Some(clients) = self.clients.as_ref().filter(|_| self.subscribed.load(Ordering::Relaxed)) else {
            return;
        };
        let events = match *event {
            Event::Lost { count } | Event::DecisionsLost { count } => count,
            _ => 1,
        };
        clients.put_records(event, 1, events);
    }

    /// Publishes a message, without a line end: to the log, and to clients that have subscribed to notices.
    pub(crate) fn notify(&self, level: Level, text: &str) {
        self.publish(notice(self.clock, level, text));
    }
}

/// Decisions that a line of the audit log stands for, each of which counts if the line is lost; `None` for
/// events that it does not have. A change of the policy is one.
pub(crate) fn decisions(event: &Event) -> Option<u64> {
    match event {
        Event::Decision { decision } => Some(decision.count),
        Event::DecisionsLost { count } => Some(*count),
        Event::PolicyChanged { .. } => Some(1),
        _ => None,
    }
}

/// A notice of this moment.
pub(crate) fn notice(clock: Clock, level: Level, text: &str) -> Event {
    let time = Timestamp(clock.date_ns(clock.now())).to_string();
    Event::Notice { time, level, text: text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mailbox::Taken;

    #[test]
    fn without_a_subscriber_nothing_is_kept() {
        let clients = Arc::new(Mailbox::with_waker().unwrap());
        let bus = EventBus::new(Clock::start()).with_clients(Some(clients.clone()));
        bus.notify(Level::Info, "unheard");
        bus.set_subscribed(true);
        bus.notify(Level::Info, "heard");
        let Taken { items, lost, .. } = clients.take();
        assert_eq!((items.len(), lost), (1, 0));
        assert!(matches!(&*items[0], Event::Notice { text, .. } if text == "heard"));
        assert_eq!(clients.take().items.len(), 0);
    }

    #[test]
    fn the_flow_log_gets_ended_flows_and_the_number_of_those_lost() {
        let log = Arc::new(Mailbox::new());
        let bus = EventBus::new(Clock::start()).with_log(Some(log.clone()));
        bus.notify(Level::Debug, "not for the log");
        bus.publish_lost(5, 0);
        bus.publish_lost(4, 3);
        assert_eq!(counts(&log.take()), [3]);
    }

    /// Counts of all that is missing by the items.
    fn counts(taken: &Taken<Arc<Event>>) -> Vec<u64> {
        let count = |event: &Arc<Event>| match **event {
            Event::Lost { count } => Some(count),
            _ => None,
        };
        taken.items.iter().filter_map(count).collect()
    }

    #[test]
    fn a_number_without_room_is_added_to_what_is_lost() {
        let (log, clients) = (Arc::new(Mailbox::new()), Arc::new(Mailbox::with_waker().unwrap()));
        let bus =
            EventBus::new(Clock::start()).with_log(Some(log.clone())).with_clients(Some(clients.clone()));
        bus.set_subscribed(true);
        for mailbox in [&log, &clients] {
            for _ in 0..crate::mailbox::MAILBOX_MAX {
                mailbox.put(Arc::new(notice(bus.clock(), Level::Info, "")), 1);
            }
        }
        bus.publish_lost(1000, 5000);
        bus.publish(Event::DecisionsLost { count: 70 });
        assert_eq!((log.take().lost, clients.take().lost), (5000, 6070));
    }
}
