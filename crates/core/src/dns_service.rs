//! DNS service: queries to the DNS address are answered here, or by the host's resolvers.
//!
//! *Queries* over UDP are answered from the host entries ([`hosts`]), else from the cache ([`cache`]), else
//! by one of the host's resolvers. Pending queries are kept per guest port ([`flow`]), each with its own
//! deadline, over one connected socket for each resolver queried. A flow ends with its last query.
//!
//! *Resolvers.* The first in the order of preference is queried. After a second of silence, a failure answer
//! or an unreachable resolver the next one is queried as well, and the first good answer counts
//! ([`preference`]). A query without any answer in time gets SERVFAIL, which spares the guest its own
//! time-out.
//!
//! *Trust.* An answer counts only if it arrives on the connected socket that sent the query, with its ID and
//! its question letter by letter, which are brodo's own draw ([`question`], [`entropy`]). Equal queries of
//! several programs are one. The guest gets its own ID and letters back; of the rest only a TTL is counted
//! down, and an answer longer than the guest takes is truncated to its header (TC), so that the guest repeats
//! the query over TCP.
//!
//! *TCP.* Connections to the DNS address lead to the preferred resolver; if it refuses, to the next. The
//! service reads and writes both streams ([`crate::connection::dns_stream`]), and each query goes the way of
//! those over UDP as far as the resolver.
//!
//! *Deny rules that leave no destination* leave no question either: bytes go out in the labels of a name as
//! well as in a datagram. Names of host entries have their answers; all others do not exist.
//!
//! *Bounds.* Pending queries, their bytes, sockets, bytes of the cache, and learnt names each have a bound. A
//! query beyond it evicts the oldest of the port with the most ([`askers`]), which is answered with SERVFAIL
//! and counted ([`DropReason::DnsOverload`]).
//!
//! *Time.* Records expire while the machine is suspended, too; pending queries do not.
//!
//! State shared by all queries, without the context: [`crate::dns`].
//!
//! [`hosts`]: crate::dns
//! [`cache`]: crate::dns
//! [`preference`]: crate::dns
//! [`question`]: crate::dns::question
//! [`entropy`]: crate::dns::question
//! [`askers`]: crate::dns::askers
//! [`DropReason::DnsOverload`]: crate::counters::DropReason::DnsOverload

pub(crate) mod flow;
pub(crate) mod judgement;
mod refusals;

use crate::context::{Cx, Platform, Shared};
use crate::counters::DropReason;
use crate::egress::headers::ip_header_len;
use crate::flow::{FlowKey, Protocol};
use crate::link::NoCredit;
use crate::policy::RefusedQuestion;
use crate::time::Instant;
use crate::wire::dns::message::{CANONICAL_LEN_MAX, KEY_LEN_MAX, Query, Reply};
use crate::wire::dns::{self, Rcode};
use crate::wire::udp::UdpHeader;
use judgement::Judged;
pub(crate) use judgement::canonical;
use std::io::IoSlice;

/// Longest query accepted, in bytes. With all options in use queries have some hundred.
pub(crate) const QUERY_LEN_MAX: usize = 2048;

/// Parses a query of the guest; a malformed one is answered with FORMERR.
///
/// # Errors
/// [`DropReason::MalformedDns`] for a message that is not a query with one question.
pub(crate) fn read<'a, P: Platform>(
    cx: &mut Cx<'_, P>,
    key: &FlowKey,
    message: &'a [u8],
) -> Result<Query<'a>, DropReason> {
    cx.shared.counters.dns_questions += 1;
    match Query::parse(message) {
        Ok(query) if message.len() <= QUERY_LEN_MAX => Ok(query),
        _ => {
            answer_error(cx, key, message, Rcode::FormErr);
            Err(DropReason::MalformedDns)
        }
    }
}

/// Answers a message with an error, if it can be answered at all.
pub(crate) fn answer_error<P: Platform>(cx: &mut Cx<'_, P>, key: &FlowKey, message: &[u8], error: Rcode) {
    let mut out = [0; dns::ERROR_REPLY_LEN_MAX];
    if let Some(len) = dns::error_reply(message, error, &mut out) {
        give(cx, key, &out[..len]);
    }
}

/// Outcome of a query before a resolver is asked.
pub(crate) enum Taken<'a> {
    /// It was answered.
    Answered,
    /// A resolver is to be asked this: the query itself, or under a policy one of brodo's own.
    Ask(Query<'a>),
}

/// Answers a query without a resolver if host entries, the policy or the cache can. `own` is room for the
/// query that a resolver is asked, `scratch` for any message.
///
/// # Errors
/// The policy refuses the query; it was answered.
pub(crate) fn take<'a, P: Platform>(
    cx: &mut Cx<'_, P>,
    key: &FlowKey,
    query: &Query<'a>,
    own: &'a mut [u8; CANONICAL_LEN_MAX],
    scratch: &mut [u8],
) -> Result<Taken<'a>, RefusedQuestion> {
    let refused = |by| {
        let name = query.question.name.to_string().trim_end_matches('.').into();
        let qtype = query.question.qtype;
        RefusedQuestion { by, name, qtype, guest: key.guest.into(), reason: DropReason::Denied }
    };
    if answer_from_hosts(cx, key, query, scratch) {
        return Ok(Taken::Answered);
    }
    if cx.shared.dns.is_closed {
        judgement::negative(cx, key, query, Rcode::NxDomain as u16, None);
        return Err(refused(None));
    }
    let (mut asked, mut permission) = (*query, None);
    if refusals::answer(cx, key, query, scratch) {
        return Ok(Taken::Answered);
    }
    if cx.shared.config.rules.shared.is_some() {
        match judgement::judge(cx, key, query) {
            Judged::Ask(by) => permission = by,
            Judged::Answered => return Ok(Taken::Answered),
            Judged::Wait => {
                // Programs repeat a question over UDP, and not over TCP.
                if key.protocol == Protocol::Tcp {
                    refuse(cx, key, query);
                }
                return Err(RefusedQuestion { reason: DropReason::PolicyAsks, ..refused(None) });
            }
            Judged::Refused(text) => return Err(refused(Some(text))),
        }
        let malformed = RefusedQuestion { reason: DropReason::MalformedDns, ..refused(None) };
        asked = canonical(query, own).ok_or(malformed)?;
    }
    if answer_from_cache(cx, key, query, &asked, scratch) {
        judgement::answered(cx, key, query, permission);
        return Ok(Taken::Answered);
    }
    if let Err(reason) = judgement::may_ask(cx, key, query, permission) {
        refuse(cx, key, query);
        return Err(RefusedQuestion { reason, ..refused(None) });
    }
    Ok(Taken::Ask(asked))
}

/// Answers a query from host entries. `scratch` has room for any message.
fn answer_from_hosts<P: Platform>(
    cx: &mut Cx<'_, P>,
    key: &FlowKey,
    query: &Query<'_>,
    scratch: &mut [u8],
) -> bool {
    let Some(len) = cx.shared.dns.hosts.answer(query, scratch) else { return false };
    cx.shared.counters.dns_host_entries += 1;
    let limit = answer_len_max(cx.shared, cx.now, key, query);
    answer_now(cx, key, limit, query, &scratch[..len]);
    true
}

/// Answers a query from the cache, where `asked` has the answer: the question that a resolver would be asked.
/// `scratch` has room for any message.
fn answer_from_cache<P: Platform>(
    cx: &mut Cx<'_, P>,
    key: &FlowKey,
    query: &Query<'_>,
    asked: &Query<'_>,
    scratch: &mut [u8],
) -> bool {
    let mut own = [0; KEY_LEN_MAX];
    if !asked.is_ordinary() {
        return false;
    }
    let own_len = asked.key(&mut own);
    let now = cx.shared.dns.record_time(cx.now);
    let Some(len) = cx.shared.dns.cache.get(&own[..own_len], now, scratch) else { return false };
    query.adopt(&mut scratch[..len]);
    cx.shared.counters.dns_cached += 1;
    let limit = answer_len_max(cx.shared, cx.now, key, query);
    answer_now(cx, key, limit, query, &scratch[..len]);
    true
}

/// Answers a query of a connection with a resolver's answer.
pub(crate) fn give_answer<P: Platform>(cx: &mut Cx<'_, P>, key: &FlowKey, query: &Query<'_>, message: &[u8]) {
    let limit = answer_len_max(cx.shared, cx.now, key, query);
    answer_now(cx, key, limit, query, message);
}

/// Answers a query, without repetition: without credit of the link the answer is lost, and the guest repeats
/// its query.
fn answer_now<P: Platform>(
    cx: &mut Cx<'_, P>,
    key: &FlowKey,
    limit: usize,
    query: &Query<'_>,
    message: &[u8],
) {
    if answer(cx, key, limit, query, message).is_err() {
        cx.shared.counters.drop(DropReason::LinkFull);
    }
}

/// Answers a query with SERVFAIL.
pub(crate) fn refuse<P: Platform>(cx: &mut Cx<'_, P>, key: &FlowKey, query: &Query<'_>) {
    cx.shared.counters.dns_unanswered += 1;
    let mut out = [0; Reply::EMPTY_LEN_MAX];
    let len = Reply::new(query, Rcode::ServFail as u16, &mut out).finish();
    give(cx, key, &out[..len]);
}

/// Longest answer that the guest takes, in bytes: over UDP by its EDNS size, and in one packet.
fn answer_len_max(shared: &Shared, now: Instant, key: &FlowKey, query: &Query<'_>) -> usize {
    if key.protocol == Protocol::Tcp {
        return u16::MAX.into();
    }
    query.answer_len_max().min(message_len_max(shared, now, key))
}

/// Longest message in one packet, in bytes.
fn message_len_max(shared: &Shared, now: Instant, key: &FlowKey) -> usize {
    usize::from(shared.datagram_mtu(now, key.guest.ip())) - ip_header_len(key.guest.ip()) - UdpHeader::LEN
}

/// Sends the guest an answer, truncated if it is longer than `limit`, and learns its names.
fn answer<P: Platform>(
    cx: &mut Cx<'_, P>,
    key: &FlowKey,
    limit: usize,
    query: &Query<'_>,
    message: &[u8],
) -> Result<(), NoCredit> {
    if cx.shared.config.rules.shared.is_some() {
        return answer_admitted(cx, key, limit, query, message);
    }
    if message.len() <= limit {
        send(cx, key, message)?;
        cx.shared.dns.learnt.learn(message);
        return Ok(());
    }
    let mut out = [0; Reply::EMPTY_LEN_MAX];
    let rcode = dns::Header::parse(message).map_or(0, |header| u16::from(header.rcode()));
    let len = Reply::new(query, dns::TC | rcode, &mut out).finish();
    cx.shared.counters.dns_truncated += 1;
    send(cx, key, &out[..len])
}

/// Sends the guest an answer as far as the policy admits it, or SERVFAIL.
fn answer_admitted<P: Platform>(
    cx: &mut Cx<'_, P>,
    key: &FlowKey,
    limit: usize,
    query: &Query<'_>,
    message: &[u8],
) -> Result<(), NoCredit> {
    let Some(admitted) = judgement::admit(cx, query, limit, message) else {
        refuse(cx, key, query);
        return Ok(());
    };
    send(cx, key, &admitted)?;
    cx.shared.dns.learnt.learn(&admitted);
    Ok(())
}

/// Sends a message, which is lost if the link has no credit.
fn give<P: Platform>(cx: &mut Cx<'_, P>, key: &FlowKey, message: &[u8]) {
    if send(cx, key, message).is_err() {
        cx.shared.counters.drop(DropReason::LinkFull);
    }
}

/// Sends a message over UDP, or leaves it for the connection that is being served.
fn send<P: Platform>(cx: &mut Cx<'_, P>, key: &FlowKey, message: &[u8]) -> Result<(), NoCredit> {
    if key.protocol == Protocol::Tcp {
        let replies = &mut cx.shared.dns.replies;
        replies.extend((message.len() as u16).to_be_bytes());
        replies.extend(message);
        return Ok(());
    }
    if message.len() > message_len_max(cx.shared, cx.now, key) {
        // The question alone, which came in fragments.
        cx.shared.counters.dns_unanswered += 1;
        return Ok(());
    }
    cx.egress().udp(key.to_guest(), 0, &[IoSlice::new(message)], None)
}
