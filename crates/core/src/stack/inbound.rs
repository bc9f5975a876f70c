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
use crate::cidr;
use crate::flow::FlowId;
use crate::flow_kind::FlowKind;
use crate::host::SocketId;
use crate::link::NoCredit;
use crate::policy::Request;
use std::net::{IpAddr, SocketAddr};

impl Stack {
    /// The guest's address of a family, if it has one.
    pub fn guest_address(&self, ipv6: bool) -> Option<IpAddr> {
        let config = &self.shared.config;
        if ipv6 { config.v6.map(|n| n.guest.into()) } else { config.v4.map(|n| n.guest.into()) }
    }

    /// How the guest sees a peer: as itself, unless what the guest would answer could not come back to brodo
    /// (addresses of the guest's own network, loopback, link-local). Then the address stands for it that
    /// stands for the host's loopback, or the router's. `None` if the guest does not speak the peer's family.
    pub fn translate_source(&self, peer: SocketAddr) -> Option<Endpoint> {
        let ip = match peer.ip().to_canonical() {
            IpAddr::V4(ip) => {
                let n = self.shared.config.v4?;
                let on_link = (ip.to_bits() ^ n.guest.to_bits()) & cidr::mask_v4(n.prefix_len) == 0;
                let far = !(on_link || ip.is_loopback() || ip.is_link_local() || ip.is_unspecified());
                let ours = self.shared.config.is_ours(ip.into());
                IpAddr::V4(if far && !ours { ip } else { n.host_loopback.unwrap_or(n.gateway) })
            }
            IpAddr::V6(ip) => {
                let n = self.shared.config.v6?;
                let on_link = (ip.to_bits() ^ n.guest.to_bits()) & cidr::mask_v6(n.prefix_len) == 0;
                let local = ip.is_loopback() || ip.is_unicast_link_local() || ip.is_unspecified();
                let ours = self.shared.config.is_ours(ip.into());
                IpAddr::V6(if on_link || local || ours { n.host_loopback.unwrap_or(n.gateway) } else { ip })
            }
        };
        Some(Endpoint::new(ip, peer.port()))
    }

    /// A connection that the host has accepted: the guest gets a SYN for it. `adopt` takes the accepted
    /// socket into the host's for the flow.
    ///
    /// # Errors
    /// Why the guest gets none, which is counted. Unless `adopt` has taken the socket, the caller still has
    /// it, and should reset it.
    pub fn inbound_tcp<P: Platform>(
        &mut self,
        io: &mut Io<'_, P>,
        (guest, remote): (Endpoint, Endpoint),
        adopt: impl FnOnce(&mut P::Host, FlowId) -> Result<SocketId, HostError>,
    ) -> Result<FlowId, DropReason> {
        self.recorder.now = io.now;
        let result = self.call(io, FlowKey { protocol: Protocol::Tcp, guest, remote }, adopt);
        if let Err(reason) = result {
            self.shared.counters.drop(reason);
        }
        result
    }

    fn call<P: Platform>(
        &mut self,
        io: &mut Io<'_, P>,
        key: FlowKey,
        adopt: impl FnOnce(&mut P::Host, FlowId) -> Result<SocketId, HostError>,
    ) -> Result<FlowId, DropReason> {
        let mut iss_after = None;
        if let Some(id) = self.flows.find(&key) {
            // Only the remains of an earlier connection give way to a new one between the same ends.
            let Some(Flow::Tcp(earlier)) = self.flows.get_mut(id) else { return Err(DropReason::EndsInUse) };
            if !earlier.makes_way_for_inbound(&mut io.cx(&mut self.shared)) {
                return Err(DropReason::EndsInUse);
            }
            iss_after = Some(earlier.sequence_used());
            self.remove(io, id);
        }
        self.make_room_inbound(io, key.remote.ip(), io.now)?;
        let id = self.flows.reserve();
        let socket = adopt(io.host, id).map_err(|_| DropReason::HostExhausted)?;
        self.flows.insert(EvictionClass::Unanswered.list(EvictionGroup::Peer), io.now, |id| {
            Flow::Tcp(Connection::active_open(&mut io.cx(&mut self.shared), (id, key), socket, iss_after))
        });
        self.count_opened(id);
        self.settle(io, id);
        Ok(id)
    }

    /// Passes datagrams of a published port on to the guest. `adopt` gives a socket that sends to the peer
    /// from the published port, and of which nothing can be received. If such a datagram has begun the flow
    /// before, `adopt` is told of its socket, has that send from where the peer has asked now, and gives it
    /// back: a peer may ask several ports and addresses that lead here, and a port may be closed and opened
    /// again. A flow that the guest has begun keeps its socket as it is.
    ///
    /// # Errors
    /// [`NoCredit`]: nothing was taken, because what came before is not with the guest yet; datagrams are
    /// best left in the kernel until [`Stack::takes_datagrams`].
    pub fn inbound_datagram<P: Platform>(
        &mut self,
        io: &mut Io<'_, P>,
        (guest, remote): (Endpoint, Endpoint),
        arrived: &Arrived<'_>,
        adopt: impl FnOnce(&mut P::Host, FlowId, Option<SocketId>) -> Result<SocketId, HostError>,
    ) -> Result<(), NoCredit> {
        if !self.takes_datagrams() {
            return Err(NoCredit);
        }
        self.recorder.now = io.now;
        let key = FlowKey { protocol: Protocol::Udp, guest, remote };
        let found = match self.flows.find(&key) {
            Some(id) => self.retarget(io, id, adopt),
            None => self.inbound_flow(io, key, arrived.peer, adopt),
        };
        match found {
            Ok(id) => {
                self.use_flow(io, id, |flow, cx, buffers| {
                    let Flow::Datagram(datagrams) = flow else { return };
                    let (bytes, size) = (arrived.payload.len(), arrived.segment.map_or(0, usize::from));
                    datagrams.heard(cx.now, if size > 0 { bytes.div_ceil(size).max(1) } else { 1 }, bytes);
                    buffers.inbox.put(key, arrived);
                    // A rest that the link does not take goes first when it has credit again.
                    let _ = buffers.inbox.deliver(cx);
                });
            }
            Err(reason) => self.shared.counters.drop(reason),
        }
        Ok(())
    }

    /// The socket of the UDP flow between these ends, whoever has begun it.
    pub fn datagram_socket(&self, (guest, remote): (Endpoint, Endpoint)) -> Option<SocketId> {
        let id = self.flows.find(&FlowKey { protocol: Protocol::Udp, guest, remote })?;
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
        let request =
            Request { protocol: Protocol::Udp, remote: key.remote.into(), to: peer, forwarded: true };
        self.policy.decide_inbound(&request).map_err(|refusal| refusal.reason)?;
        self.make_room_inbound(io, key.remote.ip(), io.now)?;
        let id = self.flows.reserve();
        let socket = adopt(io.host, id, None).map_err(|_| DropReason::HostExhausted)?;
        self.shared.counters.udp_inbound += 1;
        let id = self.flows.insert(EvictionClass::Unanswered.list(EvictionGroup::Peer), io.now, |id| {
            Flow::Datagram(DatagramFlow::inbound(id, key, socket, io.now))
        });
        self.count_opened(id);
        Ok(id)
    }
}
