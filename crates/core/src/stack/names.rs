//! The guest's DNS queries, and the effects of changed resolvers or a changed network of the host.

use super::{DropReason, EvictionClass, EvictionGroup, Flow, FlowKey, Io, Platform, Stack};
use crate::dns_service::flow::DnsFlow;
use crate::dns_service::{self, Taken};
use crate::flow::FlowId;
use crate::flow_kind::FlowKind;
use crate::time::Duration;
use crate::wire::dns::message::CANONICAL_LEN_MAX;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Most search names that are withdrawn.
const WITHDRAWN_MAX: usize = 16;

impl Stack {
    /// Replaces the host's resolvers. Pending queries are sent anew; the cache is emptied.
    pub fn set_resolvers(&mut self, resolvers: Vec<SocketAddr>) {
        self.shared.config.resolvers = resolvers;
        self.ask_anew();
    }

    /// The host has these addresses from now on, sorted: those that a deny rule for the host itself is about.
    /// Open flows stay.
    pub fn set_host_addresses(&mut self, addresses: Arc<[IpAddr]>) {
        self.policy.set_host_addresses(addresses);
    }

    /// The host's addresses, as they were set last.
    pub fn host_addresses(&self) -> Arc<[IpAddr]> {
        self.policy.host_addresses()
    }

    /// The machine has been suspended for so long since it was started. DNS records expire meanwhile; timers
    /// do not, as those of the guest's kernel and of the host's do not: a connection is as young as its ends
    /// believe.
    pub fn set_suspended(&mut self, total: Duration) {
        self.shared.dns.set_suspended(total);
    }

    /// Replaces the search names that the guest is offered from now on. A guest that depends on router
    /// advertisements gets one soon, which withdraws the former names.
    pub fn set_search(&mut self, search: Vec<String>) {
        let mut withdrawn = std::mem::replace(&mut self.shared.config.search, search);
        withdrawn.append(&mut self.withdrawn);
        for name in withdrawn {
            let is = |other: &String| other.eq_ignore_ascii_case(&name);
            let is_known = self.shared.config.search.iter().chain(&self.withdrawn).any(is);
            if !is_known && self.withdrawn.len() < WITHDRAWN_MAX {
                self.withdrawn.push(name);
            }
        }
        self.advertise_at = self.advertise_at.map(|_| crate::time::Instant::ZERO);
    }

    /// Change of the host's addresses or default routes. Learnt names may no longer hold; flows whose host
    /// socket has lost its address ([`crate::host::Host::is_stranded`]) can get no answer:
    /// connections end with a reset, others begin anew with the guest's next datagram.
    pub fn network_changed<P: Platform>(&mut self, io: &mut Io<'_, P>) {
        self.ask_anew();
        let ids: Vec<FlowId> = self.flows.iter().map(|(id, _)| id).collect();
        for id in ids {
            self.notify_flow(io, id, |flow, cx, _| flow.network_changed(cx));
        }
    }

    /// The name by which the guest learnt an address: the one it had asked for when it got the address in an
    /// answer from the DNS address over UDP. Without final dot, as the guest wrote it. Some thousand
    /// addresses are remembered.
    pub fn name_of(&self, address: IpAddr) -> Option<&str> {
        self.shared.dns.name_of(address)
    }

    fn ask_anew(&mut self) {
        self.shared.dns.network_changed();
        // Resolvers go by their place in the list.
        self.shared.tx.across.forget_cut();
        let is_dns = |(id, flow): (FlowId, &Flow)| matches!(flow, Flow::Dns(_)).then_some(id);
        let ids: Vec<FlowId> = self.flows.iter().filter_map(is_dns).collect();
        for id in ids {
            if let Some(Flow::Dns(flow)) = self.flows.get_mut(id) {
                flow.restart(&mut self.shared);
            }
        }
    }

    /// A datagram to the DNS address, or several of `segment` bytes.
    pub(super) fn questions<P: Platform>(
        &mut self,
        io: &mut Io<'_, P>,
        key: FlowKey,
        payload: &[u8],
        segment: Option<u16>,
    ) -> Result<(), DropReason> {
        let size = segment.map_or(payload.len(), usize::from);
        if size == 0 {
            return Err(DropReason::MalformedDns);
        }
        for message in payload.chunks(size) {
            if let Err(reason) = self.question(io, key, message) {
                self.shared.counters.drop(reason);
            }
        }
        Ok(())
    }

    /// Makes room for one more question of so many bytes, by dropping the oldest of the port with the most
    /// pending ones.
    fn make_room_for_question<P: Platform>(&mut self, io: &mut Io<'_, P>, bytes: usize) {
        while self.shared.dns.is_full(bytes) {
            let Some((ticket, id)) = self.shared.dns.first_to_go() else { return };
            let found = self.notify_flow(io, id, |flow, cx, _| match flow {
                Flow::Dns(questions) => questions.give_way(cx, ticket),
                _ => debug_assert!(false, "a question's flow is of DNS"),
            });
            if found.is_none() {
                debug_assert!(false, "every question that waits has a flow");
                return;
            }
        }
    }

    fn question<P: Platform>(
        &mut self,
        io: &mut Io<'_, P>,
        key: FlowKey,
        message: &[u8],
    ) -> Result<(), DropReason> {
        let query = dns_service::read(&mut io.cx(&mut self.shared), &key, message)?;
        let mut own = [0; CANONICAL_LEN_MAX];
        let (shared, scratch) = (&mut self.shared, &mut self.buffers.scratch);
        let asked = match dns_service::take(&mut io.cx(shared), &key, &query, &mut own, scratch) {
            Ok(Taken::Answered) => return Ok(()),
            Ok(Taken::Ask(asked)) => asked,
            Err(refused) => {
                self.policy.question_refused(io.now, &refused);
                return Err(refused.reason);
            }
        };
        self.make_room_for_question(io, message.len());
        // An equal question that waits is joined, whichever port has asked it.
        let id = match self.shared.dns.flow_asking(&asked).or_else(|| self.flows.find(&key)) {
            Some(id) => id,
            None if self.shared.config.resolvers.is_empty() => {
                dns_service::refuse(&mut io.cx(&mut self.shared), &key, &query);
                return Ok(());
            }
            None if !self.make_room(io, io.now) => {
                dns_service::refuse(&mut io.cx(&mut self.shared), &key, &query);
                return Err(DropReason::FlowTableFull);
            }
            None => {
                let epoch = self.shared.dns.epoch();
                let list = EvictionClass::Unanswered.list(EvictionGroup::Guest);
                let id =
                    self.flows.insert(list, io.now, |id| Flow::Dns(DnsFlow::new(id, key, epoch, io.now)));
                self.count_opened(id);
                id
            }
        };
        self.use_flow(io, id, |flow, cx, _| {
            if let Flow::Dns(questions) = flow {
                questions.ask(cx, &key, &query, &asked);
            }
        });
        Ok(())
    }
}
