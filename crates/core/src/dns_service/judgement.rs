//! Questions and answers under a policy.
//!
//! *Questions* are judged by the rules ([`crate::policy`]) before a resolver hears of them: one that no rule
//! names gets an answer of brodo's own, at once. A question that leaves is brodo's own as well: the name in
//! brodo's letters, the type, and an OPT record without options. Nothing else of the guest's message reaches
//! a resolver, so EDNS options, identifiers, letter case and further records carry nothing out.
//!
//! *Answers* are cut down to the part that answers: the answer section, or for an empty answer the
//! authority section, which has the time for which it holds. An answer longer than the guest takes over UDP
//! keeps the records that fit and is marked as truncated; programs that do not repeat the query over TCP have
//! use of these. Its addresses are pinned before it is sent; if there is no room for them the guest gets
//! SERVFAIL. Addresses that stand for the host's are pinned for host entries alone: the owner of another zone
//! would choose what the guest reaches on the host (DNS rebinding).

use super::{answer_error, give};
use crate::context::{Cx, Platform, Shared};
use crate::counters::DropReason;
use crate::destination;
use crate::flow::FlowKey;
use crate::policy::{Permission, QuestionVerdict, Telling, cut, reason};
use crate::wire::dns::Rcode;
use crate::wire::dns::message::{CANONICAL_LEN_MAX, IN, Query, Reply, cut_answer};
use std::sync::Arc;

/// Lifetime of brodo's own negative answers in seconds: a policy may change.
const NEGATIVE_TTL_S: u32 = 5;
/// Extended error: the name is blocked by policy (RFC 8914, 4.16).
const BLOCKED: u16 = 15;
/// Room for a negative answer with its extended error.
const REPLY_LEN_MAX: usize = Reply::EMPTY_LEN_MAX + 640;
/// Longest text of an extended error, in bytes: a name, some words and a note.
const TEXT_LEN_MAX: usize = 500;

/// Outcome of the judgement of a question.
pub(super) enum Judged {
    /// There is no policy, or it lets a resolver be asked: by this permission, to be noted when it is.
    Ask(Option<Permission>),
    /// It was answered.
    Answered,
    /// It is not answered yet: a person is asked.
    Wait,
    /// It was refused, by this rule or reason.
    Refused(Arc<str>),
}

/// Judges a question of the guest's and answers one that is not asked.
pub(super) fn judge<P: Platform>(cx: &mut Cx<'_, P>, key: &FlowKey, query: &Query<'_>) -> Judged {
    let Some(policy) = cx.shared.config.rules.shared.clone() else { return Judged::Ask(None) };
    let error = match (query.header.opcode(), query.question.qclass) {
        (0, IN) => None,
        (0, _) => Some(Rcode::Refused),
        _ => Some(Rcode::NotImp),
    };
    if let Some(rcode) = error {
        answer_error(cx, key, query.message, rcode);
        return Judged::Refused(policy.reason(reason::QUESTION_FORM));
    }
    match policy.question(cx.now, key.guest.into(), &query.question.name, query.question.qtype) {
        QuestionVerdict::Ask(permission) => Judged::Ask(permission),
        QuestionVerdict::Wait => Judged::Wait,
        QuestionVerdict::NoData(reason) => {
            negative(cx, key, query, 0, None);
            reason.map_or(Judged::Answered, Judged::Refused)
        }
        QuestionVerdict::NxDomain(None) => {
            negative(cx, key, query, Rcode::NxDomain as u16, None);
            Judged::Answered
        }
        QuestionVerdict::NxDomain(Some(text)) => {
            let rules = policy.rules();
            negative(cx, key, query, Rcode::NxDomain as u16, Some((&text, &rules.source().telling)));
            Judged::Refused(text)
        }
    }
}

/// Notes that a question of this permission was answered without a resolver.
pub(super) fn answered<P: Platform>(
    cx: &Cx<'_, P>,
    key: &FlowKey,
    query: &Query<'_>,
    permission: Option<Permission>,
) {
    if let (Some(policy), Some(permission)) = (&cx.shared.config.rules.shared, permission) {
        policy.question_allowed(cx.now, key.guest.into(), &query.question, permission);
    }
}

/// Takes a question of this permission off the rate of the policy, or of `--max-questions`.
///
/// # Errors
/// The reason for which it may not leave now.
pub(super) fn may_ask<P: Platform>(
    cx: &mut Cx<'_, P>,
    key: &FlowKey,
    query: &Query<'_>,
    permission: Option<Permission>,
) -> Result<(), DropReason> {
    let (may, reason) = match &cx.shared.config.rules.shared {
        Some(policy) => {
            let may = policy.may_ask(cx.now, key.guest.into(), &query.question, permission);
            (may, DropReason::Denied)
        }
        None => (cx.shared.dns.rate.take(cx.now), DropReason::QuestionRate),
    };
    if may { Ok(()) } else { Err(reason) }
}

/// The question that brodo asks in the place of `query`: `buffer` has its bytes.
pub(crate) fn canonical<'a>(query: &Query<'_>, buffer: &'a mut [u8; CANONICAL_LEN_MAX]) -> Option<Query<'a>> {
    let len = query.canonical(buffer);
    Query::parse(&buffer[..len]).ok()
}

/// Sends an answer without records; `refusal` is the rule or reason that refused the question, and the part
/// of it that is reported.
pub(super) fn negative<P: Platform>(
    cx: &mut Cx<'_, P>,
    key: &FlowKey,
    query: &Query<'_>,
    rcode: u16,
    refusal: Option<(&str, &Telling)>,
) {
    let mut out = [0; REPLY_LEN_MAX];
    let mut reply = Reply::new(query, rcode, &mut out);
    reply.push_negative_soa(NEGATIVE_TTL_S);
    let text = refusal.and_then(|(by, telling)| {
        let name = query.question.name.to_string();
        let name = name.strip_suffix('.').unwrap_or(&name);
        let reason = telling.reason(by)?;
        let mut text = match (reason, reason.strip_prefix("deny ")) {
            ("deny", _) => format!("brodo: {name} is denied"),
            (_, Some(rule)) => format!("brodo: {name} is denied by {rule}"),
            (_, None) => format!("brodo: no rule names {name} ({reason})"),
        };
        if !telling.note.is_empty() {
            text = format!("{text}: {}", telling.note);
        }
        Some(cut(&text, TEXT_LEN_MAX).to_owned())
    });
    let len = match &text {
        Some(text) => reply.finish_with_error(BLOCKED, text),
        None => reply.finish(),
    };
    give(cx, key, &out[..len]);
}

/// Pins the addresses of an answer and cuts it down to `limit` bytes; `None` if there is no room for its
/// pins, or if it cannot be read. Without a policy there is nothing to do here.
pub(super) fn admit<P: Platform>(
    cx: &mut Cx<'_, P>,
    query: &Query<'_>,
    limit: usize,
    message: &[u8],
) -> Option<Vec<u8>> {
    let policy = cx.shared.config.rules.shared.as_ref()?;
    let cut = cut_answer(query, message, limit)?;
    let Shared { config, dns, .. } = &*cx.shared;
    let is_host = dns.hosts.has(&query.question.name);
    policy.pin(cx.now, &cut, |address| is_host || !destination::is_mapped(config, address)).ok()?;
    Some(cut)
}
