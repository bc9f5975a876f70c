//! Pins: the addresses that DNS has given the guest for names that a rule names ([`Ruleset::is_pinned`]), one
//! table for all workers.
//!
//! A pin is made before the answer goes to the guest, under the name that was *asked*, and looked at when a
//! flow opens and when a gate reads a name; the data path does not come here. It is good for the answer's TTL
//! and for the policy's least time, whichever is longer, since programs keep addresses longer than they
//! should. While a flow to its address is open a pin neither expires nor makes room, and it stays five
//! minutes after the last of them. A flow that opens after its time, by another rule, does not bring it back.
//!
//! *Bounds.* Names, pins, pins of a name, of an address, and the share of one rule. Beyond them room is made
//! by the soonest expiry within the bound that was met: a guest that fills a wildcard's share loses pins of
//! that wildcard. If everything within a bound is in use, the answer is refused ([`Full`]): better than an
//! address that is refused afterwards.

mod saved;

use super::domain_name::DomainName;
use super::port_table::RuleNumber;
use super::ruleset::{Matches, Ruleset};
use crate::time::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Most names with pins.
pub(crate) const NAMES_MAX: usize = 4096;
/// Most pins.
pub(crate) const PINS_MAX: usize = 16_384;
/// Most addresses of one name.
pub(crate) const PER_NAME_MAX: usize = 256;
/// Most names of one address.
pub(crate) const PER_ADDRESS_MAX: usize = 64;
/// Most pins and names of one rule: half of the table.
const PER_RULE_MAX: usize = PINS_MAX / 2;
const NAMES_PER_RULE_MAX: usize = NAMES_MAX / 2;
/// Time for which a pin outlives the last flow to its address.
const AFTER_USE: Duration = Duration::from_secs(300);

/// Every pin within a bound is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full;

/// Number of a name with pins.
type NameId = u32;

/// A name, with the rules that fit it.
#[derive(Debug)]
struct Named {
    name: DomainName,
    matches: Matches,
    addresses: BTreeSet<IpAddr>,
}

impl Named {
    /// The rule to whose share its pins belong; names that are only denied have one share.
    fn rule(&self) -> RuleNumber {
        self.matches.rule.unwrap_or(RuleNumber::MAX)
    }
}

/// One address.
#[derive(Debug, Default)]
struct Pinned {
    /// Names, each with the time until which the pin is good; none if a change of policy has taken the last
    /// while a flow was open.
    names: BTreeMap<NameId, Instant>,
    /// Open flows.
    flows: u32,
}

/// Pins and names of one rule.
#[derive(Debug, Clone, Copy, Default)]
struct Share {
    count: usize,
    names: usize,
}

/// Place of a pin in the order of expiry.
type Expiry = (Instant, NameId, IpAddr);

/// The table.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    names: BTreeMap<NameId, Named>,
    ids: BTreeMap<DomainName, NameId>,
    next: NameId,
    addresses: BTreeMap<IpAddr, Pinned>,
    count: usize,
    /// Pins that may expire, without those in use; the same by rule.
    expiry: BTreeSet<Expiry>,
    by_rule: BTreeSet<(RuleNumber, Expiry)>,
    shares: BTreeMap<RuleNumber, Share>,
    /// Pins that made room since the start.
    pub(crate) evicted: u64,
}

impl Pins {
    /// Number of pins.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Pins an address to a name until `until`; a pin that is good for longer stays so.
    ///
    /// # Errors
    /// [`Full`] if all pins that could make room are in use.
    pub(crate) fn pin(
        &mut self,
        now: Instant,
        name: &DomainName,
        matches: &Matches,
        address: IpAddr,
        until: Instant,
    ) -> Result<(), Full> {
        self.expire(now);
        let made = self.pin_to(name, matches, address, until);
        made.or_else(|full| self.pin_to_its_like(matches, address, until).ok_or(full))
    }

    /// Lengthens the pin of another name that is denied by the same rules, and allowed by none: the address
    /// is judged as if it were this one's too.
    fn pin_to_its_like(&mut self, matches: &Matches, address: IpAddr, until: Instant) -> Option<()> {
        let is_like = |id: &NameId| self.names.get(id).is_some_and(|named| named.matches == *matches);
        let names = &self.addresses.get(&address).filter(|_| matches.rule.is_none())?.names;
        let (&id, &before) = names.iter().filter(|(id, _)| is_like(id)).max_by_key(|(_, until)| **until)?;
        if until > before {
            self.renew(id, address, until);
        }
        Some(())
    }

    fn pin_to(
        &mut self,
        name: &DomainName,
        matches: &Matches,
        address: IpAddr,
        until: Instant,
    ) -> Result<(), Full> {
        let id = self.name(name, matches)?;
        let known = self.addresses.get(&address).and_then(|pinned| pinned.names.get(&id).copied());
        if let Some(before) = known {
            if until > before {
                self.renew(id, address, until);
            }
            return Ok(());
        }
        let made = self.make_room(id, address);
        if made.is_err() {
            self.drop_if_bare(id);
            return made;
        }
        // The name may have had one pin, which has made room.
        let id = self.name(name, matches)?;
        self.insert(id, address, until);
        debug_assert!(self.count <= PINS_MAX && self.names.len() <= NAMES_MAX, "the table is bounded");
        Ok(())
    }

    /// The names for which DNS gave the guest an address, as rules that fit them.
    pub(crate) fn names_of(&self, address: IpAddr, now: Instant) -> impl Iterator<Item = &Matches> + Clone {
        self.named(address, now).map(|named| &named.matches)
    }

    fn named(&self, address: IpAddr, now: Instant) -> impl Iterator<Item = &Named> + Clone {
        let pinned = self.addresses.get(&address);
        pinned.into_iter().flat_map(move |pinned| {
            let good = move |until: &Instant| *until > now || pinned.flows > 0;
            pinned.names.iter().filter(move |(_, until)| good(until)).filter_map(|(id, _)| self.names.get(id))
        })
    }

    /// Their texts, at most `most`.
    pub(crate) fn texts_of(&self, address: IpAddr, now: Instant, most: usize) -> Vec<Box<str>> {
        self.named(address, now).take(most).map(|named| named.name.as_str().into()).collect()
    }

    /// Whether `address` is pinned to `name`.
    pub(crate) fn is_pinned_as(&self, name: &DomainName, address: IpAddr, now: Instant) -> bool {
        self.named(address, now).any(|named| named.name == *name)
    }

    /// Whether an address is pinned.
    pub(crate) fn has(&self, address: IpAddr, now: Instant) -> bool {
        self.named(address, now).next().is_some()
    }

    /// Whether a name has pins.
    pub(crate) fn has_name(&self, name: &DomainName) -> bool {
        self.ids.contains_key(name)
    }

    /// A flow to an address has opened. True if it is pinned, and the end of the flow is to be reported. One
    /// whose time is over is no pin: another rule has opened the flow.
    pub(crate) fn flow_opened(&mut self, now: Instant, address: IpAddr) -> bool {
        self.expire(now);
        let is_pinned = self.addresses.contains_key(&address);
        if is_pinned {
            self.hold(address, 1);
        }
        is_pinned
    }

    /// Counts open flows to an address, whose pins are in use then.
    fn hold(&mut self, address: IpAddr, flows: u32) {
        let pinned = self.addresses.entry(address).or_default();
        let were_free = pinned.flows == 0;
        pinned.flows += flows;
        if were_free {
            let pins: Vec<_> = pinned.names.iter().map(|(&id, &until)| (until, id, address)).collect();
            for pin in pins {
                self.unlist(pin);
            }
        }
    }

    /// A flow to an address has ended that was reported as opened.
    pub(crate) fn flow_closed(&mut self, now: Instant, address: IpAddr) {
        let Some(pinned) = self.addresses.get_mut(&address).filter(|pinned| pinned.flows > 0) else { return };
        pinned.flows -= 1;
        if pinned.flows == 0 {
            // A change of policy may have taken the last name.
            if pinned.names.is_empty() {
                self.addresses.remove(&address);
                return;
            }
            for until in pinned.names.values_mut() {
                *until = (*until).max(now + AFTER_USE);
            }
            let pins: Vec<_> = pinned.names.iter().map(|(&id, &until)| (until, id, address)).collect();
            for pin in pins {
                self.list(pin);
            }
        }
    }

    /// Takes the rules of a new policy: names that none names any more lose their pins. The count of open
    /// flows stays, also with an address that keeps no name: their ends will be reported, and it may have
    /// names again before.
    pub(crate) fn follow(&mut self, rules: &Ruleset) {
        let old = std::mem::take(self);
        self.evicted = old.evicted;
        for (address, pinned) in old.addresses {
            for (id, until) in &pinned.names {
                let Some(named) = old.names.get(id) else { continue };
                let matches = rules.matches(&named.name);
                if rules.is_pinned(&matches) {
                    // There was room for more.
                    let kept = self.pin(Instant::ZERO, &named.name, &matches, address, *until);
                    debug_assert_eq!(kept, Ok(()), "a part of a table fits into it, rules permitting");
                }
            }
            if pinned.flows > 0 {
                self.hold(address, pinned.flows);
            }
        }
    }

    /// Removes pins whose time is over.
    fn expire(&mut self, now: Instant) {
        while let Some(&pin) = self.expiry.first()
            && pin.0 <= now
        {
            self.remove_listed(pin);
        }
    }

    /// Removes a pin that is listed. Its place in the list goes first, whatever the table says: a caller that
    /// takes the first of the list again and again comes to an end.
    fn remove_listed(&mut self, pin: Expiry) {
        let (until, id, address) = pin;
        self.unlist(pin);
        let pinned = self.addresses.get(&address);
        if pinned.is_some_and(|pinned| pinned.flows == 0 && pinned.names.get(&id) == Some(&until)) {
            self.remove(id, address);
        }
    }

    /// The number of a name, given if it has none.
    fn name(&mut self, name: &DomainName, matches: &Matches) -> Result<NameId, Full> {
        if let Some(&id) = self.ids.get(name) {
            return Ok(id);
        }
        let rule = matches.rule.unwrap_or(RuleNumber::MAX);
        while self.share(rule).names >= NAMES_PER_RULE_MAX {
            self.evict_of_rule(rule)?;
        }
        while self.names.len() >= NAMES_MAX {
            self.evict(self.expiry.first().copied())?;
        }
        let id = self.next;
        self.next = self.next.wrapping_add(1);
        self.ids.insert(name.clone(), id);
        let named = Named { name: name.clone(), matches: matches.clone(), addresses: BTreeSet::new() };
        self.names.insert(id, named);
        self.shares.entry(rule).or_default().names += 1;
        Ok(id)
    }

    fn share(&self, rule: RuleNumber) -> Share {
        self.shares.get(&rule).copied().unwrap_or_default()
    }

    /// Makes room for one more pin of name `id` at `address`.
    fn make_room(&mut self, id: NameId, address: IpAddr) -> Result<(), Full> {
        let in_use = |pins: &Self, ip: &IpAddr| pins.addresses.get(ip).is_some_and(|pinned| pinned.flows > 0);
        if let Some(named) = self.names.get(&id)
            && named.addresses.len() >= PER_NAME_MAX
        {
            let free = named.addresses.iter().filter(|ip| !in_use(self, ip));
            let until = |ip: &IpAddr| self.addresses.get(ip)?.names.get(&id).copied();
            self.evict(free.filter_map(|ip| Some((until(ip)?, id, *ip))).min())?;
        }
        if let Some(pinned) = self.addresses.get(&address)
            && pinned.names.len() >= PER_ADDRESS_MAX
        {
            let pins = pinned.names.iter().map(|(&id, &until)| (until, id, address));
            self.evict(pins.min().filter(|_| pinned.flows == 0))?;
        }
        if let Some(rule) = self.names.get(&id).map(Named::rule)
            && self.share(rule).count >= PER_RULE_MAX
        {
            self.evict_of_rule(rule)?;
        }
        if self.count >= PINS_MAX {
            self.evict(self.expiry.first().copied())?;
        }
        Ok(())
    }

    fn evict_of_rule(&mut self, rule: RuleNumber) -> Result<(), Full> {
        let from = (rule, (Instant::ZERO, 0, IpAddr::from([0; 4])));
        let first = self.by_rule.range(from..).next().filter(|(of, _)| *of == rule);
        self.evict(first.map(|(_, pin)| *pin))
    }

    fn evict(&mut self, pin: Option<Expiry>) -> Result<(), Full> {
        let pin = pin.ok_or(Full)?;
        self.evicted += 1;
        self.remove_listed(pin);
        Ok(())
    }

    fn insert(&mut self, id: NameId, address: IpAddr, until: Instant) {
        let Some(named) = self.names.get_mut(&id) else { return };
        named.addresses.insert(address);
        let rule = named.rule();
        self.count += 1;
        self.shares.entry(rule).or_default().count += 1;
        let pinned = self.addresses.entry(address).or_default();
        pinned.names.insert(id, until);
        if pinned.flows == 0 {
            self.list((until, id, address));
        }
    }

    fn renew(&mut self, id: NameId, address: IpAddr, until: Instant) {
        let Some(pinned) = self.addresses.get_mut(&address) else { return };
        let used = pinned.flows > 0;
        if let Some(before) = pinned.names.insert(id, until)
            && !used
        {
            self.unlist((before, id, address));
            self.list((until, id, address));
        }
    }

    fn remove(&mut self, id: NameId, address: IpAddr) {
        let Some(pinned) = self.addresses.get_mut(&address) else { return };
        let Some(until) = pinned.names.remove(&id) else { return };
        debug_assert_eq!(pinned.flows, 0, "pins in use stay");
        if pinned.names.is_empty() {
            self.addresses.remove(&address);
        }
        self.unlist((until, id, address));
        self.count -= 1;
        if let Some(named) = self.names.get_mut(&id) {
            named.addresses.remove(&address);
            let rule = named.rule();
            self.shares.entry(rule).or_default().count -= 1;
        }
        self.drop_if_bare(id);
    }

    /// Removes a name without pins.
    fn drop_if_bare(&mut self, id: NameId) {
        let bare = self.names.get(&id).is_some_and(|named| named.addresses.is_empty());
        if bare && let Some(named) = self.names.remove(&id) {
            self.ids.remove(&named.name);
            let rule = named.rule();
            if let Some(share) = self.shares.get_mut(&rule) {
                share.names -= 1;
                if share.names == 0 {
                    self.shares.remove(&rule);
                }
            }
        }
    }

    fn list(&mut self, pin: Expiry) {
        let rule = self.names.get(&pin.1).map_or(RuleNumber::MAX, Named::rule);
        self.expiry.insert(pin);
        self.by_rule.insert((rule, pin));
    }

    fn unlist(&mut self, pin: Expiry) {
        let rule = self.names.get(&pin.1).map_or(RuleNumber::MAX, Named::rule);
        self.expiry.remove(&pin);
        self.by_rule.remove(&(rule, pin));
    }
}

#[cfg(test)]
mod tests;
