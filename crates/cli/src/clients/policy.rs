//! `brodo policy show`, `set`, `allow` and so on: the policy of a running instance.

use super::args::{InstanceOptions, NewRule, RunningPolicy};
use super::{client, json, print, refused};
use crate::escape::printable;
use crate::failure::Failure;
use crate::policy_file;
use crate::refusal_reason;
use crate::units::bytes;
use brodo_control::client::{Client, ClientError};
use brodo_control::policy::{
    AddRule, ExplainPolicy, LearnedPolicy, LimitedRules, Lockdown, Policy, PolicyText, Refusal, Refusals,
    RemoveRule, RuleProperties, Ruling, SealPolicy, SetPolicy, ShowPolicy, Verdict, subject,
};
use std::fmt::Write as _;

mod ask;

/// Runs a command.
pub(crate) fn policy(options: &InstanceOptions, command: &RunningPolicy) -> Result<u8, Failure> {
    // Files with errors are refused before an instance is looked for.
    let files = match command {
        RunningPolicy::Set { files, .. } => policy_file::read(files)?.sources,
        _ => Vec::new(),
    };
    let mut client = client(options.instance.as_ref())?;
    if let RunningPolicy::Explain = command {
        let refusals = client.call(&ExplainPolicy::default()).map_err(|e| refused(&e))?;
        let lines = || refusals.refusals.iter().map(json).collect();
        print(&if options.json { lines() } else { explained(&refusals) })?;
        return Ok(0);
    }
    if let RunningPolicy::Ask { for_s } = command {
        return ask::ask(&mut client, options.json, *for_s);
    }
    let policy = match command {
        RunningPolicy::Show | RunningPolicy::Explain | RunningPolicy::Ask { .. } => {
            client.call(&ShowPolicy {})
        }
        RunningPolicy::Set { expect, .. } => {
            let text = |source: policy_file::PolicySource| PolicyText {
                path: source.path.display().to_string(),
                text: source.text,
            };
            client.call(&SetPolicy { files: files.into_iter().map(text).collect(), expect: *expect })
        }
        RunningPolicy::Allow(rule) => add(&mut client, Verdict::Allow, rule),
        RunningPolicy::Deny(rule) => add(&mut client, Verdict::Deny, rule),
        RunningPolicy::Remove { id } => client.call(&RemoveRule { id: *id }),
        RunningPolicy::Seal => client.call(&SealPolicy {}),
        RunningPolicy::Lockdown { off } => client.call(&Lockdown { on: !off }),
    };
    let policy = policy.map_err(|e| refused(&e))?;
    print(&if options.json { json(&policy) } else { shown(&policy) })?;
    Ok(0)
}

/// The policy that a running instance has learnt.
pub(crate) fn learned(options: &InstanceOptions, wildcards: Option<usize>) -> Result<String, Failure> {
    let mut client = client(options.instance.as_ref())?;
    let learned = client.call(&LearnedPolicy { wildcards }).map_err(|e| refused(&e))?;
    Ok(learned.text)
}

fn add(client: &mut Client, verdict: Verdict, rule: &NewRule) -> Result<Policy, ClientError> {
    client.call(&AddRule { verdict, rule: rule.rule.clone(), for_s: rule.for_s })
}

/// The policy, a line for each rule.
fn shown(policy: &Policy) -> String {
    let mut text = format!("generation {}", policy.generation);
    // Writing to a string cannot fail.
    let states = [
        (policy.observes, ", observing: only the floor and --deny of addresses refuse"),
        (policy.sealed, ", sealed"),
        (policy.lockdown, ", lockdown: everything is refused"),
    ];
    for (_, word) in states.iter().filter(|(is, _)| *is) {
        text += word;
    }
    let default = if policy.asks { "ask" } else { policy.default.name() };
    let _ = writeln!(text, "\ndefault {default}, private {}", policy.private.name());
    for rule in &policy.deny {
        let _ = writeln!(text, "  deny  {}", printable(rule));
    }
    for (place, rule) in policy.allow.iter().enumerate() {
        let found = policy.properties.iter().find(|properties| properties.place == place);
        let _ = writeln!(text, "  allow {}{}", printable(rule), found.map_or_else(String::new, properties));
    }
    for added in &policy.added {
        let _ =
            write!(text, "  {:<5} {}  added as {}", added.verdict.name(), printable(&added.rule), added.id);
        let _ = match added.left_s {
            Some(left) => writeln!(text, ", for {left} s more"),
            None => writeln!(text),
        };
    }
    for limited in &policy.limits {
        let _ = writeln!(text, "  limits of {}: {}", printable(&limited.rules.join(", ")), limits(limited));
    }
    text
}

/// Properties of a rule, as in a policy file.
fn properties(RuleProperties { private, ech, .. }: &RuleProperties) -> String {
    let private = private.map(|private| format!("  private = {private}")).unwrap_or_default();
    let ech = ech.as_ref().map(|ech| format!("  ech = \"{}\"", printable(ech))).unwrap_or_default();
    private + &ech
}

/// Limits with what is used of them.
fn limits(limited: &LimitedRules) -> String {
    let quota = |what: &str, used: u64, most: Option<u64>| {
        let of = most.map_or_else(String::new, |most| format!(" of {}", bytes(most)));
        format!("{} {what}{of}", bytes(used))
    };
    let rate = |what: &str, rate: Option<u64>| rate.map(|rate| format!("{what} {}/s", bytes(rate)));
    let flows = match limited.flows {
        Some(most) => format!("{} of {most} flows", limited.open_flows),
        None => format!("{} flows", limited.open_flows),
    };
    let parts =
        [quota("up", limited.used_up, limited.up), quota("down", limited.used_down, limited.down), flows];
    let rates = [rate("up at", limited.up_rate), rate("down at", limited.down_rate)];
    let age = limited.max_age_s.map(|age| format!("each for {age} s"));
    parts.into_iter().chain(rates.into_iter().flatten()).chain(age).collect::<Vec<_>>().join(", ")
}

/// Refusals, the most frequent first.
fn explained(Refusals { refusals, forgotten }: &Refusals) -> String {
    let mut refusals: Vec<&Refusal> = refusals.iter().collect();
    refusals.sort_by_key(|refusal| std::cmp::Reverse(refusal.count));
    let mut text = String::new();
    for refusal in &refusals {
        let Refusal { count, stage, verdict, reason, protocol, remote, name, allow } = refusal;
        let what = printable(&subject(protocol.as_deref(), *remote, name.as_deref()));
        let passed = if *verdict == Ruling::WouldDeny { " (has passed)" } else { "" };
        let reason = printable(refusal_reason::sentence(reason).unwrap_or(reason));
        let _ = writeln!(text, "{count:>6}x  {:<8} {what}  {reason}{passed}", stage.name());
        if let Some(allow) = allow {
            let _ = writeln!(text, "{:>18}brodo policy allow \"{}\"", "", printable(allow));
        }
    }
    if refusals.is_empty() {
        text += "nothing was refused\n";
    }
    if *forgotten > 0 {
        let _ = writeln!(text, "{forgotten} earlier refusals are forgotten");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use brodo_control::policy::{AddedRule, Ruling, Stage};

    #[test]
    fn a_policy_has_a_line_for_each_rule() {
        let added =
            |id, left_s| AddedRule { id, verdict: Verdict::Allow, rule: "b.example".to_owned(), left_s };
        let policy = Policy {
            generation: 4,
            hash: String::new(),
            sealed: true,
            lockdown: false,
            observes: false,
            default: Verdict::Deny,
            private: Verdict::Deny,
            allow: vec!["a.example".to_owned(), "0.0.0.0/0:443".to_owned()],
            properties: vec![
                RuleProperties { place: 0, private: Some(true), ech: Some("outer".to_owned()) },
                RuleProperties { place: 1, private: Some(false), ech: None },
            ],
            deny: vec!["10.0.0.0/8:25".to_owned()],
            added: vec![added(1, Some(600)), added(2, None)],
            asks: false,
            limits: vec![LimitedRules {
                rules: vec!["a.example".to_owned()],
                up: Some(50 << 20),
                down: None,
                up_rate: None,
                down_rate: Some(2 << 20),
                flows: Some(8),
                max_age_s: Some(3600),
                used_up: 1 << 20,
                used_down: 0,
                open_flows: 3,
            }],
        };
        let text = "generation 4, sealed\ndefault deny, private deny\n  deny  10.0.0.0/8:25\n  allow a.example  \
                    private = true  ech = \"outer\"\n  allow 0.0.0.0/0:443  private = false\n  allow b.example  added as 1, for 600 s more\n  allow b.example  added as 2\n  limits of \
                    a.example: 1M up of 50M, 0 down, 3 of 8 flows, down at 2M/s, each for 3600 s\n";
        assert_eq!(shown(&policy), text);
        let observing = Policy { observes: true, sealed: false, ..policy };
        let first = "generation 4, observing: only the floor and --deny of addresses refuse\n";
        assert!(shown(&observing).starts_with(first));
    }

    #[test]
    fn refusals_name_the_rule_that_would_allow_them() {
        assert_eq!(explained(&Refusals::default()), "nothing was refused\n");
        let refusal = Refusal {
            count: 12,
            stage: Stage::Question,
            verdict: Ruling::Deny,
            reason: "policy question".to_owned(),
            protocol: None,
            remote: None,
            name: Some("evil\x1b[2J.example".to_owned()),
            allow: Some("static.example".to_owned()),
        };
        let text = explained(&Refusals { refusals: vec![refusal], forgotten: 3 });
        assert!(text.starts_with("    12x  question evil"), "{text}");
        assert!(text.contains("no rule names it\n") && !text.contains('\x1b'), "{text}");
        assert!(text.contains("brodo policy allow \"static.example\"\n"), "{text}");
        assert!(text.ends_with("3 earlier refusals are forgotten\n"), "{text}");
    }
}
