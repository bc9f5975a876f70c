//! Names over a hand-over: the addresses that DNS gave for them, and how many were new below each wildcard.

use super::{DomainName, SharedPolicy, State};
use crate::snapshot::v1::{PinsV1, WildcardsV1};
use crate::time::Instant;
use std::collections::BTreeSet;
use std::net::IpAddr;

impl SharedPolicy {
    /// Saved form of the pins of the addresses that `wanted` names.
    pub(crate) fn save_pins(&self, now: Instant, wanted: impl Fn(IpAddr) -> bool) -> PinsV1 {
        self.state().pins.save(now, wanted)
    }

    /// Pins what was saved and is `wanted`, as far as the rules in force name it.
    pub(crate) fn restore_pins(
        &self,
        now: Instant,
        saved: &PinsV1,
        wanted: impl Fn(&DomainName, IpAddr) -> bool,
    ) {
        let mut state = self.state();
        let State { rules, pins, .. } = &mut *state;
        pins.restore(now, rules, saved, wanted);
    }

    /// Saved form of the numbers of new names, if there are any.
    pub(crate) fn save_wildcards(&self, now: Instant) -> Option<WildcardsV1> {
        Some(self.state().wildcards.save(now)).filter(|saved| !saved.rules.is_empty())
    }

    /// Takes what was saved of the rules in force.
    pub(crate) fn restore_wildcards(&self, now: Instant, saved: WildcardsV1) {
        let mut state = self.state();
        let State { rules, wildcards, .. } = &mut *state;
        let known: BTreeSet<&str> = rules.source().allow.iter().map(|allow| &*allow.rule.text).collect();
        wildcards.restore(now, saved, |text| known.contains(text));
    }
}
