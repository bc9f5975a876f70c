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
//!
//! *Resolvers without EDNS* answer with FORMERR or NOTIMP, or with nothing (RFC 6891, section 7). They are
//! queried again without the OPT record, which under a policy is brodo's own, so that no guest could leave it
//! out. A repetition after silence has it as well if signatures are wanted (DO): it may be for a lost
//! datagram.

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
    /// Its length in bytes without EDNS, if it has a form without, and whether signatures are wanted.
    plain_len: Option<usize>,
    dnssec_ok: bool,
    /// ID for resolvers that keep the letter case, and for those that fold it.
    ids: [u16; 2],
    /// Key of [`super::Dns::in_flight`] if others may join the query.
    pub(crate) shared_key: Option<Box<[u8]>>,
    /// Time at which the guest gets SERVFAIL.
    pub(crate) deadline: Instant,
    /// Time at which the next resolver is queried, or all are again.
    pub(crate) next_at: Instant,
    /// Bit sets of resolvers: queried; of those, queried under the second ID, queried without EDNS from here
    /// on, queried with it and without a refusal of that yet, refused it, and failed or answered with a
    /// failure.
    pub(crate) asked: u8,
    folding: u8,
    plain: u8,
    with_edns: u8,
    refused_edns: u8,
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
            plain_len: query.plain_len(),
            dnssec_ok: query.opt.is_some_and(|opt| opt.dnssec_ok),
            ids: entropy.ids(),
            shared_key: query.is_ordinary().then(|| key[..key_len].into()),
            deadline,
            next_at: now,
            asked: 0,
            folding: 0,
            plain: 0,
            with_edns: 0,
            refused_edns: 0,
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

    /// The query for resolver `r`, as its header and the rest; `folding` if the resolver folds letter case.
    pub(crate) fn query(&mut self, r: usize, folding: bool) -> ([u8; Header::LEN], &[u8]) {
        if folding {
            self.folding |= 1 << r;
        }
        let mut header = [0; Header::LEN];
        header.copy_from_slice(&self.query[..Header::LEN]);
        header[..2].copy_from_slice(&self.ids[usize::from(folding)].to_be_bytes());
        if let Some(len) = self.plain_len.filter(|_| self.is_plain(r)) {
            header[Header::ADDITIONALS].fill(0);
            return (header, &self.query[Header::LEN..len]);
        }
        self.with_edns |= u8::from(self.plain_len.is_some()) << r;
        (header, &self.query[Header::LEN..])
    }

    /// Whether resolver `r` was queried without EDNS.
    pub(crate) fn is_plain(&self, r: usize) -> bool {
        self.plain & 1 << r != 0
    }

    /// Leaves EDNS out toward resolver `r`. False if it was left out before, or cannot be.
    pub(crate) fn leave_edns_out(&mut self, r: usize) -> bool {
        let leaves = self.plain_len.is_some() && !self.is_plain(r);
        self.plain |= u8::from(leaves) << r;
        leaves
    }

    /// Takes a refusal of resolver `r` for one of EDNS: says whether the query without is still to be sent.
    /// `None` if it was queried without alone, or has refused the query with it before.
    pub(crate) fn refuse_edns(&mut self, r: usize) -> Option<bool> {
        if self.with_edns & 1 << r == 0 {
            return None;
        }
        self.with_edns &= !(1 << r);
        self.refused_edns |= 1 << r;
        Some(self.leave_edns_out(r))
    }

    /// Whether resolver `r` has refused the query with EDNS.
    pub(crate) fn has_refused_edns(&self, r: usize) -> bool {
        self.refused_edns & 1 << r != 0
    }

    /// Resolver `r` is silent: EDNS may be the reason.
    pub(crate) fn repeat(&mut self, r: usize) {
        if !self.dnssec_ok {
            self.leave_edns_out(r);
        }
    }

    /// Whether resolver `r` was queried under the second ID.
    pub(crate) fn is_folding(&self, r: usize) -> bool {
        self.folding & 1 << r != 0
    }

    /// Match of a message of resolver `r` with this query.
    pub(crate) fn fit(&self, r: usize, message: &[u8]) -> Fit {
        let Some(header) = Header::parse(message) else { return Fit::No };
        let id = header.id;
        let second = id == self.ids[1] && self.is_folding(r);
        if self.asked & 1 << r == 0 || !(second || id == self.ids[0]) {
            return Fit::No;
        }
        // Without the question, as resolvers write it that read no further than EDNS: all that a forger of it
        // gets is a query without.
        if header.is_bare_format_error(message) && self.with_edns & 1 << r != 0 {
            return Fit::Yes;
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
        (self.plain, self.with_edns, self.refused_edns) = (0, 0, 0);
        self.ids = entropy.ids();
    }
}
