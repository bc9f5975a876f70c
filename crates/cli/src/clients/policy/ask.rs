//! `brodo policy ask`: a person at a terminal answers for each destination that waits.

use super::super::{json, print, refused};
use crate::escape::printable;
use crate::failure::Failure;
use crate::refusal_reason;
use brodo_control::client::Client;
use brodo_control::policy::{AddRule, AskedPolicy, Question, RefuseAsked, ShowPolicy, Verdict, subject};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::termios::{QueueSelector, tcflush};
use std::collections::BTreeSet;
use std::io::{self, IsTerminal, Write};
use std::thread;
use std::time::Duration;

/// Time between two looks for questions.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Longest answer, in bytes: more than any rule has.
const ANSWER_MAX: usize = 64 << 10;

/// Size of one read, in bytes.
const READ_SIZE: usize = 4096;

/// Meaning of a line of the person's.
#[derive(Debug, PartialEq, Eq)]
enum Reply {
    Allow(String),
    Refuse,
    /// None of the answers.
    Unclear,
}

/// Lines of standard input.
///
/// A line that was typed at a terminal before its question is no answer to it: a second `y`, or a command for
/// the shell, would allow a destination that the person has not seen. A program that writes to a pipe may
/// answer ahead.
struct Answers {
    is_terminal: bool,
    /// Input that was read and not used.
    received: Vec<u8>,
    has_ended: bool,
}

impl Answers {
    fn new() -> Self {
        Self { is_terminal: io::stdin().is_terminal(), received: Vec::new(), has_ended: false }
    }

    /// Drops input that came before its question.
    fn forget_early(&mut self) {
        if self.is_terminal {
            self.received.clear();
            // An error is that of a terminal that has gone, and the next read has it too.
            let _ = tcflush(io::stdin(), QueueSelector::IFlush);
        }
    }

    /// The next line; none at the end.
    fn next(&mut self) -> Result<Option<String>, Failure> {
        loop {
            let end = self.received.iter().position(|&byte| byte == b'\n').map(|at| at + 1);
            if let Some(length) = end.or_else(|| self.has_ended.then_some(self.received.len())) {
                let line: Vec<u8> = self.received.drain(..length).collect();
                return Ok((length > 0).then(|| String::from_utf8_lossy(&line).into_owned()));
            }
            self.read()?;
        }
    }

    /// Waits for so long; whether there will be no line any more.
    fn have_ended(&mut self, within: Duration) -> Result<bool, Failure> {
        if self.has_ended || self.received.contains(&b'\n') {
            thread::sleep(within);
        } else {
            let within = Timespec { tv_sec: 0, tv_nsec: i64::from(within.subsec_nanos()) };
            let stdin = io::stdin();
            match poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&within)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => self.read()?,
                Err(errno) => return Err(Failure::Io("wait for answers: poll".into(), errno.into())),
            }
            if self.is_terminal {
                self.received.clear();
            }
        }
        Ok(self.has_ended && self.received.is_empty())
    }

    fn read(&mut self) -> Result<(), Failure> {
        let mut bytes = [0; READ_SIZE];
        match rustix::io::read(io::stdin(), &mut bytes) {
            Ok(0) => self.has_ended = true,
            Ok(length) => self.received.extend_from_slice(&bytes[..length]),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(Failure::Io("read standard input: read".into(), errno.into())),
        }
        if self.received.len() > ANSWER_MAX && !self.received.contains(&b'\n') {
            return Err(Failure::Usage(format!("an answer has more than {ANSWER_MAX} bytes")));
        }
        Ok(())
    }
}

/// Asks until the end of the instance or of standard input.
pub(super) fn ask(client: &mut Client, json_lines: bool, for_s: Option<u64>) -> Result<u8, Failure> {
    let policy = client.call(&ShowPolicy {}).map_err(|error| refused(&error))?;
    if policy.observes || !policy.asks {
        let why = if policy.observes { "it only observes" } else { "its default is not \"ask\"" };
        return Err(Failure::Remote(format!("the policy asks nothing: {why}")));
    }
    let mut answers = if json_lines { None } else { Some(Answers::new()) };
    let mut seen = BTreeSet::new();
    loop {
        let asked = client.call(&AskedPolicy {}).map_err(|error| refused(&error))?;
        // One at a time: a rule that is added ends the wait of the others, which the guest repeats.
        if let Some(question) = asked.questions.iter().find(|question| seen.insert(question.id)) {
            let goes_on = match &mut answers {
                Some(answers) => settle(client, answers, question, for_s)?,
                None => print(&json(question))?,
            };
            if !goes_on {
                return Ok(0);
            }
            continue;
        }
        let Some(answers) = &mut answers else {
            thread::sleep(LOOK_EVERY);
            continue;
        };
        if answers.have_ended(LOOK_EVERY)? {
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
        answers.forget_early();
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
    match (line.to_ascii_lowercase().as_str(), &question.refusal.allow) {
        ("y" | "yes", Some(rule)) => Reply::Allow(rule.clone()),
        ("n" | "no", _) => Reply::Refuse,
        _ if is_like_a_rule(line) => Reply::Allow(line.to_owned()),
        _ => Reply::Unclear,
    }
}

/// Whether a line can be meant as a rule. A word such as `quit` would be one too, for a name without a dot,
/// which no server outside has.
fn is_like_a_rule(line: &str) -> bool {
    line == "host" || line.contains(['.', ':', '/', '*'])
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
        for yes in ["Y", "yes", "Yes", "YES"] {
            assert_eq!(reply(yes, &proposed), Reply::Allow("a.example".to_owned()), "{yes}");
            assert_eq!(reply(yes, &question(None)), Reply::Unclear, "{yes}");
        }
        for no in ["N", "no", "No", "NO"] {
            assert_eq!(reply(no, &proposed), Reply::Refuse, "{no}");
        }
        for none in ["q", "quit", "yy", "ja", "1", "allow", "Host"] {
            assert_eq!(reply(none, &proposed), Reply::Unclear, "{none}");
        }
        for rule in ["host", "host:631", "tcp://git.example:22", "10.0.0.0/8", "[2001:db8::1]:443"] {
            assert_eq!(reply(rule, &proposed), Reply::Allow(rule.to_owned()), "{rule}");
        }
    }
}
