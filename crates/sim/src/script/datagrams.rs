//! The verbs for datagrams of a script: UDP and ICMP between the guest and the stack, and for the frames that
//! ICMP errors quote.

use super::{HEAD, Macs, ParsedFrame, Script, Seen, to_stack};
use crate::link::GUEST_MAC;
use crate::packet::{IcmpMessage, TcpSegment, UdpDatagram, layout};
use brodo_core::link::RxMeta;
use std::net::SocketAddr;

/// Most bytes that an ICMP error of the guest quotes, of either version: as Linux over IPv4 (RFC 1812,
/// section 4.3.2.3).
const QUOTED: usize = 548;

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
        let frame = got.to_frame(self.macs_to_guest());
        let (kind, code) = if self.setup.v6 { (1, 4) } else { (3, 3) };
        self.guest_icmp_error(&frame, kind, code, 0);
    }

    /// A router in the guest reports that the packet in `frame`, of the stack's, is too big for its next
    /// link, whose MTU is `mtu` bytes.
    pub fn guest_reports_too_big(&mut self, frame: &[u8], mtu: u32) {
        let (kind, code) = if self.setup.v6 { (2, 0) } else { (3, 4) };
        self.guest_icmp_error(frame, kind, code, mtu);
    }

    /// The guest sends an ICMP error of this type and code that quotes the packet in `frame`.
    fn guest_icmp_error(&mut self, frame: &[u8], kind: u8, code: u8, word: u32) {
        let at = layout(frame).map_or(None, |layout| layout).expect("an IP packet");
        let quoted = frame[14..].iter().copied().take(QUOTED).collect();
        let error = IcmpMessage { src: at.dst, dst: at.src, kind, code, word, body: quoted };
        self.guest_raw(&error.to_frame(to_stack(self.setup.config.mac.0)));
    }

    /// MAC addresses of a frame of the stack's.
    pub fn macs_to_guest(&self) -> Macs {
        Macs { to: GUEST_MAC, from: self.setup.config.mac.0 }
    }

    /// The bit "do not fragment" and the identification of the next frame to the guest, over IPv4.
    pub fn next_ident(&self) -> Option<(bool, u16)> {
        self.seen.front().expect("a frame was sent").ident
    }

    /// Whether a frame to the guest was sent and not yet expected.
    pub fn has_frames(&self) -> bool {
        !self.seen.is_empty()
    }

    /// The next frame to the guest is a UDP datagram, of any content.
    pub fn expect_datagram(&mut self) -> UdpDatagram {
        match self.seen.pop_front() {
            Some(Seen { packet: ParsedFrame::Udp(datagram), .. }) => datagram,
            Some(s) => panic!("expected a UDP datagram, seen: {}", s.line),
            None => panic!("expected a UDP datagram, nothing was sent"),
        }
    }

    /// The next frame to the guest, a TCP segment.
    pub fn expect_segment(&mut self) -> TcpSegment {
        match self.seen.pop_front() {
            Some(Seen { packet: ParsedFrame::Tcp(segment), .. }) => segment,
            Some(s) => panic!("expected a TCP segment, seen: {}", s.line),
            None => panic!("expected a TCP segment, nothing was sent"),
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
