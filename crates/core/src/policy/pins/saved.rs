//! Pins in a snapshot: name, address and end of time of each. The rules that fit a name are those in force
//! where it is restored, so a name that none of them names any more has no pins.
//!
//! Bytes of a snapshot are not trusted. An address of the floor is not pinned, no time is longer than a DNS
//! answer could have made it, and the table's bounds hold.

use super::super::domain_name::DomainName;
use super::super::floor;
use super::super::ruleset::{PIN_MAX, Ruleset};
use super::{AFTER_USE, Pins};
use crate::snapshot::saved::Saved;
use crate::snapshot::v1::{PinV1, PinsV1};
use crate::time::Instant;
use std::net::IpAddr;

/// Time of a host entry, which is a setting.
const FOR_EVER: Instant = Instant::from_ns(u64::MAX);

impl Pins {
    /// Saved form of the pins of the addresses that `wanted` names, without those that are past their time
    /// and unused.
    pub(crate) fn save(&self, now: Instant, wanted: impl Fn(IpAddr) -> bool) -> PinsV1 {
        let addresses = self.addresses.iter().filter(|(address, _)| wanted(**address));
        let pins = addresses.flat_map(|(&address, pinned)| {
            let is_good = move |until: Instant| until > now || pinned.flows > 0;
            let saved = pinned.names.iter().filter(move |(_, until)| **until != FOR_EVER && is_good(**until));
            saved.filter_map(move |(id, until)| {
                let name = self.names.get(id)?.name.as_str().to_owned();
                Some(PinV1 { name, address, until: until.save() })
            })
        });
        PinsV1 { pins: pins.collect() }
    }

    /// Pins what was saved and is `wanted`, as far as `rules` name it and there is room. None of it expires
    /// before the flows are there that use it.
    pub(crate) fn restore(
        &mut self,
        now: Instant,
        rules: &Ruleset,
        saved: &PinsV1,
        wanted: impl Fn(&DomainName, IpAddr) -> bool,
    ) {
        for PinV1 { name, address, until } in &saved.pins {
            let Some(name) = DomainName::parse(name.as_bytes()) else { continue };
            let (matches, until) = (rules.matches(&name), Instant::from_ns(*until));
            if rules.is_pinned(&matches)
                && wanted(&name, *address)
                && floor::forbids(*address, false).is_none()
            {
                let until = until.min(now + PIN_MAX + AFTER_USE);
                // Beyond the bounds there is room for none of a snapshot that this table has made.
                let _ = self.pin(Instant::ZERO, &name, &matches, *address, until);
            }
        }
    }
}
