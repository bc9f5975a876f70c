//! `--policy-fail`: refusals of what no rule is about, kept until the end, where they are listed and decide
//! brodo's exit status.
//!
//! The refusals of a deny rule do not count: its author knows of them. Nor do those of the limits on flows
//! (`--max-flows` and the like), which refuse what the rules allow. Those of the floor do, and so does
//! every doubt: decisions for which there was no room, and those that an engine had not yet reported when it
//! crashed. Under a policy that only observes, it is what would have been refused.

use crate::log;
use crate::suggested_rule;
use brodo_control::policy::{Decision, Ruling, Stage, subject};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Exit status, if the option has no other: none that a shell, timeout(1), xargs(1) or curl(1) has a meaning
/// for.
pub(crate) const STATUS: &str = "122";

/// Most distinct refusals that are kept.
const REFUSALS_MAX: usize = 1024;

/// Most bytes of the texts of one: a name has up to 1,012 with its escapes (RFC 1035, 5.1), and each of four
/// pins 253.
const TEXT_MAX: usize = 4096;

/// A refusal without its number.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Refused {
    stage: Stage,
    /// The policy only observes.
    passed: bool,
    reason: String,
    protocol: Option<String>,
    remote: Option<SocketAddr>,
    name: Option<String>,
    /// Names for which DNS had given the guest the destination.
    #[serde(default)]
    pinned: Vec<String>,
}

/// Refusals, and doubts, in a form for the next program.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedUnlisted {
    refused: Vec<(Refused, u64)>,
    more: u64,
    lost: u64,
}

#[derive(Debug, Default)]
struct Noted {
    refused: BTreeMap<Refused, u64>,
    /// Refusals beyond the bounds.
    more: u64,
    /// Decisions that were not kept.
    lost: u64,
}

/// Refusals of what no rule is about.
#[derive(Debug)]
pub(crate) struct Unlisted {
    noted: Mutex<Noted>,
    /// Exit status if there are any.
    status: u8,
}

impl Unlisted {
    /// None yet; with one, the exit status will be `status`.
    pub(crate) fn new(status: u8) -> Self {
        Self { noted: Mutex::default(), status }
    }

    /// Those of another program of this process.
    pub(crate) fn resume(status: u8, saved: SavedUnlisted) -> Self {
        let SavedUnlisted { refused, more, lost } = saved;
        let noted = Noted { refused: refused.into_iter().collect(), more, lost };
        Self { noted: Mutex::new(noted), status }
    }

    /// A form for the next program.
    pub(crate) fn save(&self) -> SavedUnlisted {
        let Noted { refused, more, lost } = &*self.noted();
        let refused = refused.iter().map(|(refused, count)| (refused.clone(), *count)).collect();
        SavedUnlisted { refused, more: *more, lost: *lost }
    }

    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a decision, if it counts.
    pub(crate) fn note(&self, decision: &Decision) {
        let Decision { stage, verdict, reason, protocol, remote, name, pinned, count, .. } = decision;
        // An open flow was allowed when the guest began it, and a peer's is not the guest's doing.
        let ended_or_inbound = matches!(stage, Stage::End | Stage::Inbound);
        let is_listed = ["deny ", "max-"].into_iter().any(|begin| reason.starts_with(begin));
        if *verdict == Ruling::Allow || ended_or_inbound || is_listed {
            return;
        }
        let refused = Refused {
            stage: *stage,
            passed: *verdict == Ruling::WouldDeny,
            reason: reason.clone(),
            protocol: protocol.clone(),
            remote: *remote,
            name: name.clone(),
            pinned: pinned.clone(),
        };
        let mut noted = self.noted();
        let has_room = || refused.size() <= TEXT_MAX && noted.refused.len() < REFUSALS_MAX;
        if has_room() || noted.refused.contains_key(&refused) {
            *noted.refused.entry(refused).or_default() += count;
        } else {
            noted.more += count;
        }
    }

    /// Notes that so many decisions are unknown.
    pub(crate) fn note_lost(&self, count: u64) {
        self.noted().lost += count;
    }

    /// Lists the refusals of an instance whose engine has crashed so often; the exit status in the place of
    /// `status`.
    pub(crate) fn status(&self, status: u8, crashes: u32) -> u8 {
        let noted = self.noted();
        for (refused, count) in &noted.refused {
            log::finding(&refused.sentence(), &refused.fields(*count));
        }
        let doubts = [
            (noted.more, "further refusals are not listed"),
            (noted.lost, "decisions of the policy are unknown: they came too fast"),
            (crashes.into(), "crashes of the engine: what it refused in its last second is unknown"),
        ];
        let doubts: Vec<_> = doubts.into_iter().filter(|(count, _)| *count > 0).collect();
        for (count, what) in &doubts {
            log::finding(&format!("{count} {what}"), &[]);
        }
        if noted.refused.is_empty() && doubts.is_empty() {
            return status;
        }
        let why = "the guest wanted more than its policy lists";
        log::finding(&format!("{why}: exit status {} instead of {status}", self.status), &[]);
        self.status
    }
}

impl Refused {
    /// Bytes of its texts, which are an engine's, and of what holds those of a list.
    fn size(&self) -> usize {
        let single = [Some(&self.reason), self.protocol.as_ref(), self.name.as_ref()];
        let single: usize = single.into_iter().flatten().map(String::len).sum();
        let pinned = self.pinned.iter().map(|name| size_of::<String>() + name.len());
        single + pinned.sum::<usize>()
    }

    fn sentence(&self) -> String {
        let verb = if self.passed { "the policy would refuse" } else { "the policy has refused" };
        let stage = if self.stage == Stage::Question { " question" } else { "" };
        format!("{verb}{stage} {}", subject(self.protocol.as_deref(), self.remote, self.name.as_deref()))
    }

    fn fields(&self, count: u64) -> Vec<(&'static str, serde_json::Value)> {
        let (protocol, name) = (self.protocol.as_deref(), self.name.as_deref());
        let (reason, pinned) = (&self.reason, &self.pinned);
        let allow = suggested_rule::for_given(self.stage, reason, protocol, self.remote, name, pinned);
        let reason = ("reason", self.reason.clone().into());
        let known = [("count", count.into()), reason];
        known.into_iter().chain(allow.map(|rule| ("allow", rule.into()))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(verdict: Ruling, reason: &str, name: &str) -> Decision {
        Decision {
            time: "2026-11-21T18:42:31Z".to_owned(),
            generation: 1,
            guest: None,
            pinned: Vec::new(),
            stage: Stage::Question,
            verdict,
            reason: reason.to_owned(),
            rule: None,
            protocol: None,
            remote: None,
            name: Some(name.to_owned()),
            name_from: None,
            qtype: None,
            ech: false,
            count: 2,
        }
    }

    #[test]
    fn refusals_that_no_rule_is_about_decide_the_exit_status() {
        let unlisted = Unlisted::new(9);
        unlisted.note(&decision(Ruling::Allow, "allow a.example", "a.example"));
        unlisted.note(&decision(Ruling::Deny, "deny b.example", "b.example"));
        unlisted.note(&Decision { stage: Stage::Open, ..decision(Ruling::Deny, "max-flows", "b.example") });
        assert_eq!(unlisted.status(0, 0), 0);
        for verdict in [Ruling::Deny, Ruling::WouldDeny] {
            let unlisted = Unlisted::new(9);
            unlisted.note(&decision(verdict, "policy question", "c.example"));
            assert_eq!((unlisted.status(0, 0), unlisted.status(1, 0)), (9, 9));
            let resumed = Unlisted::resume(7, unlisted.save());
            assert_eq!((resumed.status(0, 0), resumed.save()), (7, unlisted.save()));
        }
    }

    #[test]
    fn a_doubt_is_a_refusal() {
        assert_eq!(Unlisted::new(9).status(0, 1), 9);
        let unlisted = Unlisted::new(9);
        unlisted.note_lost(1);
        assert_eq!(unlisted.status(0, 0), 9);
    }

    #[test]
    fn refusals_are_bounded_and_counted() {
        let unlisted = Unlisted::new(9);
        for n in 0..REFUSALS_MAX + 3 {
            unlisted.note(&decision(Ruling::Deny, "policy question", &n.to_string()));
        }
        let saved = unlisted.save();
        assert_eq!((saved.refused.len(), saved.more), (REFUSALS_MAX, 6));
    }

    #[test]
    fn refusals_with_long_texts_are_counted_alone() {
        let unlisted = Unlisted::new(9);
        let pinned = vec![String::new(); TEXT_MAX];
        for long in [
            decision(Ruling::Deny, "policy question", &"x".repeat(TEXT_MAX)),
            decision(Ruling::Deny, &"x".repeat(TEXT_MAX), "a.example"),
            Decision { pinned, ..decision(Ruling::Deny, "policy question", "a.example") },
        ] {
            unlisted.note(&long);
        }
        let saved = unlisted.save();
        assert_eq!((saved.refused.len(), saved.more), (0, 6));
        assert_eq!(unlisted.status(0, 0), 9);
    }

    #[test]
    fn a_refusal_has_the_rule_that_would_allow_it() {
        let refused = Refused {
            stage: Stage::Open,
            passed: true,
            reason: "policy default".to_owned(),
            protocol: Some("tcp".to_owned()),
            remote: Some("192.0.2.1:22".parse().expect("an address")),
            name: None,
            pinned: Vec::new(),
        };
        assert_eq!(refused.sentence(), "the policy would refuse tcp 192.0.2.1:22");
        let fields = refused.fields(3);
        assert_eq!(fields.last(), Some(&("allow", "tcp://192.0.2.1:22".into())));
        let named = Refused { pinned: vec!["git.example".to_owned()], ..refused.clone() };
        assert_eq!(named.fields(3).last(), Some(&("allow", "tcp://git.example:22".into())));
        let floor = Refused { reason: "floor link-local".to_owned(), ..refused };
        assert_eq!(floor.fields(1).len(), 2);
    }
}
