//! Rules of a policy as data, between warden and engine and in a saved state.
//!
//! Rules are texts, which the reader parses again: what the engine takes was made by the same grammar as what
//! the user wrote. Long policies travel as a file in memory.

use brodo_control::policy::RuleProperties;
use brodo_core::policy::{AllowRule, Effect, FlowRate, Limits, PolicyRules, Rule, Ruleset, Tell, Telling};
use rustix::fs::{MemfdFlags, SeekFrom, memfd_create, seek};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read, Write};
use std::time::Duration;

/// Longest text of all rules, in bytes: 16,384 rules, each as long as a name may be.
const TEXT_MAX: u64 = 8 << 20;

/// [`PolicyRules`] as data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RulesData {
    pub(crate) default_allow: bool,
    pub(crate) private_allow: bool,
    #[serde(default)]
    pub(crate) asks: bool,
    pub(crate) allow: Vec<AllowData>,
    #[serde(default)]
    limits: Vec<LimitsData>,
    pub(crate) deny: Vec<String>,
    pin_ms: u64,
    types: Vec<u16>,
    questions: (u32, u32),
    names_per_wildcard: u32,
    #[serde(default)]
    telling: TellingData,
}

/// [`Telling`] as data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
struct TellingData {
    tell: TellData,
    note: String,
}

/// [`Tell`] as data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
enum TellData {
    Nothing,
    #[default]
    Reason,
    Rule,
}

impl From<&Telling> for TellingData {
    fn from(Telling { tell, note }: &Telling) -> Self {
        let tell = match tell {
            Tell::Nothing => TellData::Nothing,
            Tell::Reason => TellData::Reason,
            Tell::Rule => TellData::Rule,
        };
        Self { tell, note: note.clone() }
    }
}

impl From<&TellingData> for Telling {
    fn from(TellingData { tell, note }: &TellingData) -> Self {
        let tell = match tell {
            TellData::Nothing => Tell::Nothing,
            TellData::Reason => Tell::Reason,
            TellData::Rule => Tell::Rule,
        };
        Self { tell, note: note.clone() }
    }
}

/// [`AllowRule`] as data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AllowData {
    pub(crate) rule: String,
    /// Whether it holds for private addresses too.
    #[serde(default)]
    private: bool,
    /// Whether the outer name of an encrypted ClientHello counts.
    #[serde(default)]
    ech_outer: bool,
    /// Index of its limits.
    #[serde(default)]
    limits: Option<usize>,
}

/// [`Limits`] as data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct LimitsData {
    bytes: [Option<u64>; 2],
    rates: [Option<u64>; 2],
    flows: Option<u32>,
    max_age_s: Option<u64>,
}

impl From<&Limits> for LimitsData {
    fn from(&Limits { bytes, rates, flows, max_age }: &Limits) -> Self {
        Self { bytes, rates, flows, max_age_s: max_age.map(|age| age.as_secs()) }
    }
}

impl From<&LimitsData> for Limits {
    fn from(&LimitsData { bytes, rates, flows, max_age_s }: &LimitsData) -> Self {
        Self { bytes, rates, flows, max_age: max_age_s.map(Duration::from_secs) }
    }
}

impl From<&AllowRule> for AllowData {
    fn from(AllowRule { rule, private, ech_outer, limits }: &AllowRule) -> Self {
        Self { rule: String::from(&*rule.text), private: *private, ech_outer: *ech_outer, limits: *limits }
    }
}

impl From<&PolicyRules> for RulesData {
    fn from(rules: &PolicyRules) -> Self {
        Self {
            default_allow: rules.default == Effect::Allow,
            private_allow: rules.private == Effect::Allow,
            asks: rules.asks,
            allow: rules.allow.iter().map(AllowData::from).collect(),
            limits: rules.limits.iter().map(LimitsData::from).collect(),
            deny: rules.deny.iter().map(|rule| String::from(&*rule.text)).collect(),
            pin_ms: rules.pin.as_millis() as u64,
            types: rules.types.clone(),
            questions: (rules.questions.per_second, rules.questions.burst),
            names_per_wildcard: rules.names_per_wildcard,
            telling: TellingData::from(&rules.telling),
        }
    }
}

impl RulesData {
    /// The rules, compiled.
    ///
    /// # Errors
    /// A rule is none, or there are too many: a sentence.
    pub(crate) fn compile(&self) -> Result<Ruleset, String> {
        let effect = |allow: bool| if allow { Effect::Allow } else { Effect::Deny };
        let parse = |text: &str, effect| Rule::parse(text, effect).map_err(|error| error.to_string());
        let allow = |data: &AllowData| {
            let rule = parse(&data.rule, Effect::Allow)?;
            let AllowData { private, ech_outer, limits, .. } = *data;
            let limits = limits.filter(|place| *place < self.limits.len());
            Ok(AllowRule { private, ech_outer, limits, rule })
        };
        let rules = PolicyRules {
            default: effect(self.default_allow),
            private: effect(self.private_allow),
            asks: self.asks,
            allow: self.allow.iter().map(allow).collect::<Result<_, String>>()?,
            limits: self.limits.iter().map(Limits::from).collect(),
            deny: self.deny.iter().map(|text| parse(text, Effect::Deny)).collect::<Result<_, _>>()?,
            pin: Duration::from_millis(self.pin_ms),
            types: self.types.clone(),
            questions: FlowRate { per_second: self.questions.0, burst: self.questions.1 },
            names_per_wildcard: self.names_per_wildcard,
            telling: Telling::from(&self.telling),
        };
        Ruleset::new(rules).map_err(|error| error.to_string())
    }

    /// Properties of allow rules, of those that have other ones than a rule without any.
    pub(crate) fn properties(&self) -> Vec<RuleProperties> {
        let of = |(place, data): (usize, &AllowData)| {
            let plain = AllowRule::from(Rule::parse(&data.rule, Effect::Allow).ok()?);
            let private = (data.private != plain.private).then_some(data.private);
            let ech = data.ech_outer.then(|| "outer".to_owned());
            (private.is_some() || ech.is_some()).then_some(RuleProperties { place, private, ech })
        };
        self.allow.iter().enumerate().filter_map(of).collect()
    }

    /// Adds a rule that was parsed before.
    pub(crate) fn add(&mut self, rule: &Rule, effect: Effect) {
        match effect {
            Effect::Allow => self.allow.push(AllowData::from(&AllowRule::from(rule.clone()))),
            Effect::Deny => self.deny.push(rule.to_string()),
        }
    }
}

/// The policy that an engine is to enforce.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InForce {
    pub(crate) rules: RulesData,
    pub(crate) lockdown: bool,
    /// Number of the last change.
    #[serde(default)]
    pub(crate) generation: u64,
}

impl InForce {
    /// Writes it into a file in memory.
    ///
    /// # Errors
    /// No memory or descriptors.
    pub(crate) fn to_file(&self) -> io::Result<File> {
        let mut file = File::from(memfd_create("brodo-policy", MemfdFlags::CLOEXEC)?);
        file.write_all(&serde_json::to_vec(self)?)?;
        seek(&file, SeekFrom::Start(0))?;
        Ok(file)
    }

    /// Reads such a file.
    ///
    /// # Errors
    /// It is none, or too long.
    pub(crate) fn from_file(file: File) -> io::Result<Self> {
        let mut bytes = Vec::new();
        file.take(TEXT_MAX).read_to_end(&mut bytes)?;
        Ok(serde_json::from_slice(&bytes)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_come_back_as_they_were() {
        let rule = |text: &str, effect| Rule::parse(text, effect).expect("a rule");
        let mut rules = PolicyRules {
            private: Effect::Allow,
            allow: vec![AllowRule {
                private: true,
                ech_outer: true,
                limits: Some(0),
                ..AllowRule::from(rule("https://*.example.com", Effect::Allow))
            }],
            limits: vec![Limits { bytes: [Some(50), None], flows: Some(8), ..Limits::default() }],
            deny: vec![rule("10.0.0.0/8:25", Effect::Deny)],
            telling: Telling { tell: Tell::Rule, note: "ask".to_owned() },
            ..PolicyRules::default()
        };
        let data = RulesData::from(&rules);
        assert_eq!(*data.compile().expect("rules").source(), rules);
        let in_force = InForce { rules: data.clone(), lockdown: true, generation: 3 };
        assert_eq!(InForce::from_file(in_force.to_file().expect("memory")).expect("it"), in_force);
        let (mut more, added) = (data, rule("tcp://b.example:22", Effect::Allow));
        more.add(&added, Effect::Allow);
        rules.allow.push(AllowRule::from(added));
        assert_eq!(*more.compile().expect("rules").source(), rules);
        more.deny.push("a b".to_owned());
        assert!(more.compile().is_err());
    }
}
