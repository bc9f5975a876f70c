//! `brodo policy ask`: a person at a terminal answers for each destination that waits.

use super::super::{json, print, refused};
use crate::escape::printable;
use crate::failure::Failure;
use crate::refusal_reason;
use brodo_control::client::Client;
use brodo_control::policy::{AddRule, AskedPolicy, Question, RefuseAsked, ShowPolicy, Verdict, subject};
use std::collections::BTreeSet;
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
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

/// Lines of standard input, read by a thread of their own, so that its end is noticed between two questions.
struct Answers {
    lines: Receiver<io::Result<String>>,
    /// A line that has come before its question.
    early: Option<io::Result<String>>,
}

impl Answers {
    fn new() -> Result<Self, Failure> {
        let (sender, lines) = sync_channel(0);
        let read = move || {
            for line in io::stdin().lines() {
                let failed = line.is_err();
                if sender.send(line).is_err() || failed {
                    return;
                }
            }
        };
        let started = thread::Builder::new().name("answers".into()).spawn(read);
        started.map_err(Failure::io("read standard input: clone"))?;
        Ok(Self { lines, early: None })
    }

    /// The next line; none at the end.
    fn next(&mut self) -> Result<Option<String>, Failure> {
        let line = self.early.take().or_else(|| self.lines.recv().ok());
        line.transpose().map_err(Failure::io("read standard input: read"))
    }

    /// Waits for so long; whether there will be no line any more.
    fn have_ended(&mut self, within: Duration) -> bool {
        if self.early.is_some() {
            thread::sleep(within);
            return false;
        }
        match self.lines.recv_timeout(within) {
            Ok(line) => self.early = Some(line),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return true,
        }
        false
    }
}

/// Asks until the end of the instance or of standard input.
pub(super) fn ask(client: &mut Client, json_lines: bool, for_s: Option<u64>) -> Result<u8, Failure> {
    let policy = client.call(&ShowPolicy {}).map_err(|error| refused(&error))?;
    if policy.observes || !policy.asks {
        let why = if policy.observes { "it only observes" } else { "its default is not \"ask\"" };
        return Err(Failure::Remote(format!("the policy asks nothing: {why}")));
    }
    let mut answers = if json_lines { None } else { Some(Answers::new()?) };
    let mut seen = BTreeSet::new();
    loop {
        let asked = client.call(&AskedPolicy {}).map_err(|error| refused(&error))?;
        let new: Vec<_> = asked.questions.iter().filter(|question| seen.insert(question.id)).collect();
        for question in new {
            let goes_on = match &mut answers {
                Some(answers) => settle(client, answers, question, for_s)?,
                None => print(&json(question))?,
            };
            if !goes_on {
                return Ok(0);
            }
        }
        let Some(answers) = &mut answers else {
            thread::sleep(LOOK_EVERY);
            continue;
        };
        if answers.have_ended(LOOK_EVERY) {
            return Ok(0);
        }
    }
}

/// Asks about one destination until there is an answer; false at the end of standard input.
fn settle(
    client: &mut Client,
    answers: &mut Answers,
    question: &Question,
    for_s: Option<u64>,
) -> Result<bool, Failure> {
    loop {
        prompt(question)?;
        let Some(line) = answers.next()? else { return Ok(false) };
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
