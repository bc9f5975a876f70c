//! A pending DNS query: its form toward the resolvers, and its askers in the guest.
//!
//! *Toward the resolvers* it is a query of brodo's own: ID and letter case are drawn ([`super::entropy`]),
//! and an answer is one only if both are exactly as sent. *Toward the guest* each asker gets its own ID and
//! letters back.
//!
//! *Equal queries are one.* Were each sent, then as many IDs would be valid at once, and a thousand equal
//! queries of one program would let a blind forger hit one of them in minutes (RFC 5452, section 5).
//!
//! *Resolvers that fold letter case* are rare, but a host that has one would have no names at all. An answer
//! in which all but the case agrees is none; but its resolver is queried once more under a second ID, and an
//! answer to that is compared without case. A forger who has hit port and first ID has thereby won only
//! another round against 65,536 IDs: not less than the letters of most names are worth.

use super::askers::Ticket;
use super::entropy::QueryEntropy;
use crate::flow::FlowKey;
use crate::time::Instant;
use crate::wire::dns::Header;
use crate::wire::dns::message::{Fit, KEY_LEN_MAX, Query};

/// An asker of a pending query.
#[derive(Debug)]
pub(crate) struct Asker {
    pub(crate) ticket: Ticket,
    /// The guest's port, and the DNS address.
    pub(crate) key: FlowKey,
    /// Query as received from the guest.
    pub(crate) message: Box<[u8]>,
}

/// One pending query.
#[derive(Debug)]
pub(crate) struct Question {
    /// Askers, the oldest first; never empty while the query is pending.
    pub(crate) askers: Vec<Asker>,
    /// Query with ID zero and letters in random case.
    query: Box<[u8]>,
    /// ID for resolvers that keep the letter case, and for those that fold it.
    ids: [u16; 2],
    /// Key of [`super::Dns::in_flight`] if others may join the query.
    pub(crate) shared_key: Option<Box<[u8]>>,
    /// Time at which the guest gets SERVFAIL.
    pub(crate) deadline: Instant,
    /// Time at which the next resolver is queried, or all are again.
    pub(crate) next_at: Instant,
    /// Bit sets of resolvers: queried; of those, queried under the second ID; of those, failed or answered
    /// with a failure.
    pub(crate) asked: u8,
    folding: u8,
    failed: u8,
    /// Index of the resolver queried first.
    pub(crate) first: u8,
    /// First of the answers with a failure code.
    pub(crate) refusal: Option<Box<[u8]>>,
    /// Answer for which the link had no credit.
    pub(crate) answer: Option<Box<[u8]>>,
}

impl Question {
    /// A pending query for `query`, without askers yet.
    pub(crate) fn new(
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

    /// Whether one answer serves both this and `query`.
    pub(crate) fn is_same(&self, query: &Query<'_>) -> bool {
        let mut key = [0; KEY_LEN_MAX];
        let key_len = query.key(&mut key);
        match &self.shared_key {
            Some(own) => query.is_ordinary() && **own == key[..key_len],
            None => self.askers.iter().any(|asker| *asker.message == *query.message),
        }
    }

    /// Whether `query` is a repetition: the same message between the same ends.
    pub(crate) fn is_repeated_by(&self, key: &FlowKey, query: &Query<'_>) -> bool {
        self.askers.iter().any(|asker| asker.key == *key && *asker.message == *query.message)
    }

    /// Bytes allocated beside itself and its askers.
    pub(crate) fn held(&self) -> usize {
        self.query.len() + self.shared_key.as_deref().map_or(0, <[u8]>::len)
    }

    /// Bytes of its askers' messages.
    pub(crate) fn asked_bytes(&self) -> usize {
        self.askers.iter().map(|asker| asker.message.len()).sum()
    }

    /// The query for resolver `r`, in two parts; `folding` if the resolver folds letter case.
    pub(crate) fn query(&mut self, r: usize, folding: bool) -> ([u8; 2], &[u8]) {
        if folding {
            self.folding |= 1 << r;
        }
        (self.ids[usize::from(folding)].to_be_bytes(), &self.query[2..])
    }

    /// Whether resolver `r` was queried under the second ID.
    pub(crate) fn is_folding(&self, r: usize) -> bool {
        self.folding & 1 << r != 0
    }

    /// Match of a message of resolver `r` with this query.
    pub(crate) fn fit(&self, r: usize, message: &[u8]) -> Fit {
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
    pub(crate) fn awaited(&self) -> u8 {
        self.asked & !self.failed
    }

    /// Failure of resolver `r`: with `count` of them, the next is queried at once, or the query ends if none
    /// is left.
    pub(crate) fn failed(&mut self, r: usize, count: usize, now: Instant) {
        self.failed |= 1 << r;
        if self.awaited() == 0 || (self.asked.count_ones() as usize) < count {
            self.next_at = now;
        }
    }

    /// Restart: no resolver has been queried; the first one is at `now`, under other IDs.
    pub(crate) fn restart(&mut self, entropy: &mut QueryEntropy, now: Instant) {
        (self.asked, self.folding, self.failed, self.next_at) = (0, 0, 0, now);
        self.ids = entropy.ids();
    }
}
