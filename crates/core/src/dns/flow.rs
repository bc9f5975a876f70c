//! The questions of one guest port that wait for a resolver.
//!
//! Each question has been sent to some resolvers ([`super::preference`] says in which order), over one connected socket for
//! each that all questions of the port share. It waits [`WAIT`] for the first, then the next is asked as well; a resolver
//! that fails, or says that it cannot or will not, hands over at once. When all have been asked those who may still answer are
//! asked once more, for a datagram may have been lost. The first good answer goes to the guest. If there is none, the guest
//! gets the first refusal, or SERVFAIL: as soon as nobody is left who might answer, or at the question's deadline.
//!
//! A resolver has failed if it could not be reached, if others who were asked later have answered first several times in a row, or
//! if nobody has answered at all. A socket is closed when no question waits for it any more.

use super::preference::RESOLVERS_MAX;
use super::{answer, answer_len_max, refuse};
use crate::context::{Cx, Platform, Shared};
use crate::counters::DropReason;
use crate::flow::end::EndCause;
use crate::flow::info::{FlowInfo, Initiator, Traffic};
use crate::flow::{EvictionClass, EvictionRank, FlowId, FlowKey};
use crate::host::{Close, Host, HostError, IcmpCause, IpHeaderFields, Readiness, Received, SocketId};
use crate::schedule::Turn;
use crate::time::{Duration, Instant};
use crate::wire::dns::message::{KEY_LEN_MAX, PLAIN_LEN_MAX, Query};
use crate::wire::dns::{Header, Rcode};
use std::io::{IoSlice, IoSliceMut};

/// For how long a resolver is waited for before the next is asked as well.
const WAIT: Duration = Duration::from_secs(1);
/// For how long after that, before all are asked again.
const WAIT_ALL: Duration = Duration::from_secs(2);
/// Questions of one port that wait.
const QUESTIONS_MAX: usize = 256;
/// Bytes of all questions that wait.
const HELD_MAX: usize = 1 << 20;
/// Sockets to resolvers.
const SOCKETS_MAX: usize = 1024;
/// Longest refusal that is kept in case that there will be nothing better, in bytes.
const REFUSAL_LEN_MAX: usize = PLAIN_LEN_MAX;
/// Most receives from one socket in one turn.
const RECEIVES_MAX: usize = 16;
/// Entries taken from a socket's error queue at a time.
const ERRORS_MAX: usize = 4;

/// One question that waits.
#[derive(Debug)]
struct Question {
    /// As the guest has sent it.
    message: Box<[u8]>,
    /// When the guest is told that nobody has answered.
    deadline: Instant,
    /// When the next resolver is asked, or all are again.
    next_at: Instant,
    /// Resolvers that were asked, one bit each, and those of them that will not answer any more, or not well.
    asked: u8,
    failed: u8,
    /// The one that was asked first.
    first: u8,
    /// The first of the answers that say that it cannot or will not be answered.
    refusal: Option<Box<[u8]>>,
    /// The answer, if the link had no credit for it.
    answer: Option<Box<[u8]>>,
}

impl Question {
    /// Resolvers that may still answer.
    fn awaited(&self) -> u8 {
        self.asked & !self.failed
    }

    /// Resolver `r` will not answer: with `count` of them, asks another at once, or ends the question if nobody is left.
    fn failed(&mut self, r: usize, count: usize, now: Instant) {
        self.failed |= 1 << r;
        if self.awaited() == 0 || (self.asked.count_ones() as usize) < count {
            self.next_at = now;
        }
    }
}

/// How many resolvers are used.
fn resolvers(shared: &Shared) -> usize {
    shared.config.resolvers.len().min(RESOLVERS_MAX)
}

/// All questions of one guest port that wait.
#[derive(Debug)]
pub(crate) struct DnsFlow {
    key: FlowKey,
    id: FlowId,
    questions: Vec<Question>,
    /// By resolver.
    sockets: [Option<SocketId>; RESOLVERS_MAX],
    /// Which set of resolvers they belong to.
    epoch: u32,
    readable: bool,
    turn: Turn,
    opened_at: Instant,
    from_guest: Traffic,
    to_guest: Traffic,
    /// Why it ends: no answer, unless there was one.
    pub(crate) cause: EndCause,
}

impl DnsFlow {
    /// A flow that has no question yet.
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

    /// What is known of it at `now`, but for how long it is idle.
    pub(crate) fn info(&self, now: Instant) -> FlowInfo {
        FlowInfo {
            age: now - self.opened_at,
            from_guest: self.from_guest,
            to_guest: self.to_guest,
            ..FlowInfo::blank(self.id, self.key, Initiator::Guest)
        }
    }

    pub(crate) fn key(&self) -> &FlowKey {
        &self.key
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.questions.is_empty()
    }

    /// Bytes that it takes beside itself.
    pub(crate) fn allocated(&self) -> usize {
        let questions =
            self.questions.iter().map(|q| q.message.len() + q.refusal.as_deref().map_or(0, <[u8]>::len));
        self.questions.capacity() * size_of::<Question>() + questions.sum::<usize>()
    }

    /// How little is lost if this flow, unused for `idle`, goes to make room.
    pub(crate) fn eviction_rank(idle: Duration) -> EvictionRank {
        EvictionRank(EvictionClass::Unanswered, idle)
    }

    /// The guest asks something that cannot be answered at once.
    pub(crate) fn ask<P: Platform>(&mut self, cx: &mut Cx<'_, P>, query: &Query<'_>) {
        self.follow(cx);
        let len = query.message.len();
        self.from_guest.add(1, len);
        if let Some(known) = self.questions.iter_mut().find(|known| *known.message == *query.message) {
            // The guest is less patient than we are.
            known.next_at = cx.now;
        } else if self.questions.len() >= QUESTIONS_MAX || cx.shared.dns.held + len > HELD_MAX {
            cx.shared.counters.drop(DropReason::DnsOverload);
            return refuse(cx, &self.key, query);
        } else {
            cx.shared.dns.held += len;
            self.questions.push(Question {
                message: query.message.into(),
                deadline: cx.now + cx.shared.config.timeouts.dns,
                next_at: cx.now,
                asked: 0,
                failed: 0,
                first: 0,
                refusal: None,
                answer: None,
            });
        }
        self.advance(cx);
    }

    /// Notes a host socket event.
    pub(crate) fn socket_event(&mut self, shared: &mut Shared, ready: Readiness) {
        if ready.readable || ready.error {
            self.readable = true;
            shared.ready.list(self.id, &mut self.turn);
        }
    }

    /// The resolvers or the network are others: everything is asked again soon.
    pub(crate) fn restart(&mut self, shared: &mut Shared) {
        shared.ready.list(self.id, &mut self.turn);
    }

    /// Takes what has arrived, within bounds; lists the flow again if there may be more. `scratch` has room for any datagram.
    pub(crate) fn serve<P: Platform>(&mut self, cx: &mut Cx<'_, P>, scratch: &mut [u8]) {
        self.turn.begin(false);
        self.follow(cx);
        self.pass_on_held(cx);
        if std::mem::take(&mut self.readable) {
            for r in 0..RESOLVERS_MAX {
                self.report_errors(cx, r);
                self.readable |= self.receive(cx, r, scratch);
            }
        }
        self.advance(cx);
        if self.readable && !self.questions.is_empty() {
            cx.shared.ready.list_again(self.id, &mut self.turn);
        }
    }

    /// Makes sure that the wheel fires when something is to be done.
    pub(crate) fn arm(&self, shared: &mut Shared) {
        if let Some(at) = self.questions.iter().map(|q| q.next_at.min(q.deadline)).min() {
            shared.timers.arm(self.id, at);
        }
    }

    /// The wheel fired, perhaps early.
    pub(crate) fn expire<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        self.follow(cx);
        self.advance(cx);
    }

    /// Gives back all sockets, before removal.
    pub(crate) fn dispose<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        for question in self.questions.drain(..) {
            cx.shared.dns.held -= question.message.len();
        }
        (0..RESOLVERS_MAX).for_each(|r| self.close(cx, r));
    }

    /// If the resolvers are others than those that were asked, or the network is, begins anew.
    fn follow<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        if self.epoch != cx.shared.dns.epoch {
            self.epoch = cx.shared.dns.epoch;
            (0..RESOLVERS_MAX).for_each(|r| self.close(cx, r));
            for question in &mut self.questions {
                (question.asked, question.failed, question.next_at) = (0, 0, cx.now);
            }
        }
    }

    /// Does what time asks for.
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
        let awaited = self.questions.iter().fold(0, |all, question| all | question.awaited());
        for r in 0..RESOLVERS_MAX {
            if awaited & 1 << r == 0 {
                self.close(cx, r);
            }
        }
    }

    /// Asks the next resolver question `i`, or all of them again. False if nobody is left who might answer.
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
            if self.send(cx, r, i) {
                self.questions[i].next_at = cx.now + WAIT;
                return true;
            }
        }
        let awaited = self.questions[i].awaited();
        for r in (0..count).filter(|r| awaited & 1 << r != 0) {
            self.send(cx, r, i);
        }
        let question = &mut self.questions[i];
        question.next_at = cx.now + WAIT_ALL;
        question.awaited() != 0
    }

    /// Sends question `i` to resolver `r`. False if it cannot be reached.
    fn send<P: Platform>(&mut self, cx: &mut Cx<'_, P>, r: usize, i: usize) -> bool {
        for _ in 0..2 {
            let Some(socket) = self.sockets[r].or_else(|| self.open(cx, r)) else { break };
            let message = [IoSlice::new(&self.questions[i].message)];
            match cx.host.datagram_send(socket, &message, None, IpHeaderFields::default()) {
                // What finds no room is lost, as on any network.
                Ok(_) | Err(HostError::WouldBlock | HostError::Exhausted | HostError::TooBig(_)) => {
                    return true;
                }
                // The socket may be reporting an ICMP error for an earlier question instead of sending this one.
                Err(_) => self.report_errors(cx, r),
            }
            // An ICMP error such as port unreachable has closed the resolver's socket.
            if self.sockets[r].is_none() {
                break;
            }
        }
        self.resolver_failed(cx, r);
        false
    }

    fn open<P: Platform>(&mut self, cx: &mut Cx<'_, P>, r: usize) -> Option<SocketId> {
        let to = *cx.shared.config.resolvers.get(r)?;
        let opened = if cx.shared.dns.sockets < SOCKETS_MAX {
            cx.host.udp_open(self.id, to)
        } else {
            Err(HostError::Exhausted)
        };
        match opened {
            Ok(socket) => {
                cx.shared.dns.sockets += 1;
                self.sockets[r] = Some(socket);
                Some(socket)
            }
            Err(error) => {
                if error == HostError::Exhausted {
                    cx.shared.counters.drop(DropReason::HostExhausted);
                }
                None
            }
        }
    }

    fn close<P: Platform>(&mut self, cx: &mut Cx<'_, P>, r: usize) {
        if let Some(socket) = self.sockets[r].take() {
            cx.shared.dns.sockets -= 1;
            cx.host.close(socket, Close::Graceful);
        }
    }

    /// Resolver `r` cannot be reached: nothing will come from it.
    fn resolver_failed<P: Platform>(&mut self, cx: &mut Cx<'_, P>, r: usize) {
        cx.shared.dns.preference.failed(r, cx.now);
        self.close(cx, r);
        let count = resolvers(cx.shared);
        for question in self.questions.iter_mut().filter(|question| question.awaited() & 1 << r != 0) {
            question.failed(r, count, cx.now);
        }
    }

    /// Takes note of the ICMP errors that a socket has received.
    fn report_errors<P: Platform>(&mut self, cx: &mut Cx<'_, P>, r: usize) {
        for _ in 0..ERRORS_MAX {
            let Some(socket) = self.sockets[r] else { return };
            let Some(report) = cx.host.datagram_error(socket) else { return };
            if !matches!(report.cause, IcmpCause::TooBig(_) | IcmpCause::TimeExceeded) {
                self.resolver_failed(cx, r);
            }
        }
    }

    /// Takes what resolver `r` has sent; true if there may be more.
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
                    // The kernel may have put several together.
                    let size = segment.map_or(len, usize::from).max(1);
                    let got = &scratch[..len.min(scratch.len())];
                    got.chunks(size).for_each(|message| self.answered(cx, r, message));
                }
                Err(HostError::WouldBlock) => return false,
                // Not a datagram but news of an ICMP error; the datagrams behind it come next.
                Err(_) => self.report_errors(cx, r),
            }
        }
        true
    }

    /// Resolver `r` has sent a message.
    fn answered<P: Platform>(&mut self, cx: &mut Cx<'_, P>, r: usize, message: &[u8]) {
        let fits = |question: &Question| {
            question.asked & 1 << r != 0
                && message.starts_with(&question.message[..2])
                && Query::parse(&question.message).is_ok_and(|query| query.is_answered_by(message))
        };
        let Some(i) = self.questions.iter().position(fits) else {
            return cx.shared.counters.drop(DropReason::DnsUnsolicited);
        };
        let rcode = Header::parse(message).map_or(0, |header| header.rcode());
        let count = resolvers(cx.shared);
        let question = &mut self.questions[i];
        if [Rcode::ServFail, Rcode::NotImp, Rcode::Refused].iter().any(|&refusal| rcode == refusal as u8) {
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
        cx.shared.dns.preference.answered(r);
        if self.pass_on(cx, i, message) {
            self.forget(cx.shared, i);
        } else {
            let question = &mut self.questions[i];
            question.answer = Some(message.into());
            question.next_at = question.deadline;
            self.readable = true;
        }
    }

    /// Passes on what the link had no credit for.
    fn pass_on_held<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        while let Some(i) = self.questions.iter().position(|question| question.answer.is_some()) {
            let Some(message) = self.questions[i].answer.take() else { return };
            if !self.pass_on(cx, i, &message) {
                self.questions[i].answer = Some(message);
                self.readable = true;
                return;
            }
            self.forget(cx.shared, i);
        }
    }

    /// Gives the guest the answer to question `i`, and keeps it for others. False if the link has no credit.
    fn pass_on<P: Platform>(&mut self, cx: &mut Cx<'_, P>, i: usize, message: &[u8]) -> bool {
        let Ok(query) = Query::parse(&self.questions[i].message) else { return true };
        if query.is_ordinary() {
            let mut key = [0; KEY_LEN_MAX];
            let len = query.key(&mut key);
            cx.shared.dns.cache.put(&key[..len], cx.now, message);
        }
        let limit = answer_len_max(&cx.shared.config, &self.key, &query);
        let passed = answer(cx, (&self.key, limit), &query, message).is_ok();
        if passed {
            self.cause = EndCause::Finished;
            self.to_guest.add(1, message.len());
        }
        passed
    }

    /// Nobody will answer question `i`.
    fn give_up<P: Platform>(&mut self, cx: &mut Cx<'_, P>, i: usize) {
        let awaited = self.questions[i].awaited();
        for r in (0..RESOLVERS_MAX).filter(|r| awaited & 1 << r != 0) {
            cx.shared.dns.preference.failed(r, cx.now);
        }
        match self.questions[i].refusal.take() {
            Some(refusal) => {
                if !self.pass_on(cx, i, &refusal) {
                    cx.shared.counters.drop(DropReason::LinkFull);
                }
            }
            None => {
                if let Ok(query) = Query::parse(&self.questions[i].message) {
                    refuse(cx, &self.key, &query);
                }
            }
        }
        self.forget(cx.shared, i);
    }

    fn forget(&mut self, shared: &mut Shared, i: usize) {
        let question = self.questions.swap_remove(i);
        shared.dns.held -= question.message.len();
    }
}
