//! DNS over TCP (RFC 7766): the guest's stream ends here, and the resolver's is brodo's own. A resolver gets
//! whole questions and nothing else of the guest's, also one on the host's loopback.
//!
//! *Questions* are cut from the guest's stream by their length fields and taken one by one, as those over
//! UDP ([`crate::dns_service`]): within the same rate, and judged if there is a policy. Host entries, cache
//! and refusals are answered at once. A question that leaves has an identifier of this connection's and
//! segments of its own. Under a policy it is written anew, name and type, so that no byte of the guest's
//! message passes.
//!
//! *Answers* are cut from the resolver's stream likewise and matched with their questions. Under a policy
//! they are cut down to what answers, and pinned before the guest gets them. Their order is that of the
//! resolver (RFC 7766, 6.2.1.1).
//!
//! *Zone transfers* are not implemented, because they are answers of many messages (RFC 5936, 2.2): a guest
//! asks the server of the zone itself.
//!
//! *Bounds*: [`crate::dns::STREAMS_MAX`] connections of a worker, [`PENDING_MAX`] questions that wait for the
//! resolver, and [`ANSWERS_MAX`] bytes that wait for the guest; beyond them nothing is taken from either
//! side, and TCP holds the sender back. A connection on which nothing whole arrives for [`IDLE`] ends.
//!
//! *End.* The guest's FIN takes effect when all its questions are answered. If the resolver ends its stream,
//! pending questions get SERVFAIL, and the guest a FIN: its program connects anew (RFC 7766, 6.2.4).

use super::Connection;
use super::receiver::ReceiverState;
use crate::context::{Cx, Platform};
use crate::counters::DropReason;
use crate::dns_service::{self, QUERY_LEN_MAX, Taken};
use crate::flow::end::EndCause;
use crate::host::{Close, Host, HostError, Readiness, SocketId};
use crate::time::{Duration, Instant};
use crate::wire::dns::message::{CANONICAL_LEN_MAX, Fit, KEY_LEN_MAX, Query};
use crate::wire::dns::{Header, Rcode};
use std::io::{IoSlice, IoSliceMut};

/// Most questions that wait for the resolver.
const PENDING_MAX: usize = 16;
/// Bytes toward the guest beyond which no further question or answer is taken.
const ANSWERS_MAX: u32 = 128 << 10;
/// Time without a whole message after which a connection ends.
const IDLE: Duration = Duration::from_secs(10);
/// Most reads of the resolver's stream in one turn, and bytes of each.
const READS_MAX: usize = 16;
const READ_LEN: usize = 8 << 10;
/// Bytes of the length before each message (RFC 1035, 4.2.2).
const PREFIX: usize = 2;
/// Longest message with its length.
const FRAMED_LEN_MAX: usize = PREFIX + u16::MAX as usize;

/// A question that waits for the resolver.
#[derive(Debug)]
struct Pending {
    /// As brodo has sent it.
    asked: Box<[u8]>,
    /// As the guest has.
    message: Box<[u8]>,
    /// The resolver has refused it with EDNS.
    has_refused_edns: bool,
}

impl Pending {
    /// The question without EDNS, if the resolver has refused it with.
    fn without_edns(&self, answer: &[u8]) -> Option<Box<[u8]>> {
        let is_refused = Header::parse(answer)?.may_refuse_edns();
        Query::parse(&self.asked).ok()?.without_edns().filter(|_| is_refused)
    }
}

/// State of one such connection.
#[derive(Debug)]
pub(super) struct DnsStream {
    pending: Vec<Pending>,
    next_id: u16,
    /// Questions, with lengths, that the resolver's socket has not taken.
    unwritten: Vec<u8>,
    /// Bytes of the resolver's next answers.
    unread: Vec<u8>,
    readable: bool,
    writable: bool,
    /// Arrival of the last whole message, or the beginning.
    active_at: Instant,
}

/// The end of the resolver's stream, or of the guest's after its last answer.
struct Over(Close);

impl DnsStream {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            pending: Vec::new(),
            next_id: 0,
            unwritten: Vec::new(),
            unread: Vec::new(),
            readable: false,
            writable: true,
            active_at: now,
        }
    }

    /// Time at which an idle connection ends.
    pub(super) fn deadline(&self) -> Instant {
        self.active_at + IDLE
    }

    /// Readiness of the resolver's socket.
    pub(super) fn socket_event(&mut self, ready: Readiness) {
        self.readable |= ready.readable || ready.read_closed || ready.error;
        self.writable |= ready.writable || ready.error;
    }

    /// Whether the resolver owes nothing.
    fn is_quiet(&self) -> bool {
        self.pending.is_empty() && self.unwritten.is_empty()
    }

    /// Removes the next whole answer from the resolver's stream.
    fn next_answer(&mut self) -> Option<Vec<u8>> {
        let len = usize::from(u16::from_be_bytes(*self.unread.first_chunk::<PREFIX>()?));
        if self.unread.len() < PREFIX + len {
            return None;
        }
        let framed: Vec<u8> = self.unread.drain(..PREFIX + len).collect();
        Some(framed[PREFIX..].to_vec())
    }

    /// Removes the question that `answer` answers.
    fn take_asked(&mut self, answer: &[u8]) -> Option<Pending> {
        let header = Header::parse(answer)?;
        let is_bare_refusal = |query: &Query<'_>| {
            header.is_bare_format_error(answer) && header.id == query.header.id && query.plain_len().is_some()
        };
        let fits = |pending: &Pending| {
            let query = Query::parse(&pending.asked);
            query.is_ok_and(|query| query.fit(query.header.id, answer) != Fit::No || is_bare_refusal(&query))
        };
        let place = self.pending.iter().position(fits)?;
        Some(self.pending.remove(place))
    }

    /// Puts a question in line for the resolver, for that of the guest's; perhaps anew, without EDNS.
    fn ask(&mut self, asked: &[u8], message: Box<[u8]>, has_refused_edns: bool) {
        let mut own: Box<[u8]> = asked.into();
        own[..2].copy_from_slice(&self.next_id.to_be_bytes());
        self.next_id = self.next_id.wrapping_add(1);
        self.unwritten.extend((own.len() as u16).to_be_bytes());
        self.unwritten.extend(&own);
        self.pending.push(Pending { asked: own, message, has_refused_edns });
    }

    /// Writes what the resolver's socket takes.
    fn write<H: Host>(&mut self, host: &mut H, socket: SocketId) -> Result<(), Over> {
        while self.writable && !self.unwritten.is_empty() {
            match host.tcp_send(socket, &[IoSlice::new(&self.unwritten)]) {
                Ok(taken) => drop(self.unwritten.drain(..taken)),
                Err(HostError::WouldBlock) => self.writable = false,
                Err(_) => return Err(Over(Close::Reset)),
            }
        }
        Ok(())
    }

    /// Reads more of the resolver's stream; false if there is nothing now.
    fn read<H: Host>(&mut self, host: &mut H, socket: SocketId) -> Result<bool, Over> {
        let mut bytes = [0; READ_LEN];
        match host.tcp_recv(socket, &mut [IoSliceMut::new(&mut bytes)]) {
            Ok(0) => Err(Over(Close::Graceful)),
            Ok(read) => {
                self.unread.extend(&bytes[..read]);
                debug_assert!(self.unread.len() < FRAMED_LEN_MAX + READ_LEN, "whole messages were taken");
                Ok(true)
            }
            Err(HostError::WouldBlock) => {
                self.readable = false;
                Ok(false)
            }
            Err(_) => Err(Over(Close::Reset)),
        }
    }
}

impl Connection {
    /// Makes this a connection of brodo's DNS service: nothing of either stream passes as it is.
    pub(super) fn serve_dns(&mut self, cx: &mut Cx<'_, impl Platform>) {
        cx.shared.dns.streams += 1;
        self.dns = Some(Box::new(DnsStream::new(cx.now)));
        self.rx.hold();
        self.tx.pause();
    }

    /// Whether it is one.
    pub(super) fn is_dns(&self) -> bool {
        self.dns.is_some()
    }

    /// Takes questions and answers, as many as there are and may be.
    pub(super) fn converse<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        let Some(socket) = self.socket else { return };
        let Some(mut stream) = self.dns.take() else { return };
        let outcome = self.exchange(cx, &mut stream, socket);
        if let Err(Over(how)) = outcome {
            self.end_dns(cx, &mut stream, how);
        }
        self.dns = Some(stream);
        self.update_window(cx.shared, cx.now);
    }

    fn exchange<P: Platform>(
        &mut self,
        cx: &mut Cx<'_, P>,
        stream: &mut DnsStream,
        socket: SocketId,
    ) -> Result<(), Over> {
        if self.tx.is_connecting() {
            return Ok(());
        }
        self.pass_answers(cx, stream)?;
        for _ in 0..READS_MAX {
            if !stream.readable || self.tx.queued() >= ANSWERS_MAX || !stream.read(cx.host, socket)? {
                break;
            }
            self.pass_answers(cx, stream)?;
        }
        if stream.readable && self.tx.queued() < ANSWERS_MAX {
            self.list_ready(cx.shared);
        }
        let all_taken = self.take_questions(cx, stream)?;
        stream.write(cx.host, socket)?;
        let finished = self.rx.state() != ReceiverState::Open && all_taken && stream.is_quiet();
        if finished { Err(Over(Close::Graceful)) } else { Ok(()) }
    }

    /// Takes the guest's questions; true if no whole one is left.
    fn take_questions<P: Platform>(
        &mut self,
        cx: &mut Cx<'_, P>,
        stream: &mut DnsStream,
    ) -> Result<bool, Over> {
        let mut scratch = Vec::new();
        while stream.pending.len() < PENDING_MAX && self.tx.queued() < ANSWERS_MAX {
            let Some(message) = self.rx.next_message(cx.shared, QUERY_LEN_MAX) else { return Ok(true) };
            let message = message.map_err(|_| {
                cx.shared.counters.drop(DropReason::MalformedDns);
                Over(Close::Graceful)
            })?;
            scratch.resize(FRAMED_LEN_MAX, 0);
            stream.active_at = cx.now;
            self.take_question(cx, stream, &message, &mut scratch)?;
        }
        Ok(false)
    }

    fn take_question<P: Platform>(
        &mut self,
        cx: &mut Cx<'_, P>,
        stream: &mut DnsStream,
        message: &[u8],
        scratch: &mut [u8],
    ) -> Result<(), Over> {
        let key = self.key;
        match dns_service::read(cx, &key, message) {
            Err(reason) => cx.shared.counters.drop(reason),
            Ok(query) => {
                let mut own = [0; CANONICAL_LEN_MAX];
                match dns_service::take(cx, &key, &query, &mut own, scratch) {
                    Ok(Taken::Answered) => {}
                    Ok(Taken::Ask(asked)) if asked.is_zone_transfer() => {
                        dns_service::answer_error(cx, &key, message, Rcode::NotImp);
                    }
                    Ok(Taken::Ask(asked)) => {
                        let preference = &cx.shared.dns.preference;
                        let is_plain =
                            self.upstream.resolver().is_some_and(|r| preference.is_plain(r, cx.now));
                        let plain = asked.without_edns().filter(|_| is_plain);
                        let asked = plain.as_deref().unwrap_or(asked.message);
                        stream.ask(asked, query.message.into(), false);
                    }
                    Err(refused) => {
                        cx.shared.counters.drop(refused.reason);
                        cx.shared.dns.refused.push(refused);
                    }
                }
            }
        }
        self.say_replies(cx)
    }

    /// Passes whole answers of the resolver's on.
    fn pass_answers<P: Platform>(&mut self, cx: &mut Cx<'_, P>, stream: &mut DnsStream) -> Result<(), Over> {
        while self.tx.queued() < ANSWERS_MAX {
            let Some(mut answer) = stream.next_answer() else { break };
            let Some(pending) = stream.take_asked(&answer) else {
                cx.shared.counters.drop(DropReason::DnsUnsolicited);
                continue;
            };
            stream.active_at = cx.now;
            if let Some(plain) = pending.without_edns(&answer) {
                stream.ask(&plain, pending.message, true);
                continue;
            }
            let Ok(query) = Query::parse(&pending.message) else { continue };
            self.learn(cx, &pending, &query, &answer);
            query.restore(&mut answer);
            dns_service::give_answer(cx, &self.key, &query, &answer);
            self.say_replies(cx)?;
        }
        Ok(())
    }

    /// Keeps an answer in the cache, where questions look for it however the resolver was asked, and notes if
    /// that knows no EDNS.
    fn learn<P: Platform>(&self, cx: &mut Cx<'_, P>, pending: &Pending, query: &Query<'_>, answer: &[u8]) {
        let is_answer = Header::parse(answer).is_some_and(|header| !header.is_failure());
        if let Some(resolver) = self.upstream.resolver().filter(|_| pending.has_refused_edns && is_answer) {
            cx.shared.dns.preference.answered_plain(resolver, cx.now);
        }
        let (mut own, has_policy) = ([0; CANONICAL_LEN_MAX], cx.shared.config.rules.shared.is_some());
        let asked = if has_policy { dns_service::canonical(query, &mut own) } else { Some(*query) };
        if let Some(asked) = asked.filter(Query::is_ordinary) {
            let mut key = [0; KEY_LEN_MAX];
            let len = asked.key(&mut key);
            let now = cx.shared.dns.record_time(cx.now);
            cx.shared.dns.cache.put(&key[..len], now, answer);
        }
    }

    /// Puts the service's replies into the stream to the guest.
    fn say_replies<P: Platform>(&mut self, cx: &mut Cx<'_, P>) -> Result<(), Over> {
        let replies = std::mem::take(&mut cx.shared.dns.replies);
        if replies.is_empty() {
            return Ok(());
        }
        self.list_ready(cx.shared);
        // Half a message would be another one.
        if self.tx.say(cx.shared, &replies) { Ok(()) } else { Err(Over(Close::Reset)) }
    }

    /// Nothing whole has come for a while.
    pub(super) fn dns_timed_out<P: Platform>(&mut self, cx: &mut Cx<'_, P>) {
        let Some(mut stream) = self.dns.take() else { return };
        self.end_dns(cx, &mut stream, Close::Graceful);
        self.dns = Some(stream);
    }

    /// Time at which an idle connection ends, if this is one of DNS that goes on.
    pub(super) fn dns_deadline(&self) -> Option<Instant> {
        self.dns
            .as_ref()
            .filter(|_| self.socket.is_some() && !self.tx.is_connecting())
            .map(|dns| dns.deadline())
    }

    /// Ends both streams: pending questions get SERVFAIL, then the guest a FIN.
    fn end_dns<P: Platform>(&mut self, cx: &mut Cx<'_, P>, stream: &mut DnsStream, how: Close) {
        for pending in stream.pending.drain(..) {
            if let Ok(query) = Query::parse(&pending.message) {
                dns_service::refuse(cx, &self.key, &query);
            }
        }
        let replied = self.say_replies(cx).is_ok();
        self.close_socket(cx, how);
        self.rx.stop(cx.shared);
        self.cause = EndCause::Finished;
        if !replied {
            self.cause = EndCause::NoResources;
            return self.reset_guest(cx);
        }
        self.tx.finish();
        self.list_ready(cx.shared);
    }
}
