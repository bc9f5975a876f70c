//! A pending DNS question: its query toward the resolvers, and its askers in the guest.
//!
//! *Toward the resolvers* it is a query of brodo's own: identifier and letter case are drawn
//! ([`super::entropy`]), and an answer is one only if both are exactly as sent. *Toward the guest* each asker
//! gets its own identifier and letters back.
//!
//! *Equal questions are one query.* Were each sent, then as many identifiers would be valid at once, and a
//! thousand equal questions of one program would let a blind forger hit one of them in minutes (RFC 5452,
//! section 5).
//!
//! *Resolvers that do not keep the case of letters* are rare, but a host that has one would have no names at
//! all. An answer in which all but the case agrees is none; but its resolver is asked once more under a
//! second identifier, and an answer to that is compared without case. A forger who has hit port and first
//! identifier has thereby won only another round against 65,536 identifiers: not less than the letters of
//! most names are worth.

use super::askers::Ticket;
use super::entropy::QueryEntropy;
use crate::flow::FlowKey;
use crate::time::Instant;
use crate::wire::dns::Header;
use crate::wire::dns::message::{Fit, KEY_LEN_MAX, Query};

/// An asker of a question that waits.
#[derive(Debug)]
pub(super) struct Asker {
    pub(super) ticket: Ticket,
    /// The guest's port and the DNS address.
    pub(super) key: FlowKey,
    /// The question as the guest has sent it.
    pub(super) message: Box<[u8]>,
}

/// One question that waits.
#[derive(Debug)]
pub(super) struct Question {
    /// The oldest first; never empty while the question waits.
    pub(super) askers: Vec<Asker>,
    /// The query with zero for an identifier and letters in random case.
    query: Box<[u8]>,
    /// The identifier for resolvers that keep the case of letters, and for those that do not.
    ids: [u16; 2],
    /// By what it is found if it may be joined.
    pub(super) shared_key: Option<Box<[u8]>>,
    /// When the guest gets SERVFAIL.
    pub(super) deadline: Instant,
    /// When the next resolver is asked, or all are again.
    pub(super) next_at: Instant,
    /// Resolvers that were asked, one bit each, those of them under the second identifier, and those that
    /// will not answer any more, or not well.
    pub(super) asked: u8,
    folding: u8,
    failed: u8,
    /// The resolver that was asked first.
    pub(super) first: u8,
    /// The first of the answers that say that it cannot or will not be answered.
    pub(super) refusal: Option<Box<[u8]>>,
    /// The answer, if the link had no credit for it.
    pub(super) answer: Option<Box<[u8]>>,
}

impl Question {
    /// The question of `query`, without an asker yet.
    pub(super) fn new(
        query: &Query<'_>,
        entropy: &mut QueryEntropy,
        now: Instant,
        deadline: Instant,
    ) -> Self {
        let mut own: Box<[u8]> = query.message.into();
        own[..2].fill(0);
        // The signature of a signed query covers its letters; a signed query needs no further protection.
        if query.is_bare() {
            entropy.mix_case(&mut own[Header::LEN..query.question.end - 4]);
        }
        let mut key = [0; KEY_LEN_MAX];
        let key_len = query.key(&mut key);
        Self {
            askers: Vec::with_capacity(1),
            query: own,
            ids: entropy.ids(),
            shared_key: query.is_ordinary().then(|| key[..key_len].into()),
            deadline,
            next_at: now,
            asked: 0,
            folding: 0,
            failed: 0,
            first: 0,
            refusal: None,
            answer: None,
        }
    }

    /// Whether `query` asks the same, so that one answer serves both.
    pub(super) fn is_same(&self, query: &Query<'_>) -> bool {
        let mut key = [0; KEY_LEN_MAX];
        let key_len = query.key(&mut key);
        match &self.shared_key {
            Some(own) => query.is_ordinary() && **own == key[..key_len],
            None => self.askers.iter().any(|asker| *asker.message == *query.message),
        }
    }

    /// Whether this is a repetition: the same message between the same ends.
    pub(super) fn is_repeated_by(&self, key: &FlowKey, query: &Query<'_>) -> bool {
        self.askers.iter().any(|asker| asker.key == *key && *asker.message == *query.message)
    }

    /// Bytes that it takes beside itself and its askers.
    pub(super) fn held(&self) -> usize {
        self.query.len() + self.shared_key.as_deref().map_or(0, <[u8]>::len)
    }

    /// Bytes of its askers' messages.
    pub(super) fn asked_bytes(&self) -> usize {
        self.askers.iter().map(|asker| asker.message.len()).sum()
    }

    /// The query for resolver `r`, in two parts; `folding` if it does not keep the case of letters.
    pub(super) fn query(&mut self, r: usize, folding: bool) -> ([u8; 2], &[u8]) {
        if folding {
            self.folding |= 1 << r;
        }
        (self.ids[usize::from(folding)].to_be_bytes(), &self.query[2..])
    }

    /// Whether resolver `r` was asked under the second identifier.
    pub(super) fn is_folding(&self, r: usize) -> bool {
        self.folding & 1 << r != 0
    }

    /// How far a message of resolver `r` answers it.
    pub(super) fn fit(&self, r: usize, message: &[u8]) -> Fit {
        let Some(Header { id, .. }) = Header::parse(message) else { return Fit::No };
        let second = id == self.ids[1] && self.is_folding(r);
        if self.asked & 1 << r == 0 || !(second || id == self.ids[0]) {
            return Fit::No;
        }
        match Query::parse(&self.query).map_or(Fit::No, |query| query.fit(id, message)) {
            Fit::OtherCase if second => Fit::Yes,
            fit => fit,
        }
    }

    /// Resolvers that may still answer.
    pub(super) fn awaited(&self) -> u8 {
        self.asked & !self.failed
    }

    /// Resolver `r` will not answer: with `count` of them, asks another at once, or ends the query if none is
    /// left.
    pub(super) fn failed(&mut self, r: usize, count: usize, now: Instant) {
        self.failed |= 1 << r;
        if self.awaited() == 0 || (self.asked.count_ones() as usize) < count {
            self.next_at = now;
        }
    }

    /// Restart: no resolver has been asked, and the first is at `now`, under other identifiers.
    pub(super) fn restart(&mut self, entropy: &mut QueryEntropy, now: Instant) {
        (self.asked, self.folding, self.failed, self.next_at) = (0, 0, 0, now);
        self.ids = entropy.ids();
    }
}
