//! Policy files (`--policy FILE`, TOML) and rules of the command line: texts to the rules of the core.
//!
//! 1. Files are read once, before the namespace is made, with the files that they name under `use`
//!    ([`read`]). From then on their texts are kept: an upgrade in place reads no file again, because a guest
//!    may be able to write to it.
//! 2. The texts are parsed ([`parse`]), each error with file, line and the form to write instead. Names in
//!    other scripts become A-labels here (UTS 46, by the crate `idna`); the core sees ASCII only.
//! 3. All files and `--allow` and `--deny` are united ([`Policy::unite`]): lists are added, and where two
//!    files set the same thing the stricter value holds, so the order of files means nothing.

use crate::failure::{Failure, plain};
use brodo_core::policy::{AllowRule, Effect, PIN_MAX, PolicyRules, RULES_MAX, Rule};
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

mod parse;
pub(crate) mod presets;
mod trial;
mod warnings;

pub(crate) use parse::Policy;
pub(crate) use trial::{Trial, trial};
pub(crate) use warnings::{repeated, warnings};

/// Longest text of a policy, of all files together, in bytes.
const TEXT_MAX: usize = 1 << 20;
/// Most files that lead one to another.
const DEPTH_MAX: usize = 8;

/// A policy file as it was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PolicySource {
    /// Its path, for errors.
    pub(crate) path: PathBuf,
    pub(crate) text: String,
}

impl PolicySource {
    /// File and line of a position.
    fn place(&self, at: usize) -> String {
        let line = 1 + self.text.get(..at).unwrap_or(&self.text).matches('\n').count();
        format!("{} line {line}", self.path.display())
    }

    /// Path of a file that it uses under this name: beside it, unless brodo has it.
    fn path_of(&self, used: &str) -> PathBuf {
        let directory = self.path.parent().unwrap_or(Path::new(""));
        if used.starts_with('@') { used.into() } else { directory.join(used) }
    }
}

/// Parses files that came with all that they use.
///
/// # Errors
/// One is malformed, or uses one that is not among them: its rules would be missing without a word.
pub(crate) fn parse_whole(sources: &[PolicySource]) -> Result<Vec<Policy>, Failure> {
    let policies = sources.iter().map(Policy::parse).collect::<Result<Vec<_>, _>>()?;
    for (source, policy) in sources.iter().zip(&policies) {
        let missing = |used: &&parse::UsedFile| {
            let path = source.path_of(&used.name);
            sources.iter().all(|other| other.path != path)
        };
        if let Some(used) = policy.used.iter().find(missing) {
            let path = source.path_of(&used.name);
            let why = format!("{} uses {}, which is not among the files", used.place, path.display());
            return Err(Failure::Usage(why));
        }
    }
    Ok(policies)
}

/// Policy files as they were read.
#[derive(Debug, Clone, Default)]
pub(crate) struct PolicyFiles {
    pub(crate) sources: Vec<PolicySource>,
    /// Each of them, parsed.
    pub(crate) policies: Vec<Policy>,
}

impl PolicyFiles {
    /// Files that were read before.
    ///
    /// # Errors
    /// One is malformed.
    pub(crate) fn of(sources: Vec<PolicySource>) -> Result<Self, Failure> {
        let policies = sources.iter().map(Policy::parse).collect::<Result<_, _>>()?;
        Ok(Self { sources, policies })
    }
}

/// Reads policy files and those that they use, each once.
///
/// # Errors
/// A file cannot be read or is malformed, or all together are too long, have too many rules or lead too deep.
pub(crate) fn read(paths: &[PathBuf]) -> Result<PolicyFiles, Failure> {
    let PolicyFiles { mut sources, mut policies } = PolicyFiles::default();
    let mut room = RULES_MAX;
    let mut waiting: Vec<_> = paths.iter().rev().map(|path| (path.clone(), 1, None)).collect();
    while let Some((path, depth, place)) = waiting.pop() {
        if sources.iter().any(|source: &PolicySource| source.path == path) {
            continue;
        }
        let text = read_one(&path, place.as_deref())?;
        let length: usize = sources.iter().map(|source| source.text.len()).sum();
        if length + text.len() > TEXT_MAX {
            return Err(Failure::Usage(format!(
                "the policy has more than {TEXT_MAX} bytes with {}",
                path.display()
            )));
        }
        let source = PolicySource { path, text };
        let policy = Policy::parse(&source)?;
        if let Some(at) = policy.rule_beyond(room) {
            return Err(Failure::Usage(one_too_many(&source.place(at))));
        }
        room -= policy.count();
        if depth == DEPTH_MAX && !policy.used.is_empty() {
            return Err(Failure::Usage(format!(
                "{} uses further files, more than {DEPTH_MAX} deep",
                source.path.display()
            )));
        }
        let used = policy.used.iter().rev();
        waiting.extend(used.map(|used| (source.path_of(&used.name), depth + 1, Some(used.place.clone()))));
        sources.push(source);
        policies.push(policy);
    }
    Ok(PolicyFiles { sources, policies })
}

/// The error of the first rule for which there is no room.
fn one_too_many(place: &str) -> String {
    format!(
        "{place}: the policy has more than {RULES_MAX} rules from here on: write a network or *.example.com for several"
    )
}

/// Text of a file, which another uses at `place`, if one does.
fn read_one(path: &Path, place: Option<&str>) -> Result<String, Failure> {
    let used_at = place.map(|place| format!("{place}: ")).unwrap_or_default();
    if let Some(name) = path.to_str().and_then(|path| path.strip_prefix('@')) {
        let text = presets::text(name).map(str::to_owned);
        return text.map_err(|failure| Failure::Usage(format!("{used_at}{failure}")));
    }
    let used_at = place.map(|place| format!(", which {place} uses")).unwrap_or_default();
    // A mistake of the command line or of a file, as a rule that cannot be read is one.
    let cannot = |call: &str, error: &std::io::Error| {
        let path = path.display();
        Failure::Usage(format!("cannot read the policy {path}{used_at}: {call}: {}", plain(error)))
    };
    let file = std::fs::File::open(path).map_err(|error| cannot("open", &error))?;
    let mut bytes = Vec::new();
    file.take(TEXT_MAX as u64 + 1).read_to_end(&mut bytes).map_err(|error| cannot("read", &error))?;
    String::from_utf8(bytes).map_err(|error| {
        let text = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = text.split(|byte| *byte == b'\n').count();
        Failure::Usage(format!(
            "{} line {line}: a byte is not UTF-8: write the file in UTF-8",
            path.display()
        ))
    })
}

/// A rule of one list, with its name in ASCII.
///
/// # Errors
/// The form to write instead.
pub(crate) fn rule(text: &str, effect: Effect) -> Result<Rule, String> {
    let ascii = if text.is_ascii() { text.to_owned() } else { in_ascii(text)? };
    Rule::parse(&ascii, effect).map_err(|error| error.to_string())
}

/// A rule with its name converted to A-labels.
fn in_ascii(text: &str) -> Result<String, String> {
    let (scheme, rest) = text.split_once("://").map_or(("", text), |(scheme, rest)| (scheme, rest));
    let (wildcard, rest) = rest.strip_prefix("*.").map_or(("", rest), |rest| ("*.", rest));
    let (name, port) = rest.split_once(':').map_or((rest, ""), |(name, port)| (name, port));
    let name = idna::domain_to_ascii(name).map_err(|_| format!("{name:?} is not a name"))?;
    let separator = if scheme.is_empty() { "" } else { "://" };
    let colon = if port.is_empty() { "" } else { ":" };
    Ok(format!("{scheme}{separator}{wildcard}{name}{colon}{port}"))
}

/// Rules of the command line beside the policy files.
#[derive(Debug, Clone, Default)]
pub(crate) struct OnLine<'a> {
    pub(crate) allow: &'a [Rule],
    pub(crate) deny: &'a [Rule],
}

impl OnLine<'_> {
    /// The error of the first option for which there is no room beside the rules of `files`, if there is one.
    pub(crate) fn too_many(&self, files: &PolicyFiles) -> Option<String> {
        let room = RULES_MAX.saturating_sub(files.policies.iter().map(Policy::count).sum());
        let allow = self.allow.iter().map(|rule| ("--allow", rule));
        let (option, rule) = allow.chain(self.deny.iter().map(|rule| ("--deny", rule))).nth(room)?;
        Some(one_too_many(&format!("{option} {rule}")))
    }
}

impl Policy {
    /// Number of its rules.
    fn count(&self) -> usize {
        self.allow.len() + self.deny.len()
    }

    /// Where in the text the first rule stands for which there is no room.
    fn rule_beyond(&self, room: usize) -> Option<usize> {
        let mut places = [&self.allow_at[..], &self.deny_at].concat();
        places.sort_unstable();
        places.get(room).copied()
    }

    /// The rules of all files and of the command line; `None` if there are none at all. Rules that deny by
    /// name, alone, deny nothing else.
    pub(crate) fn unite(policies: &[Self], on_line: &OnLine<'_>) -> Option<PolicyRules> {
        let lines = on_line.allow.len() + on_line.deny.len();
        if policies.is_empty() && lines == 0 {
            return None;
        }
        let mut rules = PolicyRules::default();
        let strict = |of: fn(&Self) -> Option<Effect>| {
            let mut stated = policies.iter().filter_map(of);
            if stated.clone().next().is_none() || stated.any(|effect| effect == Effect::Deny) {
                Effect::Deny
            } else {
                Effect::Allow
            }
        };
        let asked = policies.iter().any(|policy| policy.asks);
        rules.asks = asked && !policies.iter().any(|policy| policy.default == Some(Effect::Deny));
        rules.default = if asked { Effect::Deny } else { strict(|policy| policy.default) };
        rules.private = strict(|policy| policy.private);
        if policies.is_empty() && on_line.allow.is_empty() {
            (rules.default, rules.private) = (Effect::Allow, Effect::Allow);
        }
        for policy in policies {
            let before = rules.limits.len();
            let placed = |allow: &AllowRule| AllowRule {
                limits: allow.limits.map(|place| before + place),
                ..allow.clone()
            };
            rules.allow.extend(policy.allow.iter().map(placed));
            rules.limits.extend(&policy.limits);
            rules.deny.extend(policy.deny.iter().cloned());
        }
        rules.allow.extend(on_line.allow.iter().cloned().map(AllowRule::from));
        rules.deny.extend(on_line.deny.iter().cloned());
        rules.pin = policies.iter().filter_map(|policy| policy.pin).min().unwrap_or(rules.pin).min(PIN_MAX);
        rules.names_per_wildcard = policies
            .iter()
            .filter_map(|policy| policy.names_per_wildcard)
            .min()
            .unwrap_or(rules.names_per_wildcard);
        let by_rate = |rate: &brodo_core::policy::FlowRate| (rate.per_second, rate.burst);
        let slowest = policies.iter().filter_map(|policy| policy.questions).min_by_key(by_rate);
        rules.questions = slowest.unwrap_or(rules.questions);
        rules.types.extend(policies.iter().flat_map(|policy| &policy.types).copied());
        rules.types.sort_unstable();
        rules.types.dedup();
        rules.telling.tell = policies.iter().filter_map(|policy| policy.tell).min().unwrap_or_default();
        rules.telling.note = policies.iter().find_map(|policy| policy.note.clone()).unwrap_or_default();
        Some(rules)
    }
}

/// A time such as `90s`, `5m`, `1h`, `1d`.
pub(crate) fn period(word: &str) -> Option<Duration> {
    let unit = word.chars().next_back()?;
    let digits = word.strip_suffix(unit)?;
    let number: u64 = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())??;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return None,
    };
    Some(Duration::from_secs(number.checked_mul(seconds)?))
}

#[cfg(test)]
mod tests;
