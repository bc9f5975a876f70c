//! The policy that all workers share: rules in force, pins, and the bounds of questions.
//!
//! One lock for all of it, taken twice for a question that leaves brodo, once for an answer, three times when
//! a flow opens (verdict, permission, pins), and once when it ends. Payload never comes here. Without a
//! policy there is no [`SharedPolicy`] and no lock.

mod names;
pub(crate) mod review;
mod totals;
mod usage;

use super::asking::{Asked, Asking};
use super::decisions::{
    Counted, Decision, Kept, Occasion, PINNED_MAX, Particulars, Refusals, Ruling, Stage, Tallied, Tally,
    Trail, Trailed,
};
use super::domain_name::DomainName;
use super::limited_flows::Allowing;
use super::limits::Usage;
use super::named::{Named, Said};
use super::pins::{Full, Pins};
use super::port_table::{Class, RuleNumber};
use super::reason;
use super::rule_totals::{RuleTotal, RuleTotals};
use super::ruleset::{Answer, Checks, Ground, NewFlow, Opening, Ruleset, SERVICE_BINDINGS};
use super::secret_hash::SecretHash;
use super::wildcards::Wildcards;
use super::{FlowRate, floor};
use crate::flow::{FlowKey, Protocol};
use crate::rate::Bucket;
use crate::time::{Duration, Instant};
use crate::wire::dns::message::PTR;
use crate::wire::dns::{Name, Question, chain};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use usage::Used;

/// Names that do not exist under any policy, whatever its rules allow: they tell programs to look for
/// resolvers elsewhere (Mozilla's canary domain; RFC 9462, 4).
pub(super) const ELSEWHERE: [&str; 2] = ["use-application-dns.net", "_dns.resolver.arpa"];

/// Text of a permission for which no rule was needed.
const DEFAULT: &str = "default";

/// Longest echo request to a host that is allowed by name, in bytes: a header and 64 bytes, eight more than
/// ping(8) sends. Echo requests carry data out, to a host that the owner of a zone chooses.
const PING_LEN_MAX: usize = 8 + 64;
/// Echo requests in a second to such hosts, all together.
const PINGS: FlowRate = FlowRate { per_second: 10, burst: 10 };

/// Verdict on a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum QuestionVerdict {
    /// A resolver may be asked, unless a bound refuses that; the permission is noted then. None of a refusal
    /// that is only observed.
    Ask(Option<Permission>),
    /// No records of this type, for this reason; without one it is no decision of the policy's.
    NoData(Option<Arc<str>>),
    /// A person is asked: no answer yet.
    Wait,
    /// The name does not exist, by this rule or reason; without one it is no decision of the policy's.
    NxDomain(Option<Arc<str>>),
}

/// Permission to ask or to open a flow, by a rule or by default. It is noted once nothing else refuses, and
/// the rules may have changed by then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Permission {
    /// Text of the rule.
    rule: Option<Arc<str>>,
    /// Number of the policy that has it.
    generation: u64,
}

/// Verdict on a new flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FlowVerdict {
    /// It may be opened, unless a limit refuses that; the permission is noted then. None of a refusal that is
    /// only observed, and of what no shared policy judges.
    Open(Option<Permission>),
    /// It may be opened, and its first bytes are to name an allowed server.
    Gate(Checks),
    /// A person is asked: no answer yet.
    Wait,
    /// Refused by this rule or reason.
    Refuse(Arc<str>),
}

/// A policy, for all workers of one guest.
pub struct SharedPolicy {
    state: Mutex<State>,
    /// Whether a rule in force has limits.
    limiting: AtomicBool,
}

struct State {
    hash: SecretHash,
    /// Number of the last change.
    generation: u64,
    rules: Arc<Ruleset>,
    pins: Pins,
    wildcards: Wildcards,
    /// Used of the limits, in their order.
    usage: Vec<Arc<Usage>>,
    /// Time of the change since which there are limits.
    limiting_since: Instant,
    questions: Bucket,
    pings: Bucket,
    asking: Asking,
    reasons: Vec<Arc<str>>,
    /// Host entries: pins for ever, as far as [`Ruleset::is_pinned`].
    host_names: Vec<(DomainName, IpAddr)>,
    /// Everything is refused.
    lockdown: bool,
    /// Nothing is refused, except by a lockdown: what would be is noted.
    observes: bool,
    refusals: Refusals,
    tally: Tally,
    totals: RuleTotals,
    /// Time for which gates were closed before they opened, in all.
    gate_time: Duration,
    /// Every decision, for an audit log, if there is one.
    trail: Option<Trail>,
}

impl State {
    fn reason(&self, text: &str) -> Arc<str> {
        self.reasons.iter().find(|reason| &***reason == text).map_or_else(|| text.into(), Arc::clone)
    }

    /// Keeps a decision about what the guest has begun at this address of its own.
    fn note(&mut self, now: Instant, guest: SocketAddr, decision: Decision, particulars: Particulars) {
        self.tally.count(decision.stage, decision.ruling, &decision.reason);
        self.keep(now, guest, self.generation, decision, particulars);
    }

    /// Keeps a decision of the policy of this generation.
    fn keep(
        &mut self,
        now: Instant,
        guest: SocketAddr,
        generation: u64,
        decision: Decision,
        particulars: Particulars,
    ) {
        if let Some(trail) = &mut self.trail {
            let (pins, remote) = (&self.pins, decision.remote);
            let pinned =
                || remote.map(|remote| pins.texts_of(remote.ip(), now, PINNED_MAX)).unwrap_or_default();
            let occasion = || Occasion { at: now, guest: Some(guest), pinned: pinned() };
            trail.note(generation, &decision, particulars, occasion);
        }
        // The end of an open flow follows from a change, and asks for no rule. Inbound flows are not
        // the guest's doing.
        if decision.ruling != Ruling::Allowed && !matches!(decision.stage, Stage::End | Stage::Inbound) {
            self.refusals.note(decision);
        }
    }

    /// Permission by `rule`, or by default.
    fn permission(&self, rule: Option<RuleNumber>) -> Permission {
        let rule = rule.and_then(|rule| self.rules.allow_text(rule));
        Permission { rule, generation: self.generation }
    }

    /// Counts a permission, and keeps it if there is a trail.
    fn note_allowed(
        &mut self,
        now: Instant,
        guest: SocketAddr,
        stage: Stage,
        Permission { rule, generation }: Permission,
        decision: impl FnOnce(Arc<str>) -> (Decision, Particulars),
    ) {
        self.tally.count_allowed(stage);
        if self.trail.is_some() {
            let text = rule.map_or_else(|| DEFAULT.into(), |rule| format!("allow {rule}").into());
            let (decision, particulars) = decision(text);
            self.keep(now, guest, generation, decision, particulars);
        }
    }

    fn lockdown(&self) -> Option<Arc<str>> {
        self.lockdown.then(|| self.reason(reason::LOCKDOWN))
    }

    /// Pins the host entries that a rule names.
    fn pin_host_names(&mut self) {
        for (name, address) in &self.host_names {
            let matches = self.rules.matches(name);
            if self.rules.is_pinned(&matches) {
                // Host entries beyond the bounds of a table this large are none that a person wrote.
                let _ = self.pins.pin(Instant::ZERO, name, &matches, *address, Instant::from_ns(u64::MAX));
            }
        }
    }

    /// Verdict of the rules on a question.
    fn question(&mut self, now: Instant, name: &Name<'_>, qtype: u16) -> QuestionVerdict {
        if let Some(reason) = self.lockdown() {
            return QuestionVerdict::NxDomain(Some(reason));
        }
        let Self { rules, pins, wildcards, .. } = self;
        let text = DomainName::of_wire(name);
        let is_elsewhere = text.as_ref().is_some_and(|text| ELSEWHERE.contains(&text.as_str()));
        let matches = text.as_ref().map(|text| rules.matches(text));
        let reverse = (qtype == PTR).then(|| name.reverse()).flatten();
        let pinned = reverse.is_some_and(|address| pins.has(address, now));
        let allowing = matches.as_ref().and_then(|matches| matches.rule);
        match rules.question(matches.as_ref(), qtype, reverse, pinned) {
            Answer::NxDomain(Ground::Deny(rule)) => {
                QuestionVerdict::NxDomain(Some(self.ground(Ground::Deny(rule))))
            }
            _ if is_elsewhere => QuestionVerdict::NxDomain(None),
            // Programs ask for service bindings beside each address, and no policy has them.
            Answer::NoData if SERVICE_BINDINGS.contains(&qtype) => QuestionVerdict::NoData(None),
            Answer::NoData => QuestionVerdict::NoData(Some(self.reason(reason::QUESTION_TYPE))),
            Answer::NxDomain(_) => {
                let reason = self.reason(reason::QUESTION);
                let refusal = || Decision::on_question(name_of(name), reason.clone(), Ruling::Denied);
                if self.asks_about(now, refusal) {
                    return QuestionVerdict::Wait;
                }
                QuestionVerdict::NxDomain(Some(reason))
            }
            Answer::Ask => {
                let bounded = matches.as_ref().filter(|matches| matches.by_wildcard).and_then(|m| m.rule);
                if let (Some(rule), Some(name)) = (bounded.and_then(|rule| rules.allow_text(rule)), &text)
                    && !pins.has_name(name)
                    && !wildcards.take(now, &rule, name, rules.source().names_per_wildcard)
                {
                    return QuestionVerdict::NxDomain(Some(self.reason(reason::NAMES_PER_WILDCARD)));
                }
                QuestionVerdict::Ask(Some(self.permission(allowing)))
            }
        }
    }

    fn question_allowed(
        &mut self,
        now: Instant,
        guest: SocketAddr,
        Question { name, qtype, .. }: &Question<'_>,
        permission: Permission,
    ) {
        self.note_allowed(now, guest, Stage::Question, permission, |rule| {
            let asked = Decision::on_question(name_of(name), rule, Ruling::Allowed);
            (asked, Particulars::of_question(*qtype))
        });
    }

    /// Verdict of the rules on a new flow.
    fn opening(&mut self, now: Instant, flow: &NewFlow<'_>) -> FlowVerdict {
        if let Some(reason) = self.lockdown() {
            return FlowVerdict::Refuse(reason);
        }
        let opening = self.rules.opening(flow, &self.pins.names_of(flow.remote.ip(), now));
        match opening {
            Opening::Open(rule) => {
                if let Some(reason) = rule.and_then(|rule| self.spent(rule, true)) {
                    return FlowVerdict::Refuse(reason);
                }
                FlowVerdict::Open(Some(self.permission(rule)))
            }
            Opening::Gate(checks) => FlowVerdict::Gate(checks),
            Opening::Refuse(ground) => {
                let reason = self.ground(ground);
                let refusal =
                    || Decision::on_flow(flow.protocol, flow.judged(), reason.clone(), Ruling::Denied);
                if !matches!(ground, Ground::Deny(_)) && self.asks_about(now, refusal) {
                    return FlowVerdict::Wait;
                }
                FlowVerdict::Refuse(reason)
            }
        }
    }

    /// Whether a refusal waits for a person's answer.
    fn asks_about(&mut self, now: Instant, refusal: impl FnOnce() -> Decision) -> bool {
        self.rules.source().asks && !self.observes && self.asking.waits(now, &refusal())
    }

    /// The limits of an allow rule with what is used of them.
    fn usage(&self, rule: RuleNumber) -> Option<&Arc<Usage>> {
        self.rules.limits_of(rule).and_then(|place| self.usage.get(place))
    }

    /// The reason for which an allow rule has no room for one more flow (`opens`), or for an open one.
    fn spent(&self, rule: RuleNumber, opens: bool) -> Option<Arc<str>> {
        let usage = self.usage(rule)?;
        if usage.is_exhausted() {
            Some(self.reason(reason::QUOTA))
        } else if opens && usage.is_full() {
            Some(self.reason(reason::FLOWS))
        } else {
            None
        }
    }

    /// The rule that allows a name at a gate, none if the default does.
    fn allowing_name(
        &self,
        now: Instant,
        remote: SocketAddr,
        private: bool,
        Said { named: Named { class, name, encrypted }, .. }: Said<'_>,
    ) -> Result<Option<RuleNumber>, Arc<str>> {
        let name = DomainName::parse(name).ok_or(reason::NAME)?;
        let (matches, port) = (self.rules.matches(&name), remote.port());
        if let Some(rule) = self.rules.denying(&matches, *class, port) {
            return Err(self.ground(Ground::Deny(rule)));
        }
        let Some(rule) = self.rules.allowing(&matches, *class, port, private) else {
            // The gate is there for a name that is denied, or for the limits of one that is allowed.
            let by_default = self.rules.opens_by_default(private);
            return by_default.then_some(None).ok_or_else(|| reason::NAME.into());
        };
        if *encrypted && !self.rules.allows_ech(&matches, *class, port) {
            return Err(reason::ECH.into());
        }
        // Where all else is allowed a name needs no pin: the gate is there for another one.
        if self.rules.opens_by_default(private) || self.pins.is_pinned_as(&name, remote.ip(), now) {
            Ok(Some(rule))
        } else {
            Err(reason::NAME_ELSEWHERE.into())
        }
    }

    /// The rule that allows an open flow, none if the default does; `named` is the server that it has named.
    /// One without a gate may have been open before DNS gave its address for a name that is denied.
    fn allowing_open(
        &self,
        now: Instant,
        flow: &NewFlow<'_>,
        named: Option<&Named>,
    ) -> Result<Option<RuleNumber>, Arc<str>> {
        match self.rules.opening(flow, &self.pins.names_of(flow.remote.ip(), now)) {
            Opening::Open(rule) => Ok(rule),
            Opening::Refuse(ground) => Err(self.ground(ground)),
            Opening::Gate(checks) => match named {
                Some(named) => self.allowing_name(now, flow.remote, checks.private, Said::again(named)),
                None if self.rules.opens_by_default(checks.private) => Ok(None),
                None => Err(self.reason(reason::NAME)),
            },
        }
    }

    fn ground(&self, ground: Ground) -> Arc<str> {
        match ground {
            Ground::Deny(rule) => self.rules.deny_text(rule).unwrap_or_default(),
            Ground::Private => self.reason(reason::PRIVATE),
            Ground::Default => self.reason(reason::DEFAULT),
            Ground::NotGivenByDns => self.reason(reason::NOT_GIVEN_BY_DNS),
        }
    }
}

/// A name of the guest's as text, without final dot.
fn name_of(name: &Name<'_>) -> Box<str> {
    name.to_string().trim_end_matches('.').into()
}

fn bucket(rate: FlowRate) -> Bucket {
    let interval = 1_000_000_000 / u64::from(rate.per_second.max(1));
    Bucket::new(Duration::from_nanos(interval), rate.burst)
}

impl SharedPolicy {
    /// A policy with `rules`, and no pins. `host_names` are host entries: pins for ever, as far as a rule
    /// names them. `secret` is that of the hashes of what the guest chooses: random bytes.
    pub fn new(rules: Ruleset, host_names: &[(String, IpAddr)], secret: [u8; 16]) -> Self {
        let hash = SecretHash(secret);
        let host_names = host_names
            .iter()
            .filter_map(|(name, address)| Some((DomainName::parse(name.as_bytes())?, *address)));
        let mut state = State {
            hash,
            pins: Pins::default(),
            host_names: host_names.collect(),
            lockdown: false,
            observes: false,
            refusals: Refusals::new(hash),
            tally: Tally::default(),
            totals: RuleTotals::default(),
            gate_time: Duration::ZERO,
            generation: 1,
            trail: None,
            wildcards: Wildcards::new(hash),
            usage: rules.usage(&[]),
            limiting_since: Instant::ZERO,
            questions: bucket(rules.source().questions),
            pings: bucket(PINGS),
            asking: Asking::default(),
            rules: Arc::new(rules),
            reasons: reason::ALL.into_iter().chain(reason::AT_GATE).map(Arc::from).collect(),
        };
        state.pin_host_names();
        let limiting = AtomicBool::new(!state.usage.is_empty());
        Self { state: Mutex::new(state), limiting }
    }

    /// Only observes, or enforces: what would be refused passes and is noted.
    pub fn set_observing(&self, observes: bool) {
        let mut state = self.state();
        state.observes = observes;
        self.limiting.store(!observes && !state.usage.is_empty(), Relaxed);
    }

    /// Whether it only observes.
    pub fn is_observing(&self) -> bool {
        self.state().observes
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The rules in force.
    pub fn rules(&self) -> Arc<Ruleset> {
        self.state().rules.clone()
    }

    /// Replaces the rules at `now`, all at once; with `lockdown` everything is refused, whatever they say.
    /// Pins of names that the new rules name stay. Open flows go on until they are reviewed
    /// ([`crate::stack::Stack::review`]).
    pub fn set(&self, now: Instant, rules: Ruleset, lockdown: bool) {
        let next = self.generation() + 1;
        self.set_numbered(now, rules, lockdown, next);
    }

    /// The same, with the number of this change.
    pub fn set_numbered(&self, now: Instant, rules: Ruleset, lockdown: bool, generation: u64) {
        let mut state = self.state();
        state.generation = generation;
        state.asking.rules_changed(now);
        state.pins.follow(&rules);
        if state.rules.source().questions != rules.source().questions {
            state.questions = bucket(rules.source().questions);
        }
        state.wildcards.rules_changed(now);
        let usage = rules.usage(&state.usage);
        if state.usage.is_empty() {
            state.limiting_since = now;
        }
        self.limiting.store(!state.observes && !usage.is_empty(), Relaxed);
        state.usage = usage;
        state.rules = Arc::new(rules);
        state.lockdown = lockdown;
        state.pin_host_names();
    }

    /// Number of the last change; the first rules are number 1.
    pub fn generation(&self) -> u64 {
        self.state().generation
    }

    /// Flows that have ended, by rule.
    pub fn rule_totals(&self) -> Vec<(Arc<str>, RuleTotal)> {
        self.state().totals.all()
    }

    /// Time for which gates were closed before they opened, in all.
    pub fn gate_time(&self) -> Duration {
        self.state().gate_time
    }

    /// Pins that made room for others.
    pub fn pins_evicted(&self) -> u64 {
        self.state().pins.evicted
    }

    /// The reason by which everything is refused, if it is.
    pub(crate) fn lockdown(&self) -> Option<Arc<str>> {
        self.state().lockdown()
    }

    /// Refusals, the latest last; left out are those that made room.
    pub fn refusals(&self) -> Kept {
        self.state().refusals.all()
    }

    /// The last refusals, the latest first, at most so many.
    pub fn last_refusals(&self, most: usize) -> Vec<Counted> {
        self.state().refusals.last(most)
    }

    /// Names for which DNS has given the guest this address, at most so many.
    pub fn names_of(&self, address: IpAddr, now: Instant, most: usize) -> Vec<Box<str>> {
        self.state().pins.texts_of(address, now, most)
    }

    /// Number of decisions, by step, verdict and word.
    pub fn tally(&self) -> Vec<Tallied> {
        self.state().tally.all()
    }

    /// Notes every decision from now on, for [`SharedPolicy::take_trail`].
    pub fn keep_trail(&self) {
        let mut state = self.state();
        state.trail = Some(Trail::new(state.hash));
    }

    /// Whether every decision is noted.
    pub fn has_trail(&self) -> bool {
        self.state().trail.is_some()
    }

    /// The decisions since the last call; left out are those beyond the bound. `None` if none are kept.
    pub fn take_trail(&self) -> Option<Trailed> {
        self.state().trail.as_mut().map(Trail::take)
    }

    /// Notes a decision about what the guest has begun at this address of its own.
    pub(crate) fn note(&self, now: Instant, guest: SocketAddr, decision: Decision, particulars: Particulars) {
        self.state().note(now, guest, decision, particulars);
    }

    /// Verdict on a question.
    pub(crate) fn question(
        &self,
        now: Instant,
        guest: SocketAddr,
        name: &Name<'_>,
        qtype: u16,
    ) -> QuestionVerdict {
        let mut state = self.state();
        match state.question(now, name, qtype) {
            QuestionVerdict::NxDomain(Some(reason)) | QuestionVerdict::NoData(Some(reason))
                if state.observes && !state.lockdown =>
            {
                let refusal = Decision::on_question(name_of(name), reason, Ruling::WouldDeny);
                state.note(now, guest, refusal, Particulars::of_question(qtype));
                QuestionVerdict::Ask(None)
            }
            QuestionVerdict::NoData(None) | QuestionVerdict::NxDomain(None) if state.observes => {
                QuestionVerdict::Ask(None)
            }
            verdict => verdict,
        }
    }

    /// Notes that a question was let pass which needs no resolver.
    pub(crate) fn question_allowed(
        &self,
        now: Instant,
        guest: SocketAddr,
        question: &Question<'_>,
        permission: Permission,
    ) {
        self.state().question_allowed(now, guest, question, permission);
    }

    /// Whether one more question may leave now; its permission is noted if it does.
    pub(crate) fn may_ask(
        &self,
        now: Instant,
        guest: SocketAddr,
        question: &Question<'_>,
        permission: Option<Permission>,
    ) -> bool {
        let mut state = self.state();
        let may = state.questions.take(now) || state.observes;
        if let Some(permission) = permission.filter(|_| may) {
            state.question_allowed(now, guest, question, permission);
        }
        may
    }

    /// Whether an echo request of so many bytes, header included, may leave now: to an address that is
    /// allowed by name alone, within bounds. One that may not is a decision.
    pub(crate) fn may_ping(&self, now: Instant, key: &FlowKey, len: usize) -> bool {
        let address = key.remote.ip();
        let mut state = self.state();
        let by_name = state.pins.names_of(address, now).next().is_some();
        let bounded = !state.observes && by_name && !state.rules.allows_ping(address);
        let may = !bounded || (len <= PING_LEN_MAX && state.pings.take(now));
        if !may {
            let reason = state.reason(reason::PING);
            let refusal = Decision::on_flow(key.protocol, key.remote.into(), reason, Ruling::Denied);
            state.note(now, key.guest.into(), refusal, Particulars::default());
        }
        may
    }

    /// Pins the addresses of an answer that is about to go to the guest, as far as they are `wanted`.
    ///
    /// # Errors
    /// [`Full`] if there is no room for one of them.
    pub(crate) fn pin(
        &self,
        now: Instant,
        message: &[u8],
        wanted: impl Fn(IpAddr) -> bool,
    ) -> Result<(), Full> {
        let name = Question::parse(message).and_then(|question| DomainName::of_wire(&question.name));
        let Some(name) = name else { return Ok(()) };
        let mut state = self.state();
        let State { rules, pins, .. } = &mut *state;
        let matches = rules.matches(&name);
        if !rules.is_pinned(&matches) {
            return Ok(());
        }
        let least = rules.source().pin;
        let mut result = Ok(());
        chain::addresses(message, |address, ttl_s| {
            if wanted(address) && floor::forbids(address, false).is_none() {
                let ttl = Duration::from_secs(ttl_s.into()).min(super::PIN_MAX);
                result = result.and(pins.pin(now, &name, &matches, address, now + ttl.max(least)));
            }
        });
        result
    }

    /// Verdict on a new flow above the floor.
    pub(crate) fn opening(&self, now: Instant, flow: &NewFlow<'_>) -> FlowVerdict {
        let mut state = self.state();
        match state.opening(now, flow) {
            FlowVerdict::Refuse(reason) if state.observes && !state.lockdown => {
                let refusal = Decision::on_flow(flow.protocol, flow.judged(), reason, Ruling::WouldDeny);
                state.note(now, flow.guest, refusal, Particulars::default());
                FlowVerdict::Open(None)
            }
            FlowVerdict::Gate(checks) => FlowVerdict::Gate(Checks { observed: state.observes, ..checks }),
            verdict => verdict,
        }
    }

    /// Notes that a flow opens by this permission.
    pub(crate) fn opening_allowed(&self, now: Instant, flow: &NewFlow<'_>, permission: Permission) {
        self.state().note_allowed(now, flow.guest, Stage::Open, permission, |rule| {
            let opening = Decision::on_flow(flow.protocol, flow.judged(), rule, Ruling::Allowed);
            (opening, Particulars::default())
        });
    }

    /// Whether a flow to `remote` may go on that has said this name.
    ///
    /// # Errors
    /// The rule or reason that refuses it.
    pub(crate) fn name_at_gate(
        &self,
        now: Instant,
        guest: SocketAddr,
        remote: SocketAddr,
        private: bool,
        said: Said<'_>,
    ) -> Result<(), Arc<str>> {
        let mut state = self.state();
        // It may come before open flows are reviewed.
        if let Some(reason) = state.lockdown() {
            return Err(reason);
        }
        let rule = state.allowing_name(now, remote, private, said)?;
        if let Some(reason) = rule.and_then(|rule| state.spent(rule, said.opens)) {
            return Err(reason);
        }
        let named = said.named;
        let protocol = if named.class == Class::Quic { Protocol::Udp } else { Protocol::Tcp };
        if said.opens {
            state.gate_time += said.held;
        }
        let permission = state.permission(rule);
        state.note_allowed(now, guest, Stage::Gate, permission, |rule| {
            let said = Particulars::of_named(Some(named), &rule);
            let name = Some(String::from_utf8_lossy(&named.name).into());
            let opening = Decision::on_flow(protocol, remote, rule, Ruling::Allowed);
            (Decision { stage: Stage::Gate, name, ..opening }, said)
        });
        Ok(())
    }

    /// The rule that allows an open flow; `named` is the server that it has named at a gate. A crash leaves
    /// that unknown: then it is a rule about a name of the address, and one with limits rather than another.
    pub(crate) fn allowing(&self, now: Instant, flow: &NewFlow<'_>, named: Option<&Named>) -> Allowing {
        let state = self.state();
        let usage = |rule| state.usage(rule).cloned();
        let limits = |rule| usage(rule).map_or(Allowing::Unlimited, Allowing::Limited);
        let names = state.pins.names_of(flow.remote.ip(), now);
        if named.is_none()
            && let Opening::Gate(checks) = state.rules.opening(flow, &names)
        {
            let rules = || state.rules.behind_gate(flow, &names, checks);
            return rules().find_map(usage).map_or(Allowing::Unlimited, Allowing::Limited);
        }
        match state.allowing_open(now, flow, named) {
            Ok(rule) => rule.map_or(Allowing::Unlimited, limits),
            Err(_) if state.rules.may_limit(flow) => Allowing::Unknown,
            Err(_) => Allowing::Unlimited,
        }
    }

    /// Counts a flow that has ended under the rule that allows it.
    pub(crate) fn account(&self, now: Instant, flow: &NewFlow<'_>, named: Option<&Named>, bytes: [u64; 2]) {
        let mut state = self.state();
        if let Ok(rule) = state.allowing_open(now, flow, named) {
            let text = rule.and_then(|rule| state.rules.allow_text(rule));
            state.totals.add(text.as_deref(), bytes);
        }
    }

    /// Destinations about which a person is asked, the oldest first.
    pub fn asked(&self, now: Instant) -> Vec<Asked> {
        self.state().asking.waiting(now)
    }

    /// Refuses one of them by its number; false if there is none.
    pub fn refuse_asked(&self, now: Instant, id: u64) -> bool {
        self.state().asking.refuse(now, id)
    }

    /// The deny rule about the address of a flow that the user's own forward leads out or in.
    pub(crate) fn denied(&self, flow: &NewFlow<'_>) -> Option<Arc<str>> {
        let state = self.state();
        if let Some(reason) = state.lockdown() {
            return Some(reason);
        }
        let rule = state.rules.denying_address(flow)?;
        state.rules.deny_text(rule).filter(|_| !state.observes)
    }

    /// The rule or reason with this text, if there is one.
    pub(crate) fn known(&self, text: &str) -> Option<Arc<str>> {
        let state = self.state();
        let deny = || state.rules.deny_texts().iter().find(|deny| &***deny == text);
        state.reasons.iter().find(|reason| &***reason == text).or_else(deny).cloned()
    }

    /// Every reason, and the deny rules in force.
    pub(crate) fn texts(&self) -> Vec<Arc<str>> {
        let state = self.state();
        state.reasons.iter().chain(state.rules.deny_texts()).cloned().collect()
    }

    /// Text of a reason.
    pub(crate) fn reason(&self, text: &str) -> Arc<str> {
        self.state().reason(text)
    }

    /// A flow to an address has opened; true if its end is to be reported.
    pub(crate) fn flow_opened(&self, now: Instant, address: IpAddr) -> bool {
        self.state().pins.flow_opened(now, address)
    }

    /// A flow has ended that was reported as opened.
    pub(crate) fn flow_closed(&self, now: Instant, address: IpAddr) {
        self.state().pins.flow_closed(now, address);
    }

    /// Number of pins.
    pub fn pins(&self) -> usize {
        self.state().pins.len()
    }
}

impl std::fmt::Debug for SharedPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state();
        let rules = state.rules.source();
        let (allow, deny) = (rules.allow.len(), rules.deny.len());
        f.debug_struct("SharedPolicy").field("allow", &allow).field("deny", &deny).finish_non_exhaustive()
    }
}

/// Equal if the rules in force are.
impl PartialEq for SharedPolicy {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other) || self.rules() == other.rules()
    }
}

impl Eq for SharedPolicy {}
