//! The policy in force, changed at run time: all workers' rules at once, then open flows, a part at a time.

use super::ask::{FLOWS_PER_COMMAND, ask};
use crate::conversation::message::{Done, Enforced};
use crate::conversation::policy::InForce;
use crate::failure::Failure;
use crate::timestamp::Timestamp;
use brodo_control::event::Event;
use brodo_control::policy::{Refusal, Refusals, Ruling, Stage};
use brodo_control::rpc::{Error, code};
use brodo_core::flow::Protocol;
use brodo_core::policy::{self, Decision, SharedPolicy};
use brodo_net::clock::Clock;
use brodo_net::command::Command;
use brodo_net::workers::Workers;
use rustix::fd::OwnedFd;
use std::fs::File;
use std::io;

/// Puts the policy in `file` in force.
///
/// # Errors
/// It is none.
pub(super) fn set(policy: &SharedPolicy, file: OwnedFd) -> Result<(), Failure> {
    let failed = || Failure::io("read the policy in force: read");
    let InForce { rules, lockdown } = InForce::from_file(File::from(file)).map_err(failed())?;
    let rules = rules.compile().map_err(io::Error::other).map_err(failed())?;
    policy.set(rules, lockdown);
    Ok(())
}

/// The same at run time: open flows that it refuses have ended when this returns.
pub(super) fn enforce(
    workers: &Workers,
    policy: Option<&SharedPolicy>,
    Enforced { review }: Enforced,
    file: Option<OwnedFd>,
) -> Result<Done, Error> {
    let failed = |why: String| Error::new(code::FAILED, why);
    let policy = policy.ok_or_else(|| failed("there is no policy".to_owned()))?;
    let file = file.ok_or_else(|| failed("a policy needs a file".to_owned()))?;
    set(policy, file).map_err(|failure| failed(failure.to_string()))?;
    if review {
        for worker in 0..workers.workers() {
            let mut next = Some(0);
            while let Some(from) = next {
                let command = |reply| Command::Review { from, most: FLOWS_PER_COMMAND, reply };
                next = ask(workers, worker, command)?;
            }
        }
    }
    Ok(Done {})
}

/// The last refusals.
pub(super) fn explain(policy: Option<&SharedPolicy>) -> Refusals {
    let Some(policy) = policy else { return Refusals::default() };
    let (refusals, forgotten) = policy.refusals();
    Refusals { refusals: refusals.into_iter().map(refusal).collect(), forgotten }
}

fn refusal((decision, count): (Decision, u64)) -> Refusal {
    let allow = allowing(&decision);
    let Decision { stage, ruling, reason, protocol, remote, name } = decision;
    let (stage, verdict, reason) = (stage_of(stage), verdict_of(ruling), reason.to_string());
    let protocol = protocol.map(|protocol| word(protocol).to_owned());
    Refusal { count, stage, verdict, reason, protocol, remote, name: name.map(String::from), allow }
}

/// Events of the decisions since the last call, as of `clock` now.
pub(super) fn decisions(policy: &SharedPolicy, clock: Clock) -> Vec<Event> {
    let Some((decisions, lost)) = policy.take_trail() else { return Vec::new() };
    let time = Timestamp(clock.unix_ns(clock.now())).to_string();
    let event = |(decision, count): (Decision, u64)| {
        let Decision { stage, ruling, reason, protocol, remote, name } = decision;
        let decision = brodo_control::policy::Decision {
            time: time.clone(),
            stage: stage_of(stage),
            verdict: verdict_of(ruling),
            reason: reason.to_string(),
            protocol: protocol.map(|protocol| word(protocol).to_owned()),
            remote,
            name: name.map(String::from),
            count,
        };
        Event::Decision { decision }
    };
    let lost = (lost > 0).then_some(Event::DecisionsLost { count: lost });
    decisions.into_iter().map(event).chain(lost).collect()
}

const fn stage_of(stage: policy::Stage) -> Stage {
    match stage {
        policy::Stage::Question => Stage::Question,
        policy::Stage::Open => Stage::Open,
        policy::Stage::Gate => Stage::Gate,
    }
}

const fn verdict_of(ruling: policy::Ruling) -> Ruling {
    match ruling {
        policy::Ruling::Allowed => Ruling::Allow,
        policy::Ruling::Denied => Ruling::Deny,
        policy::Ruling::WouldDeny => Ruling::WouldDeny,
    }
}

const fn word(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Echo => "ping",
    }
}

/// The rule that would allow what was refused: a name that was asked for, or an address that no name leads
/// to. None for what a rule denies on purpose, and for a name that was said at an address of another's.
fn allowing(decision: &Decision) -> Option<String> {
    let Decision { stage, reason, protocol, remote, name, .. } = decision;
    match (stage, &**reason) {
        (policy::Stage::Question, "policy question") => {
            let name = policy::DomainName::parse(name.as_ref()?.as_bytes())?;
            Some(name.to_string())
        }
        (policy::Stage::Open, "policy default" | "policy not-given-by-dns" | "policy private") => {
            let remote = remote.as_ref()?;
            Some(match protocol.as_ref()? {
                Protocol::Echo => format!("ping://{}", bracketed(remote.ip())),
                other => format!("{}://{}:{}", word(*other), bracketed(remote.ip()), remote.port()),
            })
        }
        _ => None,
    }
}

fn bracketed(ip: std::net::IpAddr) -> String {
    if ip.is_ipv6() { format!("[{ip}]") } else { ip.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use brodo_core::policy::{Effect, Rule};

    fn decision(stage: policy::Stage, reason: &str, remote: Option<&str>, name: Option<&str>) -> Decision {
        let remote = remote.map(|text| text.parse().expect("an address"));
        let protocol = remote.map(|_| Protocol::Tcp);
        Decision {
            stage,
            ruling: policy::Ruling::Denied,
            reason: reason.into(),
            protocol,
            remote,
            name: name.map(Into::into),
        }
    }

    #[test]
    fn suggested_rules_are_rules() {
        use policy::Stage::{Gate, Open, Question};
        for (decision, rule) in [
            (
                decision(Question, "policy question", None, Some("Static.example.org.")),
                Some("static.example.org"),
            ),
            (decision(Question, "policy question", None, Some("a\u{7}b")), None),
            (decision(Question, "deny evil.example", None, Some("evil.example")), None),
            (decision(Open, "policy default", Some("192.0.2.1:22"), None), Some("tcp://192.0.2.1:22")),
            (
                decision(Open, "policy not-given-by-dns", Some("[2001:db8::1]:443"), None),
                Some("tcp://[2001:db8::1]:443"),
            ),
            (decision(Gate, "policy name", Some("192.0.2.1:443"), Some("evil.example")), None),
        ] {
            assert_eq!(allowing(&decision).as_deref(), rule, "{decision:?}");
            assert!(rule.is_none_or(|rule| Rule::parse(rule, Effect::Allow).is_ok()));
        }
    }
}
