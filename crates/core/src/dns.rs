//! DNS as a service: questions to the DNS address are answered here, or by the host's resolvers.
//!
//! *Questions.* A question over UDP is answered from the host entries ([`hosts`]), else from the cache
//! ([`cache`]), else one of the host's resolvers is asked. Questions that wait for a resolver are kept per
//! guest port ([`flow`]), each with its own deadline, over one connected socket for each resolver that was
//! asked. A flow ends with its last question.
//!
//! *Resolvers.* The first in the order of preference is asked; if it keeps silent for a second, says that it
//! cannot or will not, or cannot be reached, the next is asked as well, and the first good answer is the one
//! ([`preference`]). A question without any answer in time gets SERVFAIL, so that the guest need not wait for
//! what will not come.
//!
//! *Trust.* An answer counts only if it comes over the socket that asked, which is connected, and if its
//! identifier and its question to the letter are those of the query, which are brodo's own draw
//! ([`question`], [`entropy`]). Questions of several programs that ask the same are one query. The guest gets
//! its own identifier and letters back; of the rest only a TTL is counted down, and what is longer than the
//! guest takes is cut to nothing, with the bit that makes it ask again over TCP.
//!
//! *TCP.* Questions over TCP are connections to the preferred resolver, relayed like any other; if it
//! refuses, to the next. Host entries are not answered there: their answers are short, so nothing leads there
//! for them.
//!
//! *Bounds.* Questions that wait, their bytes, sockets, bytes of the cache, and names that were learnt each
//! have a bound. A question beyond it takes the place of the greediest asker's oldest ([`askers`]), which is
//! answered with SERVFAIL and counted ([`DropReason::DnsOverload`]).
//!
//! *Time.* Records expire while the machine is suspended, too; pending queries do not ([`state`]).
//!
//! [`DropReason::DnsOverload`]: crate::counters::DropReason::DnsOverload

pub(crate) mod askers;
mod cache;
mod entropy;
pub(crate) mod flow;
mod hosts;
mod learnt;
mod preference;
mod question;
pub(crate) mod state;

use crate::config::Config;
use crate::context::{Cx, Platform};
use crate::counters::DropReason;
use crate::egress::headers::ip_header_len;
use crate::flow::FlowKey;
use crate::link::NoCredit;
use crate::time::Instant;
use crate::wire::dns::message::{KEY_LEN_MAX, Query, Reply};
use crate::wire::dns::{self, Rcode};
use crate::wire::udp::UdpHeader;
use std::io::IoSlice;

/// Port of DNS.
pub(crate) const PORT: u16 = 53;
/// Longest question taken, in bytes. With every option there is they have some hundred.
const QUERY_LEN_MAX: usize = 2048;

/// Reads a question of the guest's; one that cannot be read is answered with FORMERR.
///
/// # Errors
/// [`DropReason::MalformedDns`].
pub(crate) fn read<'a, P: Platform>(
    cx: &mut Cx<'_, P>,
    key: &FlowKey,
    message: &'a [u8],
) -> Result<Query<'a>, DropReason> {
    cx.shared.counters.dns_questions += 1;
    match Query::parse(message) {
        Ok(query) if message.len() <= QUERY_LEN_MAX => Ok(query),
        _ => {
            let mut out = [0; dns::ERROR_REPLY_LEN_MAX];
            if let Some(len) = dns::error_reply(message, Rcode::FormErr, &mut out) {
                give(cx, key, &out[..len]);
            }
            Err(DropReason::MalformedDns)
        }
    }
}

/// Answers a query that needs no resolver. `scratch` has room for any message.
pub(crate) fn answer_at_once<P: Platform>(
    cx: &mut Cx<'_, P>,
    (now, key): (Instant, &FlowKey),
    query: &Query<'_>,
    scratch: &mut [u8],
) -> bool {
    let limit = answer_len_max(&cx.shared.config, key, query);
    let len = if let Some(len) = cx.shared.dns.hosts.answer(query, &mut scratch[..limit]) {
        cx.shared.counters.dns_host_entries += 1;
        len
    } else {
        let mut own = [0; KEY_LEN_MAX];
        if !query.is_ordinary() {
            return false;
        }
        let own_len = query.key(&mut own);
        let now = cx.shared.dns.record_time(now);
        let Some(len) = cx.shared.dns.cache.get(&own[..own_len], now, scratch) else { return false };
        query.adopt(&mut scratch[..len]);
        cx.shared.counters.dns_cached += 1;
        len
    };
    // Without credit it is lost, and asked for again.
    if answer(cx, (key, limit), query, &scratch[..len]).is_err() {
        cx.shared.counters.drop(DropReason::LinkFull);
    }
    true
}

/// Tells the guest that its question cannot be answered.
pub(crate) fn refuse<P: Platform>(cx: &mut Cx<'_, P>, key: &FlowKey, query: &Query<'_>) {
    cx.shared.counters.dns_unanswered += 1;
    let mut out = [0; Reply::EMPTY_LEN_MAX];
    let len = Reply::new(query, Rcode::ServFail as u16, &mut out).finish();
    give(cx, key, &out[..len]);
}

/// Longest answer that the guest takes over UDP, in bytes: by its own word, and in one packet of the link.
fn answer_len_max(config: &Config, key: &FlowKey, query: &Query<'_>) -> usize {
    let packet = usize::from(config.mtu) - ip_header_len(key.guest.ip()) - UdpHeader::LEN;
    query.answer_len_max().min(packet)
}

/// Gives the guest an answer, or one that is cut if it is longer than `limit`, and learns what it says.
fn answer<P: Platform>(
    cx: &mut Cx<'_, P>,
    (key, limit): (&FlowKey, usize),
    query: &Query<'_>,
    message: &[u8],
) -> Result<(), NoCredit> {
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

/// Sends a message that is lost if the link has no credit.
fn give<P: Platform>(cx: &mut Cx<'_, P>, key: &FlowKey, message: &[u8]) {
    if send(cx, key, message).is_err() {
        cx.shared.counters.drop(DropReason::LinkFull);
    }
}

fn send<P: Platform>(cx: &mut Cx<'_, P>, key: &FlowKey, message: &[u8]) -> Result<(), NoCredit> {
    cx.egress().udp(key.to_guest(), 0, &[IoSlice::new(message)], None)
}
