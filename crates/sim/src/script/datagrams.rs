//! The verbs for datagrams of a script: UDP and ICMP between the guest and the stack.

use super::{HEAD, Macs, ParsedFrame, Script, Seen, to_stack};
use crate::packet::{IcmpMessage, UdpDatagram};
use brodo_core::link::RxMeta;
use std::net::SocketAddr;

impl Script {
    /// The guest sends these bytes over UDP from the current conversation's port to `to`.
    pub fn guest_udp(&mut self, to: SocketAddr, data: &[u8]) {
        let datagram = UdpDatagram { src: self.flow().guest, dst: to, data: data.to_vec() };
        let frame = datagram.to_frame(to_stack(self.setup.config.mac.0));
        self.note("guest >", &format!("UDP to {to} data={}", data.len()));
        self.heads.push(frame[..frame.len().min(HEAD)].to_vec());
        self.turn(&[(RxMeta::default(), frame)]);
    }

    /// The guest answers a datagram that it got with an ICMP port unreachable.
    pub fn guest_refuses_datagram(&mut self, got: &UdpDatagram) {
        let quoted =
            got.to_frame(Macs { to: crate::link::GUEST_MAC, from: self.setup.config.mac.0 }).split_off(14);
        let (kind, code) = if self.setup.v6 { (1, 4) } else { (3, 3) };
        let (src, dst) = (got.dst.ip(), got.src.ip());
        let error = IcmpMessage { src, dst, kind, code, word: 0, body: quoted };
        let frame = error.to_frame(to_stack(self.setup.config.mac.0));
        self.guest_raw(&frame);
    }

    /// The next frame to the guest is a UDP datagram, of any content.
    pub fn expect_datagram(&mut self) -> UdpDatagram {
        match self.seen.pop_front() {
            Some(Seen { packet: ParsedFrame::Udp(datagram), .. }) => datagram,
            Some(s) => panic!("expected a UDP datagram, seen: {}", s.line),
            None => panic!("expected a UDP datagram, nothing was sent"),
        }
    }

    /// The next frame to the guest, an ICMP message.
    pub fn expect_icmp(&mut self) -> IcmpMessage {
        match self.seen.pop_front() {
            Some(Seen { packet: ParsedFrame::Icmp(message), .. }) => message,
            Some(s) => panic!("expected an ICMP message, seen: {}", s.line),
            None => panic!("expected an ICMP message, nothing was sent"),
        }
    }
}
