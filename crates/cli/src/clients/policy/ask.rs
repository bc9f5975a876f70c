//! `brodo policy ask`: a person at a terminal answers for each destination that waits.

use super::super::{json, print, refused};
use crate::escape::printable;
use crate::failure::Failure;
use crate::refusal_reason;
use brodo_control::client::Client;
use brodo_control::policy::{AddRule, AskedPolicy, Question, RefuseAsked, Verdict, subject};
use std::collections::BTreeSet;
use std::io::{self, BufRead, Write};
use std::thread;
use std::time::Duration;

/// Time between two looks for questions.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Meaning of a line of the person's.
#[derive(Debug, PartialEq, Eq)]
enum Reply {
    Allow(String),
    Refuse,
    /// None of the answers.
    Unclear,
}

/// Asks until the end of the instance or of standard input.
pub(super) fn ask(client: &mut Client, json_lines: bool, for_s: Option<u64>) -> Result<u8, Failure> {
    let mut seen = BTreeSet::new();
    loop {
        let asked = client.call(&AskedPolicy {}).map_err(|error| refused(&error))?;
        let new: Vec<_> = asked.questions.iter().filter(|question| seen.insert(question.id)).collect();
        for question in new {
            if json_lines {
                print(&json(question))?;
            } else if !settle(client, question, for_s)? {
                return Ok(0);
            }
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// Asks about one destination until there is an answer; false at the end of standard input.
fn settle(client: &mut Client, question: &Question, for_s: Option<u64>) -> Result<bool, Failure> {
    loop {
        prompt(question)?;
        let mut line = String::new();
        let read = io::stdin().lock().read_line(&mut line);
        if read.map_err(Failure::io("read standard input"))? == 0 {
            return Ok(false);
        }
        let answered = match reply(line.trim(), question) {
            Reply::Unclear => continue,
            Reply::Refuse => client.call(&RefuseAsked { id: question.id }).map(|_| ()),
            Reply::Allow(rule) => client.call(&AddRule { verdict: Verdict::Allow, rule, for_s }).map(|_| ()),
        };
        let Err(error) = answered else { return Ok(true) };
        // It was refused meanwhile, for example, or the answer is no rule.
        print(&format!("{}\n", refused(&error)))?;
        if reply(line.trim(), question) == Reply::Refuse {
            return Ok(true);
        }
    }
}

fn prompt(question: &Question) -> Result<(), Failure> {
    let refusal = &question.refusal;
    let what = subject(refusal.protocol.as_deref(), refusal.remote, refusal.name.as_deref());
    let proposal = match &refusal.allow {
        Some(rule) => format!("allow {}? y, n, or another rule: ", printable(rule)),
        None => "no rule is proposed: n, or a rule: ".to_owned(),
    };
    let reason = refusal_reason::sentence(&refusal.reason).unwrap_or(&refusal.reason);
    print(&format!("{}: {}\n{proposal}", printable(&what), printable(reason)))?;
    io::stdout().flush().map_err(Failure::io("write to standard output"))
}

/// The answer in a line.
fn reply(line: &str, question: &Question) -> Reply {
    match (line, &question.refusal.allow) {
        ("y" | "yes", Some(rule)) => Reply::Allow(rule.clone()),
        ("n" | "no", _) => Reply::Refuse,
        ("" | "y" | "yes", _) => Reply::Unclear,
        (rule, _) => Reply::Allow(rule.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use brodo_control::policy::{Refusal, Ruling, Stage};

    #[test]
    fn answers_are_words_or_rules() {
        let question = |allow: Option<&str>| Question {
            id: 1,
            left_s: 30,
            refusal: Refusal {
                count: 1,
                stage: Stage::Question,
                verdict: Ruling::Deny,
                reason: "policy question".to_owned(),
                protocol: None,
                remote: None,
                name: Some("a.example".to_owned()),
                allow: allow.map(str::to_owned),
            },
        };
        let proposed = question(Some("a.example"));
        assert_eq!(reply("y", &proposed), Reply::Allow("a.example".to_owned()));
        assert_eq!(reply("n", &proposed), Reply::Refuse);
        assert_eq!(reply("", &proposed), Reply::Unclear);
        assert_eq!(reply("*.example.com", &proposed), Reply::Allow("*.example.com".to_owned()));
        assert_eq!(reply("y", &question(None)), Reply::Unclear);
    }
}
