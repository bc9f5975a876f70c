//! Addresses of an answer that belong to its question: those of the queried name, and of the names that it is
//! an alias of.
//!
//! Other records, of another owner or another section, are the answer's claims about something else and are
//! left out: learnt names and pins are made of this alone.

use super::message::{CNAME, Records, Section};
use super::{Header, Question};
use std::net::IpAddr;

/// Most addresses taken from one answer.
const PER_ANSWER_MAX: usize = 64;
/// Most aliases (CNAME) followed in one answer.
const ALIASES_MAX: usize = 8;

/// Calls `take` with each address of the answer `message` and its TTL in seconds.
pub(crate) fn addresses(message: &[u8], mut take: impl FnMut(IpAddr, u32)) {
    let Some(header) = Header::parse(message).filter(|header| header.answers > 0) else { return };
    let Some(question) = Question::parse(message) else { return };
    let mut owner = question.name;
    let mut left = PER_ANSWER_MAX;
    // The queried name, and each alias.
    for _ in 0..=ALIASES_MAX {
        let mut alias = None;
        for record in Records::new(message, &header, question.end) {
            let Some(record) = record.ok().filter(|r| r.section == Section::Answer) else { break };
            if !record.name.is(&owner) {
                continue;
            }
            if let Some(address) = record.address().filter(|_| left > 0) {
                left -= 1;
                take(address, record.ttl);
            } else if record.kind == CNAME {
                alias = alias.or(record.target());
            }
        }
        match alias {
            Some(alias) => owner = alias,
            None => return,
        }
    }
}
