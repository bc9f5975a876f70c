//! `denied.brodo.internal`: the guest's last refusals as TXT records, the latest first, so that a program in
//! the guest can ask for the reason without a socket of the host's. Under a policy that tells it.

use super::{answer_len_max, answer_now};
use crate::context::{Cx, Platform};
use crate::flow::FlowKey;
use crate::policy::{Counted, Decision, Stage, Tell, Telling, cut};
use crate::wire::dns::message::{IN, Query, Reply};
use crate::wire::dns::{AA, Name};

/// The name in wire format.
const NAME: &[u8] = b"\x06denied\x05brodo\x08internal\0";
/// Type of a text (RFC 1035).
const TXT: u16 = 16;
/// Refusals in an answer.
const REFUSALS_MAX: usize = 10;
/// Longest string in a TXT record, in bytes (RFC 1035, 3.3).
const STRING_LEN_MAX: usize = 255;

/// Answers the question for the last refusals, if it is that. `scratch` has room for any message.
pub(super) fn answer<P: Platform>(
    cx: &mut Cx<'_, P>,
    key: &FlowKey,
    query: &Query<'_>,
    scratch: &mut [u8],
) -> bool {
    let asked = &query.question;
    let is_asked = || Name::parse(NAME, 0).is_some_and(|(name, _)| name.is(&asked.name));
    if query.header.opcode() != 0 || (asked.qclass, asked.qtype) != (IN, TXT) || !is_asked() {
        return false;
    }
    let Some(policy) = cx.shared.config.rules.shared.as_ref() else { return false };
    let rules = policy.rules();
    let telling = &rules.source().telling;
    if telling.tell == Tell::Nothing {
        return false;
    }
    let refusals = policy.last_refusals(REFUSALS_MAX);
    let mut lines: Vec<_> = refusals.iter().filter_map(|refusal| line(telling, refusal)).collect();
    if lines.is_empty() {
        lines.push("nothing was refused".to_owned());
    }
    if !telling.note.is_empty() {
        lines.insert(0, telling.note.clone());
    }
    let limit = answer_len_max(cx.shared, cx.now, key, query);
    let mut reply = Reply::new(query, AA, &mut scratch[..limit]);
    for line in &lines {
        // As many as there is room for, the latest first.
        if !reply.push(TXT, 0, &string(line)) {
            break;
        }
    }
    let len = reply.finish();
    cx.shared.counters.dns_host_entries += 1;
    answer_now(cx, key, limit, query, &scratch[..len]);
    true
}

/// A refusal as a line; none if nothing is reported.
fn line(telling: &Telling, Counted { decision, count }: &Counted) -> Option<String> {
    let Decision { stage, reason, protocol, remote, name, .. } = decision;
    let mut words = vec![format!("{count}x")];
    words.extend((*stage == Stage::Question).then(|| "question".to_owned()));
    words.extend(protocol.map(|protocol| protocol.rule_word().to_owned()));
    words.extend(remote.map(|remote| remote.to_string()));
    words.extend(name.as_ref().map(ToString::to_string));
    Some(format!("{}: {}", words.join(" "), telling.reason(reason)?))
}

/// A line as a string of a TXT record, behind its length.
fn string(line: &str) -> Vec<u8> {
    let line = cut(line, STRING_LEN_MAX);
    [&[line.len() as u8], line.as_bytes()].concat()
}
