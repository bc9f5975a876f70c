//! Pending DNS queries of one guest port.
//!
//! Each query goes to one resolver after another, in the order of preference ([`crate::dns`]), over one
//! connected socket for each resolver that all queries of the port share. The first has [`WAIT`], then the
//! next is queried as well; a resolver that fails, or answers with a failure, is followed by the next at
//! once. After the last one, all that may still answer are queried once more, for a datagram may have been
//! lost. The first good answer goes to the guest. Without one the guest gets the first refusal, or SERVFAIL:
//! as soon as no resolver is left that might answer, or at the query's deadline.
//!
//! A resolver counts as failed if it is unreachable, if others queried later have answered first, with a
//! failure or without, several times in a row, or if none has answered at all. A socket without pending
//! queries is closed.
//!
//! A query equal to another port's pending one joins it in that port's flow ([`crate::dns::question`]).

use super::{answer, answer_len_max, refuse};
use crate::config::RESOLVERS_MAX;
use crate::context::{Cx, Platform, Shared};
use crate::counters::DropReason;
use crate::dns::askers::Ticket;
use crate::dns::question::{Asker, Question};
use crate::flow::end::EndCause;
use crate::flow::info::{FlowInfo, Initiator, Traffic};
use crate::flow::table::Keyed;
use crate::flow::{EvictionClass, EvictionRank, FlowId, FlowKey};
use crate::flow_kind::{Buffers, FlowKind};
use crate::host::{Close, Host, HostError, IcmpCause, IpHeaderFields, Readiness, Received, SocketId};
use crate::schedule::Turn;
use crate::time::{Duration, Instant};
use crate::wire::dns::Header;
use crate::wire::dns::message::{Fit, PLAIN_LEN_MAX, Query};
use std::io::{IoSlice, IoSliceMut};

/// Wait for a resolver before the next is queried as well.
const WAIT: Duration = Duration::from_secs(1);
/// Wait after the last resolver before all are queried again.
const WAIT_ALL: Duration = Duration::from_secs(2);
/// Sockets to resolvers above which a port with one gets no further ones. With one for each of
/// [`crate::dns::WAITING_MAX`] ports that makes half as many again.
const SOCKETS_MAX: usize = 512;
/// Longest refusal kept for the case that there is no better answer, in bytes.
const REFUSAL_LEN_MAX: usize = PLAIN_LEN_MAX;
/// Most receives from one socket in one turn.
const RECEIVES_MAX: usize = 16;
/// Most entries read from a socket's error queue at a time.
const ERRORS_MAX: usize = 4;

/// Number of resolvers in use.
fn resolvers(shared: &Shared) -> usize {
    shared.config.resolvers.len().min(RESOLVERS_MAX)
}

/// All pending queries of one guest port.
#[derive(Debug)]
pub(crate) struct DnsFlow {
    key: FlowKey,
    id: FlowId,
    questions: Vec<Question>,
    /// Sockets by index of the resolver.
    sockets: [Option<SocketId>; RESOLVERS_MAX],
    /// Epoch of the set of resolvers to which the sockets lead.
    epoch: u32,
    readable: bool,
    turn: Turn,
    opened_at: Instant,
    from_guest: Traffic,
    to_guest: Traffic,
    /// Cause of the flow's end: time-out, unless a query was answered.
    pub(crate) cause: EndCause,
}

impl DnsFlow {
    /// A flow without queries.
    pub(crate) fn new(id: FlowId, key: FlowKey, epoch: u32, now: Instant) -> Self {
        Self {
            key,
            id,
            questions: Vec::new(),
            sockets: [None; RESOLVERS_MAX],
            epoch,
            readable: false,
            turn: Turn::default(),
            opened_at: now,
            from_guest: Traffic::default(),
            to_guest: Traffic::default(),
            cause: EndCause::TimedOut,
        }
    }

    /// Takes a query from the guest port of `key` that needs a resolver. There is room for it
    /// ([`crate::dns::Dns::is_full`]). The port may be another than this flow's if an equal query is
    /// pending here. `asked` is the question that goes to the resolvers: the query itself, or under a policy
    /// one of brodo's own.
    pub(crate) fn ask<P: Platform>(
        &mut self,
        cx: &mut Cx<'_, P>,
        key: &FlowKey,
        query: &Query<'_>,
        asked: &Query<'_>,
    ) {
        self.follow(cx);
        if *key == self.key {
            self.from_guest.add(1, query.message.len());
        }
        match self.questions.iter().position(|known| known.is_same(asked)) {
            // Repetition: the guest is less patient than we are.
            Some(i) if self.questions[i].is_repeated_by(key, query) => self.questions[i].next_at = cx.now,
            Some(i) => {
                cx.shared.counters.dns_joined += 1;
                self.add_asker(cx.shared, i, key, query);
            }
            None => {
                let deadline = cx.now + cx.shared.config.timeouts.dns;
                let dns = &mut cx.shared.dns;
                let question = Question::new(asked, &mut dns.entropy, cx.now, deadline);
                dns.held += question.held();
                if let Some(key) = &question.shared_key {
                    let before = dns.in_flight.insert(key.clone(), self.id);
                    debug_assert_eq!(before, None, "an equal question would have been joined");
                }
                self.questions.push(question);
                self.add_asker(cx.shared, self.questions.len() - 1, key, query);
            }
        }
        self.advance(cx);
    }

    fn add_asker(&mut self, shared: &mut Shared, i: usize, key: &FlowKey, query: &Query<'_>) {
        shared.dns.held += query.message.len();
        let ticket = shared.dns.askers.add(key.guest, self.id);
        self.questions[i].askers.push(Asker { ticket, key: *key, message: query.message.into() });
    }

    /// Evicts the query of `ticket`: its asker gets SERVFAIL.
    pub(crate) fn give_way<P: Platform>(&mut self, cx: &mut Cx<'_, P>, ticket: Ticket) {
        let place = |question: &Question| question.askers.iter().position(|asker| asker.ticket == ticket);
        let found = self.questions.iter().enumerate().find_map(|(i, question)| Some((i, place(question)?)));
        let Some((i, asker)) = found else {
            debug_assert!(false, "a ticket leads to its question");
            return cx.shared.dns.askers.remove(ticket);
        };
        cx.shared.counters.drop(DropReason::DnsOverload);
        let asker = self.questions[i].askers.remove(asker);
        tell_unanswered(cx, &asker);
        leave(cx.shared, &asker);
        if self.questions[i].askers.is_empty() {
            self.forget(cx.shared, i);
            self.close_idle(cx);
        }
    }

    /// Change of resolvers or network: every pending query is soon sent again.
    pub(crate) fn restart(&mut self, shared: &mut Shared) {
        shared.ready.list(self.id, &mut self.turn);
    }

    /// Starts every query anew if resolvers or network have changed since they were sent.
    fn follow<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        if self.epoch != cx.shared.dns.epoch {
            self.epoch = cx.shared.dns.epoch;
            (0..RESOLVERS_MAX).for_each(|r| self.close(cx, r));
            for question in &mut self.questions {
                question.restart(&mut cx.shared.dns.entropy, cx.now);
            }
        }
    }

    /// Acts on deadlines: gives up, or queries the next resolver.
    fn advance<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        let mut i = 0;
        while let Some(question) = self.questions.get(i) {
            let over = question.deadline <= cx.now;
            if over || (question.next_at <= cx.now && !self.ask_more(cx, i)) {
                self.give_up(cx, i);
            } else {
                i += 1;
            }
        }
        self.close_idle(cx);
    }

    /// Closes sockets to resolvers without pending queries.
    fn close_idle<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        let awaited = self.questions.iter().fold(0, |all, question| all | question.awaited());
        for r in 0..RESOLVERS_MAX {
            if awaited & 1 << r == 0 {
                self.close(cx, r);
            }
        }
    }

    /// Sends query `i` to the next resolver, or to all of them again. False if none is left that might
    /// answer.
    fn ask_more<P: Platform>(&mut self, cx: &mut Cx<'_, P>, i: usize) -> bool {
        let count = resolvers(cx.shared);
        while let Some(r) = cx.shared.dns.preference.next(cx.now, count, self.questions[i].asked) {
            let question = &mut self.questions[i];
            if question.asked == 0 {
                question.first = r as u8;
            } else {
                cx.shared.counters.dns_retries += 1;
            }
            question.asked |= 1 << r;
            if cx.shared.dns.preference.is_plain(r, cx.now) {
                question.leave_edns_out(r);
            }
            if self.send(cx, r, i) {
                self.questions[i].next_at = cx.now + WAIT;
                return true;
            }
        }
        let awaited = self.questions[i].awaited();
        for r in (0..count).filter(|r| awaited & 1 << r != 0) {
            self.questions[i].repeat(r);
            self.send(cx, r, i);
        }
        let question = &mut self.questions[i];
        question.next_at = cx.now + WAIT_ALL;
        question.awaited() != 0
    }

    /// Sends query `i` to resolver `r`. False if it is unreachable.
    fn send<P: Platform>(&mut self, cx: &mut Cx<'_, P>, r: usize, i: usize) -> bool {
        for _ in 0..2 {
            let socket = match self.sockets[r].map_or_else(|| self.open(cx, r), Ok) {
                Ok(socket) => socket,
                // Out of sockets or memory: not the resolver's fault.
                Err(HostError::Exhausted) => return true,
                Err(_) => break,
            };
            let folding = cx.shared.dns.preference.is_folding(r, cx.now);
            let (header, rest) = self.questions[i].query(r, folding);
            let message = [IoSlice::new(&header), IoSlice::new(rest)];
            match cx.host.datagram_send(socket, &message, None, IpHeaderFields::default()) {
                // No room in the socket: lost, as on any network.
                Ok(_) | Err(HostError::WouldBlock | HostError::Exhausted | HostError::TooBig(_)) => {
                    cx.shared.counters.dns_queries += 1;
                    cx.shared.counters.dns_queries_folding += u64::from(folding);
                    return true;
                }
                // Pending ICMP error of an earlier query: the socket reports it instead of sending this one.
                Err(_) => self.report_errors(cx, r),
            }
            // Socket closed by an ICMP error such as port unreachable.
            if self.sockets[r].is_none() {
                break;
            }
        }
        self.resolver_failed(cx, r);
        false
    }

    /// Opens a socket to resolver `r`: always the first one of the port, so that the queries of one port
    /// cannot stop another's; further ones as long as there are fewer than [`SOCKETS_MAX`].
    fn open<P: Platform>(&mut self, cx: &mut Cx<'_, P>, r: usize) -> Result<SocketId, HostError> {
        let to = *cx.shared.config.resolvers.get(r).ok_or(HostError::Unsupported)?;
        let is_first = self.sockets.iter().all(Option::is_none);
        let opened = if is_first || cx.shared.dns.sockets < SOCKETS_MAX {
            cx.host.udp_open(self.id, None, to)
        } else {
            Err(HostError::Exhausted)
        };
        match opened {
            Ok(socket) => {
                cx.shared.dns.sockets += 1;
                self.sockets[r] = Some(socket);
            }
            Err(HostError::Exhausted) => cx.shared.counters.drop(DropReason::HostExhausted),
            Err(_) => {}
        }
        opened
    }

    fn close<P: Platform>(&mut self, cx: &mut Cx<'_, P>, r: usize) {
        if let Some(socket) = self.sockets[r].take() {
            cx.shared.dns.sockets -= 1;
            cx.host.close(socket, Close::Graceful);
        }
    }

    /// Unreachable resolver `r`: no answer will come from it.
    fn resolver_failed<P: Platform>(&mut self, cx: &mut Cx<'_, P>, r: usize) {
        cx.shared.dns.preference.failed(r, cx.now);
        self.close(cx, r);
        let count = resolvers(cx.shared);
        for question in self.questions.iter_mut().filter(|question| question.awaited() & 1 << r != 0) {
            question.failed(r, count, cx.now);
        }
    }

    /// Reads the ICMP errors of a resolver's socket.
    fn report_errors<P: Platform>(&mut self, cx: &mut Cx<'_, P>, r: usize) {
        for _ in 0..ERRORS_MAX {
            let Some(socket) = self.sockets[r] else { return };
            let Some(report) = cx.host.datagram_error(socket) else { return };
            if !matches!(report.cause, IcmpCause::TooBig(_) | IcmpCause::TimeExceeded) {
                self.resolver_failed(cx, r);
            }
        }
    }

    /// Receives messages of resolver `r`; true if there may be more.
    fn receive<P: Platform>(&mut self, cx: &mut Cx<'_, P>, r: usize, scratch: &mut [u8]) -> bool {
        for _ in 0..RECEIVES_MAX {
            let Some(socket) = self.sockets[r] else { return false };
            if cx.shared.tx.stalled {
                return true;
            }
            let mut received = [Received::default()];
            match cx.host.datagram_recv(socket, &mut [IoSliceMut::new(scratch)], &mut received) {
                Ok(_) => {
                    let [Received { len, segment, .. }] = received;
                    // Coalesced by the kernel perhaps (UDP_GRO).
                    let size = segment.map_or(len, usize::from).max(1);
                    let got = len.min(scratch.len());
                    scratch[..got].chunks_mut(size).for_each(|message| self.answered(cx, r, message));
                }
                Err(HostError::WouldBlock) => return false,
                // Pending ICMP error instead of a datagram; the datagrams behind it come next.
                Err(_) => self.report_errors(cx, r),
            }
        }
        true
    }

    /// Takes a message of resolver `r`.
    fn answered<P: Platform>(&mut self, cx: &mut Cx<'_, P>, r: usize, message: &mut [u8]) {
        let fits = self.questions.iter().map(|question| question.fit(r, message)).enumerate();
        let i = match fits.into_iter().find(|(_, fit)| *fit != Fit::No) {
            None => return cx.shared.counters.drop(DropReason::DnsUnsolicited),
            Some((i, Fit::OtherCase)) => return self.answered_in_other_case(cx, r, i),
            Some((i, _)) => i,
        };
        let header = Header::parse(message);
        let count = resolvers(cx.shared);
        let question = &mut self.questions[i];
        if header.is_some_and(|header| header.may_refuse_edns())
            && let Some(is_due) = question.refuse_edns(r)
        {
            if is_due {
                self.send(cx, r, i);
            }
            return;
        }
        if header.is_some_and(|header| header.is_failure()) {
            question.failed(r, count, cx.now);
            if message.len() <= REFUSAL_LEN_MAX && question.refusal.is_none() {
                question.refusal = Some(message.into());
            }
            return;
        }
        let first = usize::from(question.first);
        if first != r && question.awaited() & 1 << first != 0 {
            cx.shared.dns.preference.outrun(first, cx.now);
        }
        if question.has_refused_edns(r) {
            cx.shared.dns.preference.answered_plain(r, cx.now);
        }
        cx.shared.dns.preference.answered(r);
        if message.len() > PLAIN_LEN_MAX || header.is_some_and(|header| header.is_truncated()) {
            cx.shared.tx.across.cut(r, cx.now);
        }
        if self.pass_on(cx, i, message) {
            self.forget(cx.shared, i);
        } else {
            let question = &mut self.questions[i];
            question.answer = Some(message.into());
            question.next_at = question.deadline;
            self.readable = true;
        }
    }

    /// Answer of resolver `r` to query `i` with other letter case: the resolver's, or a forger's in its name.
    /// The query is sent once more under the second ID.
    fn answered_in_other_case<P: Platform>(&mut self, cx: &mut Cx<'_, P>, r: usize, i: usize) {
        cx.shared.counters.drop(DropReason::DnsCaseMismatch);
        cx.shared.dns.preference.folded(r, cx.now);
        if !self.questions[i].is_folding(r) {
            self.send(cx, r, i);
        }
    }

    /// Passes on answers for which the link had no credit.
    fn pass_on_held<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        while let Some(i) = self.questions.iter().position(|question| question.answer.is_some()) {
            let Some(mut message) = self.questions[i].answer.take() else { return };
            if !self.pass_on(cx, i, &mut message) {
                self.questions[i].answer = Some(message);
                self.readable = true;
                return;
            }
            self.forget(cx.shared, i);
        }
    }

    /// Passes the answer to query `i` on to all its askers, and caches it. False if the link has no credit
    /// for some of them.
    fn pass_on<P: Platform>(&mut self, cx: &mut Cx<'_, P>, i: usize, message: &mut [u8]) -> bool {
        if let Some(key) = &self.questions[i].shared_key {
            let dns = &mut cx.shared.dns;
            let now = dns.record_time(cx.now);
            dns.cache.put(key, now, message);
        }
        while let Some(asker) = self.questions[i].askers.first() {
            if let Ok(query) = Query::parse(&asker.message) {
                query.restore(message);
                let limit = answer_len_max(cx.shared, cx.now, &asker.key, &query);
                if answer(cx, &asker.key, limit, &query, message).is_err() {
                    return false;
                }
                self.cause = EndCause::Finished;
                if asker.key == self.key {
                    self.to_guest.add(1, message.len());
                }
            }
            let asker = self.questions[i].askers.remove(0);
            leave(cx.shared, &asker);
        }
        true
    }

    /// Ends query `i` without an answer: its askers get the first refusal, or SERVFAIL.
    fn give_up<P: Platform>(&mut self, cx: &mut Cx<'_, P>, i: usize) {
        let awaited = self.questions[i].awaited();
        for r in (0..RESOLVERS_MAX).filter(|r| awaited & 1 << r != 0) {
            // A name that another resolver cannot find out makes this one slow too.
            match self.questions[i].refusal {
                Some(_) => cx.shared.dns.preference.outrun(r, cx.now),
                None => cx.shared.dns.preference.failed(r, cx.now),
            }
        }
        match self.questions[i].refusal.take() {
            Some(mut refusal) => {
                if !self.pass_on(cx, i, &mut refusal) {
                    cx.shared.counters.drop(DropReason::LinkFull);
                }
            }
            None => self.questions[i].askers.iter().for_each(|asker| tell_unanswered(cx, asker)),
        }
        self.forget(cx.shared, i);
    }

    fn forget(&mut self, shared: &mut Shared, i: usize) {
        let question = self.questions.swap_remove(i);
        shared.dns.held -= question.held();
        question.askers.iter().for_each(|asker| leave(shared, asker));
        if let Some(key) = &question.shared_key {
            let flow = shared.dns.in_flight.remove(key);
            debug_assert_eq!(flow, Some(self.id), "a question in flight leads to its flow");
        }
    }
}

impl Keyed for DnsFlow {
    fn key(&self) -> &FlowKey {
        &self.key
    }
}

impl FlowKind for DnsFlow {
    fn initiator(&self) -> Initiator {
        Initiator::Guest
    }

    fn socket(&self) -> Option<SocketId> {
        None
    }

    fn info(&self, _: &Shared, now: Instant) -> FlowInfo {
        FlowInfo {
            age: now - self.opened_at,
            from_guest: self.from_guest,
            to_guest: self.to_guest,
            ..FlowInfo::blank(self.id, self.key, Initiator::Guest)
        }
    }

    fn allocated(&self) -> usize {
        let questions = self
            .questions
            .iter()
            .map(|q| q.held() + q.asked_bytes() + q.refusal.as_deref().map_or(0, <[u8]>::len));
        self.questions.capacity() * size_of::<Question>() + questions.sum::<usize>()
    }

    fn eviction_class(&self) -> EvictionClass {
        EvictionClass::Unanswered
    }

    fn eviction_rank(&self, idle: Duration) -> Option<EvictionRank> {
        Some(EvictionRank(self.eviction_class(), idle))
    }

    fn has_ended(&self) -> bool {
        self.questions.is_empty()
    }

    fn socket_event<P: Platform>(&mut self, cx: &mut Cx<'_, P>, ready: Readiness) {
        if ready.readable || ready.error {
            self.readable = true;
            cx.shared.ready.list(self.id, &mut self.turn);
        }
    }

    /// Takes received messages, within bounds; lists the flow again if there may be more.
    fn serve<P: Platform>(&mut self, cx: &mut Cx<'_, P>, buffers: &mut Buffers) {
        self.turn.begin(false);
        self.follow(cx);
        self.pass_on_held(cx);
        if std::mem::take(&mut self.readable) {
            for r in 0..RESOLVERS_MAX {
                self.report_errors(cx, r);
                self.readable |= self.receive(cx, r, &mut buffers.scratch);
            }
        }
        self.advance(cx);
        if self.readable && !self.questions.is_empty() {
            cx.shared.ready.list_again(self.id, &mut self.turn);
        }
    }

    fn expire<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        self.follow(cx);
        self.advance(cx);
    }

    /// Questions go on: their answers are judged when they come.
    fn revoke<P: Platform>(&mut self, _: &mut Cx<'_, P>, _: EndCause) {}

    /// Questions follow the set of resolvers ([`crate::dns::Dns::epoch`]), not an address of the
    /// host's.
    fn network_changed<P: Platform>(&mut self, _: &mut Cx<'_, P>) {}

    fn reschedule(&mut self, shared: &mut Shared) {
        if let Some(at) = self.questions.iter().map(|q| q.next_at.min(q.deadline)).min() {
            shared.timers.arm(self.id, at);
        }
    }

    fn dispose<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        while let Some(last) = self.questions.len().checked_sub(1) {
            self.forget(cx.shared, last);
        }
        (0..RESOLVERS_MAX).for_each(|r| self.close(cx, r));
    }
}

/// Sends an asker SERVFAIL.
fn tell_unanswered<P: Platform>(cx: &mut Cx<'_, P>, asker: &Asker) {
    if let Ok(query) = Query::parse(&asker.message) {
        refuse(cx, &asker.key, &query);
    }
}

/// Subtracts an asker from the shared counts.
fn leave(shared: &mut Shared, asker: &Asker) {
    shared.dns.held -= asker.message.len();
    shared.dns.askers.remove(asker.ticket);
}
