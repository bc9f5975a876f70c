//! Methods about the policy in force: its rules, their changes at run time, and what it has refused.
//!
//! A change takes effect for all workers at once or not at all. Every change makes another *generation*; one
//! that names the generation it was made for is refused if there was a change in between.

use serde::{Deserialize, Serialize};

/// Effect of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Destinations that it fits may be reached.
    Allow,
    /// They may not.
    Deny,
}

impl Verdict {
    /// The name in messages and options.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}

/// Reads the policy in force.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShowPolicy {}

/// The policy in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// Number of the last change; 1 at the start.
    pub generation: u64,
    /// SHA-256 over the rules in force: equal for equal policies of one version of brodo.
    #[serde(default)]
    pub hash: String,
    /// No change is taken any more.
    pub sealed: bool,
    /// Everything is refused.
    pub lockdown: bool,
    /// Refusals are only noted: everything passes.
    #[serde(default)]
    pub observes: bool,
    /// Verdict where no rule fits.
    pub default: Verdict,
    /// A person is asked before that verdict is one of refusal.
    #[serde(default)]
    pub asks: bool,
    /// Verdict on private addresses that no rule lifts.
    pub private: Verdict,
    /// Rules of files and options, or of the last [`SetPolicy`], in order.
    pub allow: Vec<String>,
    /// Their properties, of those that have other ones than a rule without any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub properties: Vec<RuleProperties>,
    /// Deny rules, likewise.
    pub deny: Vec<String>,
    /// Rules added one at a time.
    pub added: Vec<AddedRule>,
    /// Limits of rules, with what is used of them; only in the result of [`ShowPolicy`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<LimitedRules>,
}

/// Properties of an allow rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleProperties {
    /// Its place in [`Policy::allow`], from 0.
    pub place: usize,
    /// Whether it holds for private addresses too; without, it does if it is about a network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub private: Option<bool>,
    /// `outer` if the outer name of an encrypted ClientHello counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ech: Option<String>,
}

/// Limits of allow rules, each for all their flows together, and what is used of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitedRules {
    /// The rules.
    pub rules: Vec<String>,
    /// Bytes from the guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up: Option<u64>,
    /// Bytes to the guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub down: Option<u64>,
    /// Bytes per second from the guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up_rate: Option<u64>,
    /// Bytes per second to the guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub down_rate: Option<u64>,
    /// Flows at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flows: Option<u32>,
    /// Age in seconds at which a flow ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_age_s: Option<u64>,
    /// Bytes that flows have moved from the guest.
    pub used_up: u64,
    /// Bytes that flows have moved to the guest.
    pub used_down: u64,
    /// Flows open now.
    pub open_flows: u32,
}

/// A rule that was added at run time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddedRule {
    /// Its number, for [`RemoveRule`].
    pub id: u64,
    /// Its list.
    pub verdict: Verdict,
    /// The rule.
    pub rule: String,
    /// Seconds until it is removed; none if it stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_s: Option<u64>,
}

/// Text of a policy file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyText {
    /// Its path, for errors; nothing is read from there.
    pub path: String,
    /// The text, in TOML.
    pub text: String,
}

/// Replaces all rules, also those that were added, by those of these files together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetPolicy {
    /// The files, with all that they use.
    pub files: Vec<PolicyText>,
    /// The generation that is replaced; another one is an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect: Option<u64>,
}

/// Adds one rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddRule {
    /// Its list.
    pub verdict: Verdict,
    /// The rule, as in a policy file.
    pub rule: String,
    /// Seconds after which it is removed: 1 to [`FOR_S_MAX`]; without, it stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_s: Option<u64>,
}

/// Longest time of an added rule, in seconds: a year.
pub const FOR_S_MAX: u64 = 366 * 86_400;

/// Removes a rule that was added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoveRule {
    /// Its number.
    pub id: u64,
}

/// Refuses every later change, except a lockdown, until the end of brodo.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SealPolicy {}

/// Refuses everything and ends all flows, or goes back to the rules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lockdown {
    /// Whether it is in force. One in force under a sealed policy stays.
    pub on: bool,
}

/// Verdict of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ruling {
    /// It was allowed.
    Allow,
    /// It was refused.
    Deny,
    /// It would have been refused, but the policy only observes.
    WouldDeny,
}

impl Ruling {
    /// The name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::WouldDeny => "would-deny",
        }
    }
}

/// Equal decisions of about one second: an event, and a line of the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// Time of the first of them, in UTC (RFC 3339), with microseconds.
    pub time: String,
    /// Generation of the policy that has decided.
    #[serde(rename = "gen", default)]
    pub generation: u64,
    /// Step at which they were made.
    pub stage: Stage,
    /// Their verdict.
    pub verdict: Ruling,
    /// The rule or reason.
    pub reason: String,
    /// The rule, as it was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// Protocol of the flow: `tcp`, `udp` or `ping`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// Destination of the flow; a ping has port 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<std::net::SocketAddr>,
    /// The name that was asked for or said, as text of the guest's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Way in which the guest has said it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name_from: Option<NameSource>,
    /// Type of the records asked for, by its name, or as `TYPE` and a number (RFC 3597, 5).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qtype: Option<String>,
    /// The ClientHello had an encrypted one in it (ECH): the name is the outer one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ech: bool,
    /// The guest's address and port, of the first of several decisions; with protocol and destination the
    /// flow log has it as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest: Option<std::net::SocketAddr>,
    /// Names for which DNS had given the guest the destination, at most four, for the first of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pinned: Vec<String>,
    /// Number of decisions.
    pub count: u64,
}

/// Way in which the guest has said a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NameSource {
    /// A question to DNS.
    Dns,
    /// Server name in a ClientHello of TLS.
    Sni,
    /// Host of an HTTP request.
    Host,
    /// Server name in the Initials of QUIC.
    Quic,
}

/// A change of the policy in force: an event, and a line of the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyChange {
    /// Time, as in [`Decision::time`].
    pub time: String,
    /// Generation of the policy after it.
    #[serde(rename = "gen")]
    pub generation: u64,
    /// Marks the line among those of decisions.
    pub stage: ChangeStage,
    /// The change: `replaced`, `rule added`, `rule removed`, `rule expired`, `sealed`, `lockdown` or
    /// `lockdown over`.
    pub change: String,
    /// Hash of the policy before, as in [`Policy::hash`].
    pub before: String,
    /// Hash of the policy after it.
    pub after: String,
    /// Process that has asked for it by the control socket; none if brodo made it by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// User of that process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
}

/// [`PolicyChange`]'s place among the [`Stage`]s of decisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeStage {
    /// The policy itself.
    Policy,
}

/// Flow and name that a decision is about, for people: protocol, destination and name, as far as it has them.
pub fn subject(protocol: Option<&str>, remote: Option<std::net::SocketAddr>, name: Option<&str>) -> String {
    let remote = remote.map(|remote| remote.to_string());
    [protocol, remote.as_deref(), name].into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// Reads the last refusals.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExplainPolicy {
    /// Only so many, the latest; without, all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<usize>,
}

/// Refusals, the latest last.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Refusals {
    /// Each once, with its number.
    pub refusals: Vec<Refusal>,
    /// Refusals that made room for others.
    pub forgotten: u64,
}

/// Step at which a decision was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// A question to DNS.
    Question,
    /// The opening of a flow.
    Open,
    /// The name that a flow has said.
    Gate,
    /// The end of an open flow that is not allowed any more.
    End,
    /// A refused connection or datagram to a published port.
    Inbound,
}

impl Stage {
    /// The name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Question => "question",
            Self::Open => "open",
            Self::Gate => "gate",
            Self::End => "end",
            Self::Inbound => "inbound",
        }
    }
}

/// A refusal that has occurred once or more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Times that it has occurred.
    pub count: u64,
    /// Step at which it was decided.
    pub stage: Stage,
    /// Refused, or only noted by a policy that observes.
    pub verdict: Ruling,
    /// The rule or reason.
    pub reason: String,
    /// Protocol of the flow: `tcp`, `udp` or `ping`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// Destination of the flow; a ping has port 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<std::net::SocketAddr>,
    /// The name that was asked for or said, as text of the guest's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Rule that would allow it, if one can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow: Option<String>,
}

/// Reads the destinations about which a person is asked (`default = "ask"`). An answer is a rule
/// ([`AddRule`]) or a [`RefuseAsked`]; without one they are refused after 30 seconds.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AskedPolicy {}

/// Destinations that wait for an answer, the oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Questions {
    /// Each of them.
    pub questions: Vec<Question>,
}

/// A destination that waits for an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// Its number, for [`RefuseAsked`].
    pub id: u64,
    /// Seconds until it is refused.
    pub left_s: u64,
    /// The refusal that waits, with the rule that would allow it.
    #[serde(flatten)]
    pub refusal: Refusal,
}

/// Reads the policy that allows what the guest has reached so far; for a brodo that learns one.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LearnedPolicy {
    /// So many names below one become a wildcard; without, each has its rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wildcards: Option<usize>,
}

/// A policy that was learnt.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Learned {
    /// A policy file.
    pub text: String,
}

/// Refuses a destination that waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RefuseAsked {
    /// Its number.
    pub id: u64,
}
