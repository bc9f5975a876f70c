//! Frames of another worker's flows.
//!
//! Frames of a flow come to its owner as long as the guest and the kernel keep it on one queue. They do not
//! always. The driver of a virtual machine chooses the queue by the processor that a thread runs on. The
//! kernel steers a TAP's frames to the queue on which their answers were written, and falls back to a hash
//! after some seconds of silence; both name the same queue for an outbound flow, but an inbound flow belongs
//! to the worker that has accepted it, whatever the hash says. So a frame of a flow that a stack does not
//! have is looked up among the owners of all flows ([`FlowOwners`]).
//!
//! ICMP errors of the guest have the hash of their own addresses, not of the packet that they quote: they may
//! come by any queue, and belong where the quoted packet's flow is.
//!
//! Fragments have no ports, and those of one datagram may come by several queues. The first worker puts all
//! of them together, and passes the whole packet on to the owner of its flow ([`Stack::take_passed`]).

use super::{ICMP, ICMPV6, Icmpv4Message, Icmpv6Message, IpAddr, RxFrame, Stack, TcpFlags};
use crate::flow::owners::FlowOwners;
use crate::flow::{FlowKey, Protocol};
use crate::icmp::{self, GuestError};
use crate::ingress::{self, Frame, L4, Packet};
use crate::wire::ethernet::{EthernetHeader, MacAddr};
use std::sync::Arc;

/// The worker of flows that begin on the host's side, and of fragments.
const FIRST: u32 = 0;

impl Stack {
    /// Shares flows with other workers: `owners` knows which of them has which. The flows that are there are
    /// claimed now.
    pub fn share_flows(&mut self, owners: Arc<FlowOwners>) {
        if self.shared.tx.guest_mac != MacAddr::BROADCAST {
            owners.set_guest_mac(self.shared.tx.guest_mac);
        }
        self.shared.tx.across = owners.share(&self.shared.tx.across);
        for seen in self.seen.into_iter().flatten() {
            owners.set_guest_address(seen);
        }
        self.flows.claim_keys(owners, self.worker);
    }

    /// The other worker that is to get a frame, for a stack that shares flows; `None` if it is this one,
    /// which must then be given it by [`Stack::frames`] or [`Stack::frame`].
    ///
    /// `answers` says whether the answers from this UDP port of the guest belong to the first worker, because
    /// it is published there.
    pub fn steer(&mut self, frame: &RxFrame<'_>, answers: impl Fn(u16) -> bool) -> Option<u32> {
        let (owners, worker) = self.flows.owners()?;
        let packet = match ingress::decode(&self.shared.config, frame) {
            Ok(Frame::Packet(packet)) => packet,
            Ok(Frame::Fragment { .. }) => return (worker != FIRST).then_some(FIRST),
            Ok(Frame::Arp(..)) | Err(_) => return None,
        };
        let own = packet.key();
        let opens = own.is_some() && may_open(&packet);
        let key = own.or_else(|| quoted_flow(&packet))?;
        if self.flows.find(&key).is_some() {
            return None;
        }
        let is_udp = key.protocol == Protocol::Udp;
        let owner = if !opens {
            owners.owner(&key)
        } else if is_udp && answers(key.guest.port()) {
            // The port is published, so the flow of its answers is the first worker's to open.
            Some(owners.owner(&key).unwrap_or(FIRST))
        } else {
            let owner = owners.claim(&key, worker);
            if owner == worker {
                self.claimed.push(key);
            }
            Some(owner)
        };
        owner.filter(|&owner| owner != worker)
    }

    /// Takes the guest's MAC address from the worker that has learned it last: a guest may change it.
    pub(super) fn adopt_guest_mac(&mut self) {
        if let Some(mac) = self.flows.owners().and_then(|(owners, _)| owners.guest_mac()) {
            self.shared.tx.guest_mac = mac;
        }
    }

    /// Leaves a packet put together from fragments to the other worker that owns its flow; false if there is
    /// none.
    pub(super) fn pass_on(&mut self, packet: &Packet<'_>) -> bool {
        let Some((owners, worker)) = self.flows.owners() else { return false };
        let Some(owner) = packet.key().and_then(|key| owners.owner(&key)).filter(|&it| it != worker) else {
            return false;
        };
        let mut frame = vec![0; EthernetHeader::LEN];
        packet.l2.emit(&mut frame);
        frame.extend(packet.whole);
        self.passed.push((owner, frame));
        true
    }

    /// Frames put together from fragments since the last call, each with the worker whose flow it is of. They
    /// are for its [`Stack::passed_frame`].
    pub fn take_passed(&mut self) -> Vec<(u32, Vec<u8>)> {
        std::mem::take(&mut self.passed)
    }

    /// Claims the key of a flow that is about to send its first frame, for a stack that shares flows.
    pub(super) fn claim(&self, key: &FlowKey) {
        if let Some((owners, worker)) = self.flows.owners() {
            owners.claim(key, worker);
        }
    }

    /// Gives up the keys that were claimed for frames of which no flow came.
    pub(super) fn release_unopened(&mut self) {
        if self.claimed.is_empty() {
            return;
        }
        if let Some((owners, worker)) = self.flows.owners() {
            for key in self.claimed.iter().filter(|key| self.flows.find(key).is_none()) {
                owners.release(key, worker);
            }
        }
        self.claimed.clear();
    }
}

/// Whether a frame without a flow may open one.
fn may_open(packet: &Packet<'_>) -> bool {
    match &packet.l4 {
        L4::Tcp(Ok((tcp, _))) => tcp.flags.contains(TcpFlags::SYN) && !tcp.flags.contains(TcpFlags::ACK),
        L4::Tcp(Err(_)) => false,
        _ => true,
    }
}

/// The flow of the packet that an ICMP error of the guest quotes.
fn quoted_flow(packet: &Packet<'_>) -> Option<FlowKey> {
    let message = packet.payload;
    let error = match (packet.protocol, packet.src, packet.dst) {
        (ICMP, ..) => GuestError::of_v4(&Icmpv4Message::parse(message).ok()?),
        (ICMPV6, IpAddr::V6(src), IpAddr::V6(dst)) => {
            GuestError::of_v6(&Icmpv6Message::parse(src, dst, message).ok()?)
        }
        _ => None,
    };
    Some(icmp::quoted(error?.quoted())?.key)
}
