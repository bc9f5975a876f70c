//! Flows that begin on the host's side: a published port has accepted a connection, or a datagram has come to
//! one.
//!
//! The driver, which listens on the host, calls these with the ends as the guest is to see them. The guest
//! sees the peer's own address wherever it can answer to it ([`Stack::translate_source`]). From then on such
//! a flow is a flow like any other.

use super::{
    Arrived, Connection, DatagramFlow, DropReason, Endpoint, Flow, FlowKey, HostError, Io, Platform, Protocol,
};
use super::{EvictionClass, EvictionGroup, Stack};
use crate::destination;
use crate::flow::FlowId;
use crate::flow_kind::FlowKind;
use crate::host::SocketId;
use crate::link::NoCredit;
use crate::policy::Request;
use crate::services::{arp, ndp};
use crate::wire::ethernet::MacAddr;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

impl Stack {
    /// The guest's address of a family, if it has one: of a guest that configures itself the one that it has
    /// used last.
    pub fn guest_address(&self, ipv6: bool) -> Option<IpAddr> {
        let config = &self.shared.config;
        let first = if ipv6 { config.v6.map(|n| n.guest.into()) } else { config.v4.map(|n| n.guest.into()) };
        let seen = match self.flows.owners() {
            Some((owners, _)) => owners.guest_address(ipv6),
            None => self.seen[usize::from(ipv6)],
        };
        first.map(|first| seen.unwrap_or(first))
    }

    /// Notes an address that the guest uses, in a frame that has passed its checks.
    pub(super) fn notice_address(&mut self, ip: IpAddr) {
        let link_local = |ip: Ipv6Addr| ip.is_unicast_link_local();
        // One that is the only kind that the guest has is where it can be met.
        let is_minor = matches!(ip, IpAddr::V6(v6) if link_local(v6))
            && !self.shared.config.v6.is_some_and(|net| link_local(net.guest));
        let seen = usize::from(ip.is_ipv6());
        if !is_minor && self.seen[seen] != Some(ip) {
            self.set_seen(ip);
        }
    }

    /// Sets an address that the guest has used last, if it may have it.
    pub(super) fn set_seen(&mut self, ip: IpAddr) {
        if !self.shared.config.self_configured || !self.is_guest(ip) {
            return;
        }
        self.seen[usize::from(ip.is_ipv6())] = Some(ip);
        self.shared.journal.guest_address(ip);
        if let Some((owners, _)) = self.flows.owners() {
            owners.set_guest_address(ip);
        }
    }

    /// Translated address of a peer, as the guest sees it: its own, unless what the guest would answer could
    /// not come back to brodo ([`destination::seen_as`]). `None` if the guest does not speak the peer's
    /// family.
    pub fn translate_source(&self, peer: SocketAddr) -> Option<Endpoint> {
        destination::seen_as(&self.shared.config, peer)
    }

    /// A connection that the host has accepted: the guest gets a SYN for it. `adopt` takes the accepted
    /// socket into the host's for the flow.
    ///
    /// # Errors
    /// Reason for which the guest gets none, counted. Unless `adopt` has taken the socket, the caller still
    /// has it, and should reset it.
    pub fn inbound_tcp<P: Platform>(
        &mut self,
        io: &mut Io<'_, P>,
        key: FlowKey,
        adopt: impl FnOnce(&mut P::Host, FlowId) -> Result<SocketId, HostError>,
    ) -> Result<FlowId, DropReason> {
        debug_assert_eq!(key.protocol, Protocol::Tcp, "the key of a connection");
        self.opening(io, |stack, io| stack.call(io, key, adopt))
    }

    fn call<P: Platform>(
        &mut self,
        io: &mut Io<'_, P>,
        key: FlowKey,
        adopt: impl FnOnce(&mut P::Host, FlowId) -> Result<SocketId, HostError>,
    ) -> Result<FlowId, DropReason> {
        let mut iss_after = None;
        if let Some(id) = self.flows.find(&key) {
            // A new connection between the same ends replaces only the remains of an earlier one.
            let Some(Flow::Tcp(earlier)) = self.flows.get_mut(id) else { return Err(DropReason::EndsInUse) };
            if !earlier.makes_way_for_inbound(&mut io.cx(&mut self.shared)) {
                return Err(DropReason::EndsInUse);
            }
            iss_after = Some(earlier.sequence_used());
            self.remove(io, id);
        }
        self.admit_inbound(io, &key, key.remote.into())?;
        let id = self.flows.reserve();
        let socket = adopt(io.host, id).map_err(|_| DropReason::HostExhausted)?;
        self.resolve_guest(io, &key);
        // The guest's answer to the SYN may come to another worker while the SYN is being sent.
        self.claim(&key);
        self.flows.insert(EvictionClass::Unanswered.list(EvictionGroup::Peer), io.now, |id| {
            Flow::Tcp(Connection::active_open(&mut io.cx(&mut self.shared), id, key, socket, iss_after))
        });
        self.count_opened(id);
        self.settle(io, id);
        Ok(id)
    }

    /// Asks the guest for its MAC address, if it has not sent a frame yet. Frames until the answer go to all
    /// stations of the link: a guest takes a datagram so, but no segment, and the SYN is sent again.
    fn resolve_guest<P: Platform>(&mut self, io: &mut Io<'_, P>, key: &FlowKey) {
        self.adopt_guest_mac();
        if self.shared.tx.guest_mac == MacAddr::BROADCAST {
            let ask = if key.guest.is_ipv6() { ndp::solicit } else { arp::request };
            let len = ask(&self.shared.config, &mut self.buffers.scratch);
            self.answer(io, len);
        }
    }

    /// Passes datagrams of a published port on to the guest. `adopt` gives a send-only socket, which sends to
    /// the peer from the published port. For a flow that such a datagram has begun, `adopt` gets its socket,
    /// sets its source to the address that the peer has used now, and gives it back: a peer may use several
    /// ports and addresses that lead here, and a port may be closed and opened again. A flow that the guest
    /// has begun keeps its socket as it is.
    ///
    /// # Errors
    /// [`NoCredit`]: nothing was taken, because what came before is not with the guest yet; datagrams are
    /// best left in the kernel until [`Stack::takes_datagrams`].
    pub fn inbound_datagram<P: Platform>(
        &mut self,
        io: &mut Io<'_, P>,
        key: FlowKey,
        arrived: &Arrived<'_>,
        adopt: impl FnOnce(&mut P::Host, FlowId, Option<SocketId>) -> Result<SocketId, HostError>,
    ) -> Result<(), NoCredit> {
        if !self.takes_datagrams() {
            return Err(NoCredit);
        }
        debug_assert_eq!(key.protocol, Protocol::Udp, "the key of a UDP conversation");
        let found = self.opening(io, |stack, io| match stack.flows.find(&key) {
            Some(id) => stack.retarget(io, id, adopt),
            None => stack.inbound_flow(io, key, arrived.peer, adopt),
        });
        let Ok(id) = found else { return Ok(()) };
        self.use_flow(io, id, |flow, cx, buffers| {
            let Flow::Datagram(datagrams) = flow else { return };
            let (bytes, size) = (arrived.payload.len(), arrived.segment.map_or(0, usize::from));
            let count = if size > 0 { bytes.div_ceil(size).max(1) } else { 1 };
            datagrams.record_received(cx.now, count, bytes);
            buffers.inbox.put(key, arrived);
            // A rest that the link does not take goes first when it has credit again.
            let _ = buffers.inbox.deliver(cx);
        });
        Ok(())
    }

    /// Passes a host's answer to a group on to the guest, if one was received and the policy would let that
    /// host begin a flow at a published port.
    pub(super) fn pass_answer<P: Platform>(&mut self, io: &mut Io<'_, P>) {
        let Some((key, sender)) = self.buffers.inbox.take_answer() else { return };
        // A socket of the guest's family hears no other.
        let Some(remote) = self.translate_source(sender) else { return };
        let request = Request {
            protocol: Protocol::Udp,
            guest: key.guest.into(),
            remote: remote.into(),
            to: sender,
            forwarded: true,
            dns_tls: false,
        };
        match self.policy.decide_inbound(io.now, &request) {
            Ok(()) => {
                self.buffers.inbox.pass(FlowKey { remote, ..key });
                // A rest that the link does not take goes first when it has credit again.
                let _ = self.buffers.inbox.deliver(&mut io.cx(&mut self.shared));
            }
            Err(refusal) => self.shared.counters.drop(refusal.reason),
        }
    }

    /// The socket of the UDP flow with this key, outbound or inbound.
    pub fn datagram_socket(&self, key: &FlowKey) -> Option<SocketId> {
        let id = self.flows.find(key)?;
        if let Some(Flow::Datagram(flow)) = self.flows.get(id) { flow.socket() } else { None }
    }

    /// Passes on what has waited for the link's credit, as [`Stack::serve`] does, and says whether
    /// [`Stack::inbound_datagram`] would now take something.
    pub fn deliver_datagrams<P: Platform>(&mut self, io: &mut Io<'_, P>) -> bool {
        self.buffers.inbox.deliver(&mut io.cx(&mut self.shared)).is_ok() && self.takes_datagrams()
    }

    /// Whether [`Stack::inbound_datagram`] would take something.
    pub fn takes_datagrams(&self) -> bool {
        self.buffers.inbox.is_empty() && !self.shared.tx.stalled
    }

    /// Has the answers of a flow leave from where its peer has asked now.
    fn retarget<P: Platform>(
        &mut self,
        io: &mut Io<'_, P>,
        id: FlowId,
        adopt: impl FnOnce(&mut P::Host, FlowId, Option<SocketId>) -> Result<SocketId, HostError>,
    ) -> Result<FlowId, DropReason> {
        if let Some(Flow::Datagram(flow)) = self.flows.get(id)
            && let Some(socket) = flow.published_socket()
        {
            let same = adopt(io.host, id, Some(socket)).map_err(|_| DropReason::HostExhausted)?;
            debug_assert_eq!(same, socket, "a flow keeps its socket");
        }
        Ok(id)
    }

    fn inbound_flow<P: Platform>(
        &mut self,
        io: &mut Io<'_, P>,
        key: FlowKey,
        peer: SocketAddr,
        adopt: impl FnOnce(&mut P::Host, FlowId, Option<SocketId>) -> Result<SocketId, HostError>,
    ) -> Result<FlowId, DropReason> {
        self.admit_inbound(io, &key, peer)?;
        let id = self.flows.reserve();
        let socket = adopt(io.host, id, None).map_err(|_| DropReason::HostExhausted)?;
        self.shared.counters.udp_inbound += 1;
        self.resolve_guest(io, &key);
        let id = self.flows.insert(EvictionClass::Unanswered.list(EvictionGroup::Peer), io.now, |id| {
            Flow::Datagram(DatagramFlow::inbound(id, key, socket, io.now))
        });
        self.count_opened(id);
        Ok(id)
    }
}
