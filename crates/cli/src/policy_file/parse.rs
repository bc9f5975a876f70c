//! One policy file as TOML: its keys, and errors with file, line and the form to write instead.

use super::{PolicySource, period, rule};
use crate::failure::Failure;
use crate::option_values;
use brodo_core::policy::{AllowRule, Effect, FlowRate, Limits, NOTE_LEN_MAX, PIN_MAX, Rule, Tell};
use std::borrow::Cow;
use std::ops::Range;
use std::time::Duration;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

mod advice;
mod limits;

/// Record types that `types` may add, by their names (RFC 1035, RFC 2915, RFC 8659 and others).
const TYPES: [(&str, u16); 8] = [
    ("NS", 2),
    ("SOA", 6),
    ("TXT", 16),
    ("NAPTR", 35),
    ("DS", 43),
    ("DNSKEY", 48),
    ("TLSA", 52),
    ("CAA", 257),
];
/// Keys of the file, of a `[[rule]]`, of `[names]`, of `[refusals]` and of `[tests]`.
const KEYS: [&str; 10] =
    ["version", "default", "private", "use", "allow", "deny", "rule", "names", "refusals", "tests"];
const RULE_KEYS: [&str; 10] =
    ["to", "private", "ech", "up", "down", "up-rate", "down-rate", "flows", "max-age", "reason"];
const NAMES_KEYS: [&str; 4] = ["pin", "types", "questions", "names-per-wildcard"];
const REFUSALS_KEYS: [&str; 2] = ["tell", "text"];
const TESTS_KEYS: [&str; 2] = ["allow", "deny"];
/// The only version of the format.
const VERSION: &str = "1";

/// A destination that `[tests]` names, with its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) url: String,
    pub(crate) effect: Effect,
    /// File and line.
    pub(crate) place: String,
}

/// A file that another uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UsedFile {
    pub(crate) name: String,
    /// File and line of its name, for errors.
    pub(crate) place: String,
}

/// A policy file, parsed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Policy {
    pub(crate) default: Option<Effect>,
    /// The default is to ask a person.
    pub(crate) asks: bool,
    pub(crate) private: Option<Effect>,
    /// Files that it uses, as it names them.
    pub(crate) used: Vec<UsedFile>,
    pub(crate) allow: Vec<AllowRule>,
    /// Limits to which rules refer by index.
    pub(crate) limits: Vec<Limits>,
    pub(crate) deny: Vec<Rule>,
    /// Where in the text each allow rule stands, and each deny rule.
    pub(crate) allow_at: Vec<usize>,
    pub(crate) deny_at: Vec<usize>,
    pub(crate) pin: Option<Duration>,
    pub(crate) types: Vec<u16>,
    pub(crate) questions: Option<FlowRate>,
    pub(crate) names_per_wildcard: Option<u32>,
    pub(crate) tell: Option<Tell>,
    /// Text for refused programs.
    pub(crate) note: Option<String>,
    pub(crate) tests: Vec<Expected>,
}

type Key<'a, 'i> = (&'a Spanned<Cow<'i, str>>, &'a Spanned<DeValue<'i>>);
type Value<'a, 'i> = &'a Spanned<DeValue<'i>>;

impl Policy {
    /// Parses a file.
    ///
    /// # Errors
    /// File, line and the form to write instead.
    pub(crate) fn parse(source: &PolicySource) -> Result<Self, Failure> {
        let file = File { source };
        if source.text.starts_with('\u{feff}') {
            let what = "a byte-order mark, which TOML does not have: save the file as UTF-8 without one";
            return Err(file.wrong(&(0..0), what));
        }
        let root = DeTable::parse(&source.text).map_err(|error| {
            let at = error.span().unwrap_or_default();
            file.wrong(&at, &advice::syntax(error.message()))
        })?;
        let mut policy = Self::default();
        let keys = in_order(root.get_ref());
        if !keys.is_empty() && !keys.iter().any(|(key, _)| key.get_ref() == "version") {
            return Err(file.wrong(&(0..0), "the version of the format is missing: write version = 1"));
        }
        for key in keys {
            policy.key(&file, key)?;
        }
        Ok(policy)
    }

    fn key(&mut self, file: &File<'_>, entry: Key<'_, '_>) -> Result<(), Failure> {
        let (key, value) = entry;
        match key.get_ref().as_ref() {
            "version" => match number(value) {
                Some(VERSION) => Ok(()),
                _ => Err(file.wrong(&value.span(), "this brodo reads version 1: write version = 1")),
            },
            "default" => match value.get_ref() {
                DeValue::String(text) if text == "ask" => {
                    self.asks = true;
                    Ok(())
                }
                DeValue::String(text) if text == "allow" || text == "deny" => {
                    file.effect("default", value).map(|effect| self.default = Some(effect))
                }
                _ => Err(file.wrong(&value.span(), "`default` is \"deny\", \"ask\" or \"allow\"")),
            },
            "private" => file.effect("private", value).map(|effect| self.private = Some(effect)),
            "use" => file.strings("use", value)?.into_iter().try_for_each(|(name, at)| {
                self.used.push(UsedFile { name: name.to_owned(), place: file.place(&at) });
                Ok(())
            }),
            "allow" => file.strings("allow", value)?.into_iter().try_for_each(|(text, at)| {
                self.allow.push(file.rule(text, Effect::Allow, &at)?.into());
                self.allow_at.push(at.start);
                Ok(())
            }),
            "deny" => file.strings("deny", value)?.into_iter().try_for_each(|(text, at)| {
                self.deny.push(file.rule(text, Effect::Deny, &at)?);
                self.deny_at.push(at.start);
                Ok(())
            }),
            "rule" => match value.get_ref() {
                DeValue::Array(rules) => rules.iter().try_for_each(|rule| self.rule(file, rule)),
                _ => Err(file.wrong(&value.span(), "rules with properties are tables: write [[rule]]")),
            },
            "names" => file.table("names", value)?.into_iter().try_for_each(|key| self.names(file, key)),
            "refusals" => {
                file.table("refusals", value)?.into_iter().try_for_each(|key| self.refusals(file, key))
            }
            "tests" => file.table("tests", value)?.into_iter().try_for_each(|key| self.test(file, key)),
            other => Err(file.unknown(other, &key.span(), &KEYS)),
        }
    }

    /// One `[[rule]]`.
    fn rule(&mut self, file: &File<'_>, value: Value<'_, '_>) -> Result<(), Failure> {
        let (mut rules, mut private, mut ech_outer) = (Vec::new(), None, false);
        let mut limits = Limits::default();
        for (key, value) in file.table("rule", value)? {
            match key.get_ref().as_ref() {
                "to" => {
                    for (text, at) in file.strings("to", value)? {
                        rules.push(file.rule(text, Effect::Allow, &at)?);
                        self.allow_at.push(at.start);
                    }
                }
                "private" => match value.get_ref() {
                    DeValue::Boolean(on) => private = Some(*on),
                    _ => return Err(file.wrong(&value.span(), "`private` of a rule is true or false")),
                },
                "ech" => match file.string("ech", value)? {
                    "outer" => ech_outer = true,
                    _ => {
                        return Err(file
                            .wrong(&value.span(), "`ech` of a rule is \"outer\"; without, ECH is refused"));
                    }
                },
                "reason" => _ = file.string("reason", value)?,
                name if limits::read(&mut limits, file, name, value)? => {}
                other => return Err(file.unknown(other, &key.span(), &RULE_KEYS)),
            }
        }
        if rules.is_empty() {
            return Err(file.wrong(&value.span(), "a rule without destinations: write to = [\"...\"]"));
        }
        let place = (!limits.is_empty()).then_some(self.limits.len());
        self.limits.extend(place.map(|_| limits));
        self.allow.extend(rules.into_iter().map(|rule| {
            let rule = AllowRule::from(rule);
            AllowRule { private: private.unwrap_or(rule.private), ech_outer, limits: place, ..rule }
        }));
        Ok(())
    }

    fn names(&mut self, file: &File<'_>, entry: Key<'_, '_>) -> Result<(), Failure> {
        let (key, value) = entry;
        let at = value.span();
        match key.get_ref().as_ref() {
            "pin" => {
                let text = file.string("pin", value)?;
                let pin = period(text).filter(|pin| (Duration::from_secs(1)..=PIN_MAX).contains(pin));
                let pin = pin.ok_or_else(|| file.wrong(&at, "`pin` is 1s to 1d, such as \"1h\""))?;
                self.pin = Some(pin);
            }
            "types" => {
                for (name, at) in file.strings("types", value)? {
                    let known = TYPES.iter().find(|(known, _)| *known == name).map(|(_, number)| *number);
                    let names: Vec<_> = TYPES.iter().map(|(name, _)| *name).collect();
                    let wrong = || {
                        let what = "A, AAAA, CNAME, MX, SRV and PTR are always answered; `types` may add";
                        file.wrong(&at, &format!("{what} {}", names.join(", ")))
                    };
                    self.types.push(known.ok_or_else(wrong)?);
                }
            }
            "questions" => {
                let rate = option_values::flow_rate(file.string("questions", value)?);
                self.questions = Some(rate.map_err(|why| file.wrong(&at, &why))?);
            }
            "names-per-wildcard" => {
                let most = number(value).and_then(|digits| digits.parse().ok());
                let wrong =
                    || file.wrong(&at, "`names-per-wildcard` is a number of names in an hour, 0 to 65536");
                self.names_per_wildcard = Some(most.filter(|most| *most <= 65_536).ok_or_else(wrong)?);
            }
            other => return Err(file.unknown(other, &key.span(), &NAMES_KEYS)),
        }
        Ok(())
    }

    fn refusals(&mut self, file: &File<'_>, entry: Key<'_, '_>) -> Result<(), Failure> {
        let (key, value) = entry;
        let at = value.span();
        match key.get_ref().as_ref() {
            "tell" => {
                self.tell = Some(match file.string("tell", value)? {
                    "none" => Tell::Nothing,
                    "reason" => Tell::Reason,
                    "rule" => Tell::Rule,
                    _ => return Err(file.wrong(&at, "`tell` is \"none\", \"reason\" or \"rule\"")),
                });
            }
            "text" => {
                let text = file.string("text", value)?;
                if text.len() > NOTE_LEN_MAX || text.chars().any(char::is_control) {
                    let what = format!("`text` is one line of at most {NOTE_LEN_MAX} bytes");
                    return Err(file.wrong(&at, &what));
                }
                self.note = Some(text.to_owned());
            }
            other => return Err(file.unknown(other, &key.span(), &REFUSALS_KEYS)),
        }
        Ok(())
    }

    fn test(&mut self, file: &File<'_>, entry: Key<'_, '_>) -> Result<(), Failure> {
        let (key, value) = entry;
        let effect = match key.get_ref().as_ref() {
            "allow" => Effect::Allow,
            "deny" => Effect::Deny,
            other => return Err(file.unknown(other, &key.span(), &TESTS_KEYS)),
        };
        for (url, at) in file.strings(key.get_ref(), value)? {
            self.tests.push(Expected { url: url.to_owned(), effect, place: file.place(&at) });
        }
        Ok(())
    }
}

/// The file of an error.
struct File<'a> {
    source: &'a PolicySource,
}

impl File<'_> {
    fn rule(&self, text: &str, effect: Effect, at: &Range<usize>) -> Result<Rule, Failure> {
        rule(text, effect).map_err(|why| self.wrong(at, &format!("{text:?}: {why}")))
    }

    fn effect(&self, name: &str, value: Value<'_, '_>) -> Result<Effect, Failure> {
        match value.get_ref() {
            DeValue::String(text) if text == "allow" => Ok(Effect::Allow),
            DeValue::String(text) if text == "deny" => Ok(Effect::Deny),
            _ => Err(self.wrong(&value.span(), &format!("`{name}` is \"allow\" or \"deny\""))),
        }
    }

    fn string<'a>(&self, name: &str, value: Value<'a, '_>) -> Result<&'a str, Failure> {
        match value.get_ref() {
            DeValue::String(text) => Ok(text),
            _ => Err(self.wrong(&value.span(), &format!("`{name}` is a string: write {name} = \"...\""))),
        }
    }

    fn strings<'a>(&self, name: &str, value: Value<'a, '_>) -> Result<Vec<(&'a str, Range<usize>)>, Failure> {
        match value.get_ref() {
            DeValue::Array(values) => {
                let entry = |value: Value<'a, '_>| {
                    if let DeValue::String(text) = value.get_ref() {
                        return Ok((&**text, value.span()));
                    }
                    let what = format!("an entry of `{name}` is a string: write \"...\"");
                    Err(self.wrong(&value.span(), &what))
                };
                values.iter().map(entry).collect()
            }
            _ => Err(self.wrong(&value.span(), &format!("`{name}` is a list of strings: write [\"...\"]"))),
        }
    }

    fn table<'a, 'i>(
        &self,
        name: &str,
        value: &'a Spanned<DeValue<'i>>,
    ) -> Result<Vec<Key<'a, 'i>>, Failure> {
        match value.get_ref() {
            DeValue::Table(table) => Ok(in_order(table)),
            _ => Err(self.wrong(&value.span(), &format!("`{name}` is a table: write [{name}]"))),
        }
    }

    fn unknown(&self, name: &str, at: &Range<usize>, known: &[&str]) -> Failure {
        self.wrong(at, &advice::unknown_key(name, known))
    }

    fn wrong(&self, at: &Range<usize>, what: &str) -> Failure {
        Failure::Usage(format!("{}: {what}", self.place(at)))
    }

    /// File and line of a position.
    fn place(&self, at: &Range<usize>) -> String {
        self.source.place(at.start)
    }
}

/// Keys in the order of the file, so that of several errors the first is reported.
fn in_order<'a, 'i>(table: &'a DeTable<'i>) -> Vec<Key<'a, 'i>> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

/// Digits of a decimal number.
fn number<'a>(value: Value<'a, '_>) -> Option<&'a str> {
    match value.get_ref() {
        DeValue::Integer(number) if number.radix() == 10 => Some(number.as_str()),
        _ => None,
    }
}
