//! The policy in force, changed at run time: all workers' rules at once, then open flows, a part at a time.

use super::review::Review;
use crate::conversation::message::{Done, Enforced, PolicyUsage};
use crate::conversation::policy::InForce;
use crate::failure::Failure;
use crate::suggested_rule;
use crate::timestamp::Timestamp;
use brodo_control::event::Event;
use brodo_control::policy::{
    LimitedRules, NameSource, Question, Questions, Refusal, Refusals, RefuseAsked, Ruling, Stage,
};
use brodo_control::rpc::{Error, code};
use brodo_core::flow::Protocol;
use brodo_core::policy::{
    self, Asked, Audited, Counted, Decision, Kept, Occasion, Particulars, SharedPolicy, Trailed, Used,
};
use brodo_core::time::Instant;
use brodo_net::clock::Clock;
use brodo_net::workers::Workers;
use rustix::fd::OwnedFd;
use std::fs::File;
use std::io;

/// Names of an address that are looked up for a suggested rule, which is by name if there is one alone.
const GIVEN_MAX: usize = 2;

/// Puts the policy in `file` in force.
///
/// # Errors
/// It is none.
pub(super) fn set(policy: &SharedPolicy, now: Instant, file: OwnedFd) -> Result<(), Failure> {
    let failed = || Failure::io("read the policy in force: read");
    let InForce { rules, lockdown, generation } = InForce::from_file(File::from(file)).map_err(failed())?;
    let rules = rules.compile().map_err(io::Error::other).map_err(failed())?;
    policy.set_numbered(now, rules, lockdown, generation);
    Ok(())
}

/// The same at run time: open flows that it refuses have ended when this returns.
///
/// # Errors
/// It is none. A worker does not reply: some of its flows are left in `review`.
pub(super) fn enforce(
    workers: &Workers,
    policy: Option<&SharedPolicy>,
    review: &mut Review,
    now: Instant,
    wanted: Enforced,
    file: Option<OwnedFd>,
) -> Result<Done, Error> {
    let failed = |why: String| Error::new(code::FAILED, why);
    let policy = policy.ok_or_else(|| failed("there is no policy".to_owned()))?;
    let file = file.ok_or_else(|| failed("a policy needs a file".to_owned()))?;
    set(policy, now, file).map_err(|failure| failed(failure.to_string()))?;
    if wanted.review {
        *review = Review::of_all(workers);
        review.go_on(workers)?;
    }
    Ok(Done {})
}

/// The last refusals, all that are kept or so many.
pub(super) fn explain(policy: Option<&SharedPolicy>, now: Instant, last: Option<usize>) -> Refusals {
    let Some(policy) = policy else { return Refusals::default() };
    let refusal = |counted| refusal(policy, now, counted);
    if let Some(most) = last {
        let decisions = policy.last_refusals(most);
        return Refusals { refusals: decisions.into_iter().rev().map(refusal).collect(), forgotten: 0 };
    }
    let Kept { decisions, left_out } = policy.refusals();
    Refusals { refusals: decisions.into_iter().map(refusal).collect(), forgotten: left_out }
}

fn refusal(policy: &SharedPolicy, now: Instant, counted: Counted) -> Refusal {
    let Counted { decision, count } = counted;
    let Decision { stage, ruling, reason, protocol, remote, name } = decision;
    let given = remote.map(|remote| policy.names_of(remote.ip(), now, GIVEN_MAX)).unwrap_or_default();
    let (stage, verdict, reason) = (stage_of(stage), verdict_of(ruling), reason.to_string());
    let protocol = protocol.map(Protocol::rule_word);
    let allow = suggested_rule::for_given(stage, &reason, protocol, remote, name.as_deref(), &given);
    let protocol = protocol.map(str::to_owned);
    Refusal { count, stage, verdict, reason, protocol, remote, name: name.map(String::from), allow }
}

/// Destinations about which a person is asked.
pub(super) fn asked(policy: Option<&SharedPolicy>, now: Instant) -> Questions {
    let Some(policy) = policy else { return Questions::default() };
    let questions = policy.asked(now);
    let question = |Asked { id, decision, left }: Asked| {
        let refusal = refusal(policy, now, Counted { decision, count: 1 });
        Question { id, left_s: left.as_secs(), refusal }
    };
    Questions { questions: questions.into_iter().map(question).collect() }
}

/// Refuses one of them.
pub(super) fn refuse_asked(
    policy: Option<&SharedPolicy>,
    now: Instant,
    RefuseAsked { id }: &RefuseAsked,
) -> Result<Questions, Error> {
    if policy.is_some_and(|policy| policy.refuse_asked(now, *id)) {
        return Ok(asked(policy, now));
    }
    Err(Error::new(code::NOT_FOUND, format!("nothing waits under the number {id}")))
}

/// Limits of the rules in force, with what is used of them.
pub(super) fn usage(policy: Option<&SharedPolicy>) -> PolicyUsage {
    let limited = |Used { rules, limits, bytes, flows }: Used| LimitedRules {
        rules: rules.iter().map(ToString::to_string).collect(),
        up: limits.bytes[0],
        down: limits.bytes[1],
        up_rate: limits.rates[0],
        down_rate: limits.rates[1],
        flows: limits.flows,
        max_age_s: limits.max_age.map(|age| age.as_secs()),
        used_up: bytes[0],
        used_down: bytes[1],
        open_flows: flows,
    };
    let used = policy.map(SharedPolicy::used).unwrap_or_default();
    PolicyUsage { limits: used.into_iter().map(limited).collect() }
}

/// Events of the decisions since the last call, with the times that they had by `clock`.
pub(super) fn decisions(policy: &SharedPolicy, clock: Clock) -> Vec<Event> {
    let Some(Trailed { decisions, left_out }) = policy.take_trail() else { return Vec::new() };
    let event = |Audited { generation, decision, particulars, count, occasion }| {
        let Decision { stage, ruling, reason, protocol, remote, name } = decision;
        let Occasion { at, guest, pinned } = occasion;
        let Particulars { name_from, qtype, encrypted } = particulars;
        let rule = ["allow ", "deny "].into_iter().find_map(|verb| reason.strip_prefix(verb));
        let decision = brodo_control::policy::Decision {
            time: Timestamp(clock.date_ns(at)).to_string(),
            generation,
            guest,
            pinned: pinned.into_iter().map(String::from).collect(),
            stage: stage_of(stage),
            verdict: verdict_of(ruling),
            rule: rule.map(str::to_owned),
            reason: reason.to_string(),
            protocol: protocol.map(|protocol| protocol.rule_word().to_owned()),
            remote,
            name: name.map(String::from),
            name_from: name_from.map(source_of),
            qtype: qtype.map(type_name),
            ech: encrypted,
            count,
        };
        Event::Decision { decision }
    };
    let lost = (left_out > 0).then_some(Event::DecisionsLost { count: left_out });
    decisions.into_iter().map(event).chain(lost).collect()
}

/// Name of a type of records (RFC 1035, 3.2.2 and its successors).
fn type_name(qtype: u16) -> String {
    let name = match qtype {
        1 => "A",
        2 => "NS",
        5 => "CNAME",
        6 => "SOA",
        12 => "PTR",
        15 => "MX",
        16 => "TXT",
        28 => "AAAA",
        33 => "SRV",
        35 => "NAPTR",
        43 => "DS",
        48 => "DNSKEY",
        52 => "TLSA",
        64 => "SVCB",
        65 => "HTTPS",
        255 => "ANY",
        257 => "CAA",
        other => return format!("TYPE{other}"),
    };
    name.to_owned()
}

const fn source_of(source: policy::NameSource) -> NameSource {
    match source {
        policy::NameSource::Dns => NameSource::Dns,
        policy::NameSource::Sni => NameSource::Sni,
        policy::NameSource::Host => NameSource::Host,
        policy::NameSource::Quic => NameSource::Quic,
    }
}

pub(super) const fn stage_of(stage: policy::Stage) -> Stage {
    match stage {
        policy::Stage::Question => Stage::Question,
        policy::Stage::Open => Stage::Open,
        policy::Stage::Gate => Stage::Gate,
        policy::Stage::End => Stage::End,
        policy::Stage::Inbound => Stage::Inbound,
    }
}

pub(super) const fn verdict_of(ruling: policy::Ruling) -> Ruling {
    match ruling {
        policy::Ruling::Allowed => Ruling::Allow,
        policy::Ruling::Denied => Ruling::Deny,
        policy::Ruling::WouldDeny => Ruling::WouldDeny,
    }
}
