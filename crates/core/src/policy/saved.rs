//! The rules of a worker in a snapshot: counts, the rate limit, and what the shared policy keeps of pins,
//! usage and totals. Rules are settings, and open flows are counted as they are restored.

use super::domain_name::DomainName;
use super::{Policy, digest};
use crate::flow::FlowId;
use crate::snapshot::saved::{Saved, is_count};
use crate::snapshot::v1::{PinsV1, PolicyTotalsV1, PolicyV1, UsageV1, WildcardsV1};
use crate::time::Instant;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

impl Policy {
    /// Saved form: counts and rate limit. Rules are settings, and open flows are counted as they are
    /// restored.
    pub(crate) fn save(&self) -> PolicyV1<'_> {
        let Self { link_local: _, deny: _, host_addresses: _, router: _, new_flows, .. } = self;
        let Self { per_destination: _, destinations: _, counted: _, counts, before: _, .. } = self;
        let Self { shared: _, held: _, limited: _, by_text: _, .. } = self;
        let refused = counts.iter().filter(|(_, count)| *count > 0);
        PolicyV1 {
            refusals: refused.map(|(text, count)| (&**text, *count)).collect(),
            new_flows_full_at: new_flows.as_ref().map(|bucket| bucket.full_at().save()),
        }
    }

    /// Saved form of the shared policy's pins, if there is one: all of them, or those that flows of this
    /// worker hold, so that each worker can count its flows whichever is restored first.
    pub(crate) fn save_pins(&self, now: Instant, all: bool) -> Option<PinsV1> {
        let held: BTreeSet<IpAddr> = self.held.values().copied().collect();
        let shared = self.shared.as_ref()?;
        Some(shared.save_pins(now, |address| all || held.contains(&address)))
    }

    /// Takes the pins of a snapshot that are `wanted`, if there is a shared policy.
    pub(crate) fn restore_pins(
        &self,
        now: Instant,
        saved: &PinsV1,
        wanted: impl Fn(&DomainName, IpAddr) -> bool,
    ) {
        if let Some(shared) = &self.shared {
            shared.restore_pins(now, saved, wanted);
        }
    }

    /// Saved form of what is used of limits, if there is anything to tell: by flows that are over, from the
    /// `first` worker, and by those of this one that are `ending` with a hand-over. The others are counted
    /// anew.
    pub(crate) fn save_usage(&self, first: bool, ending: impl Iterator<Item = FlowId>) -> Option<UsageV1> {
        self.shared.as_ref()?.save_usage(first, &self.limited.charged(ending))
    }

    /// Takes the usage of a snapshot, if there is a shared policy.
    pub(crate) fn restore_usage(&self, saved: &UsageV1) {
        if let Some(shared) = &self.shared {
            shared.restore_usage(saved);
        }
    }

    /// Saved form of new names below the shared policy's wildcards, if there are any.
    pub(crate) fn save_wildcards(&self, now: Instant) -> Option<WildcardsV1> {
        self.shared.as_ref()?.save_wildcards(now)
    }

    /// Takes those of a snapshot, if there is a shared policy.
    pub(crate) fn restore_wildcards(&self, now: Instant, saved: WildcardsV1) {
        if let Some(shared) = &self.shared {
            shared.restore_wildcards(now, saved);
        }
    }

    /// Saved form of the shared policy's totals, if there are any.
    pub(crate) fn save_totals(&self) -> Option<PolicyTotalsV1> {
        self.shared.as_ref()?.save_totals()
    }

    /// Takes the totals of a snapshot, if there is a shared policy.
    pub(crate) fn restore_totals(&self, saved: &PolicyTotalsV1) {
        if let Some(shared) = &self.shared {
            shared.restore_totals(saved);
        }
    }

    /// Totals of the shared policy that go on after a crash, if there is one, with their digests.
    pub(crate) fn shared_totals(&self) -> Vec<(u64, u64)> {
        self.shared.as_ref().map(|shared| shared.totals()).unwrap_or_default()
    }

    /// Adds those that a process before had.
    pub(crate) fn add_shared_totals(&self, before: &BTreeMap<u64, u64>) {
        if let Some(shared) = &self.shared {
            shared.add_totals(before);
        }
    }

    /// Goes on with counts that another policy of the same program had, by the digests of their texts. Those
    /// of texts that no rule has now do when one has them. Of rules with the same text the first goes on.
    pub(crate) fn go_on_counting(&mut self, before: BTreeMap<u64, u64>) {
        self.before = before;
        for (text, count) in &mut self.counts {
            *count = self.before.remove(&digest(text)).unwrap_or(*count);
        }
        for text in self.shared.as_ref().map(|shared| shared.texts()).unwrap_or_default() {
            if self.before.contains_key(&digest(&text)) {
                self.place_of(&text);
            }
        }
    }

    /// Takes the counts of rules with the same texts, and the state of the rate limit.
    pub(crate) fn restore(&mut self, now: Instant, saved: &PolicyV1<'_>) {
        for (text, refusals) in saved.refusals.iter().filter(|(_, refusals)| is_count(*refusals)) {
            if let Some((_, count)) = self.counts.iter_mut().find(|(own, _)| **own == **text) {
                *count = *refusals;
            } else if let Some(known) = self.shared.as_ref().and_then(|shared| shared.known(text)) {
                let place = self.place_of(&known);
                self.counts[place].1 = *refusals;
            }
        }
        if let (Some(bucket), Some(at)) = (&mut self.new_flows, saved.new_flows_full_at) {
            bucket.restore(now, Instant::from_ns(at));
        }
    }
}
