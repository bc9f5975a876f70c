//! Datagrams of peers pass through forwards and the stack to a guest, which is a list of frames here, and its
//! answers back.

use super::super::tests::forward;
use super::*;
use crate::forward::{ForwardsMax, NAT_PORT_TRIES};
use crate::platform::{Linux, Tracer};
use crate::sockets::{Outbound, SourcePorts, readiness};
use brodo_core::config::Config;
use brodo_core::counters::DropReason;
use brodo_core::link::{Link, LinkCaps, NoCredit, RxChecksum, RxMeta, TxFrame};
use brodo_core::policy::{Deny, Rules};
use brodo_core::port_range::PortRange;
use brodo_core::stack::Keys;
use brodo_core::time::{Duration, Instant};
use brodo_core::wire::UDP;
use brodo_core::wire::ethernet::{EtherType, EthernetHeader, MacAddr};
use brodo_core::wire::ipv4::Ipv4Header;
use brodo_core::wire::udp::UdpHeader;
use brodo_link::poller::Token;
use brodo_testns::{in_namespace, ip};
use std::net::{SocketAddrV6, UdpSocket};

const GUEST: &str = "10.0.2.15";
const GUEST_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 15]);
const HEADERS: usize = EthernetHeader::LEN + Ipv4Header::LEN + UdpHeader::LEN;
/// Deadline of every wait, far beyond any duration here.
const LIMIT: Duration = Duration::from_secs(5);

/// Datagrams that have reached the guest: sender, port, payload.
#[derive(Default)]
struct Wire {
    full: bool,
    arrived: Vec<(SocketAddr, u16, Vec<u8>)>,
}

impl Link for Wire {
    fn caps(&self) -> LinkCaps {
        LinkCaps::default()
    }

    fn send(&mut self, frame: &TxFrame<'_>) -> Result<(), NoCredit> {
        if self.full {
            return Err(NoCredit);
        }
        let mut bytes = frame.headers.to_vec();
        frame.payload.iter().for_each(|slice| bytes.extend_from_slice(slice));
        let (ip, packet) = Ipv4Header::parse(&bytes[EthernetHeader::LEN..]).expect("IPv4");
        if ip.protocol == UDP {
            let (udp, payload) = UdpHeader::parse(packet).expect("UDP");
            self.arrived.push(((ip.src, udp.src_port).into(), udp.dst_port, payload.to_vec()));
        }
        Ok(())
    }
}

/// The parts of the first worker under test.
struct World {
    stack: Stack,
    sockets: Sockets,
    tracer: Tracer,
    forwards: Forwards,
    wire: Wire,
    mac: MacAddr,
    now: Instant,
}

impl World {
    fn new() -> Self {
        let mut config = Config { guest_mac: Some(GUEST_MAC), ..Config::default() };
        config.v4.as_mut().expect("default").host_loopback = Some([10, 0, 2, 4].into());
        let (mac, caps) = (config.mac, LinkCaps::default());
        let stack = Stack::new(config, Keys { table: [1; 16], isn: [2; 16], dns: [3; 16] }, caps);
        let sockets = Sockets::new().expect("epoll");
        let addresses = [GUEST.parse().ok(), None];
        let guest = super::super::Guest { addresses, ..super::super::Guest::default() };
        let forwards = Forwards::new(
            guest,
            None,
            &sockets,
            &crate::ephemeral_ports::ephemeral_ports(),
            ForwardsMax { descriptors: 1000, splices: 10 },
        )
        .expect("forwards");
        Self {
            stack,
            sockets,
            tracer: Tracer::default(),
            forwards,
            wire: Wire::default(),
            mac,
            now: Instant::ZERO,
        }
    }

    fn publish(&mut self, spec: &str) -> u32 {
        self.forwards.add(forward(ForwardDirection::In, super::super::Transport::Udp, spec)).expect("a port")
    }

    /// One turn of the loop without its serving part, for the events of so many milliseconds; returns their
    /// number.
    fn turn(&mut self, within_ms: i64) -> usize {
        let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: within_ms * 1_000_000 };
        let mut events = Vec::with_capacity(16);
        let into = rustix::buffer::spare_capacity(&mut events);
        epoll::wait(self.sockets.epoll(), into, Some(&timeout)).expect("epoll_wait");
        let mut io: Io<'_, Linux<Wire>> =
            Io { now: self.now, link: &mut self.wire, host: &mut self.sockets, observer: &mut self.tracer };
        for event in &events {
            match Token::read({ event.data }.u64()) {
                Token::Source { key, .. } => self.forwards.note(key, event.flags),
                Token::Flow(flow) => self.stack.socket_event(&mut io, flow, readiness(event.flags)),
            }
        }
        self.forwards.follow_events(&mut self.stack, &mut io);
        events.len()
    }

    fn expire(&mut self) {
        let mut io: Io<'_, Linux<Wire>> =
            Io { now: self.now, link: &mut self.wire, host: &mut self.sockets, observer: &mut self.tracer };
        self.stack.expire(&mut io);
    }

    /// A peer sends; returns the peer's address as seen by the guest.
    fn arrives(&mut self, peer: &UdpSocket, to: &str) -> SocketAddr {
        peer.send_to(b"question", to).expect("send");
        self.turn(1000);
        let (from, _, payload) = self.wire.arrived.pop().expect("it has reached the guest");
        assert_eq!(payload, b"question");
        from
    }

    /// The guest's port 80 sends.
    fn answers(&mut self, to: SocketAddr, payload: &[u8]) {
        let (SocketAddr::V4(to), Ok(src)) = (to, GUEST.parse()) else { panic!("{to} is not of IPv4") };
        let mut frame = vec![0; HEADERS];
        EthernetHeader { dst: self.mac, src: GUEST_MAC, ethertype: EtherType::Ipv4 }.emit(&mut frame);
        let length = (UdpHeader::LEN + payload.len()) as u16;
        let ip = Ipv4Header {
            src,
            dst: *to.ip(),
            protocol: UDP,
            ttl: 64,
            ident: 0,
            dont_fragment: true,
            tos: 0,
            payload_len: length,
        };
        ip.emit(&mut frame[EthernetHeader::LEN..]);
        let udp = UdpHeader { src_port: 80, dst_port: to.port(), length, checksum: 0 };
        udp.emit(&mut frame[EthernetHeader::LEN + Ipv4Header::LEN..]);
        frame.extend_from_slice(payload);
        let mut io: Io<'_, Linux<Wire>> =
            Io { now: self.now, link: &mut self.wire, host: &mut self.sockets, observer: &mut self.tracer };
        let meta = RxMeta { checksum: RxChecksum::Valid, ..RxMeta::default() };
        self.stack.frame(&mut io, meta, &frame);
    }

    /// A request and its answer; returns the answer's source.
    fn asks(&mut self, peer: &UdpSocket, to: &str) -> String {
        let seen = self.arrives(peer, to);
        self.answers(seen, b"answer");
        let mut buffer = [0; 10];
        let (len, from) = peer.recv_from(&mut buffer).expect("an answer");
        assert_eq!(&buffer[..len], b"answer");
        from.to_string()
    }
}

fn peer(at: &str) -> UdpSocket {
    let socket = UdpSocket::bind(at).expect("bind");
    socket.set_read_timeout(Some(LIMIT)).expect("time-out");
    socket
}

const OUTSIDE: &str = "198.51.100.9:5000";

/// A namespace whose host has two addresses, and a peer outside.
fn world(test: &str, body: impl FnOnce(World)) {
    in_namespace(&format!("forward::datagrams::tests::{test}"), || {
        for address in ["198.51.100.1", "198.51.100.2", "198.51.100.9"] {
            ip(&format!("addr add {address}/32 dev lo"));
        }
        body(World::new());
    });
}

#[test]
fn answers_leave_from_the_port_and_address_that_were_asked_last() {
    world("answers_leave_from_the_port_and_address_that_were_asked_last", |mut world| {
        world.publish("7000:80,7001:80");
        for at in [OUTSIDE, "127.0.0.1:5000"] {
            let peer = peer(at);
            for to in ["198.51.100.1:7000", "198.51.100.2:7000", "198.51.100.1:7001", "198.51.100.1:7000"] {
                assert_eq!(world.asks(&peer, to), to);
            }
        }
        assert_eq!(world.stack.flows(), 2);
    });
}

#[test]
fn a_port_that_is_opened_again_answers_those_who_asked_before() {
    world("a_port_that_is_opened_again_answers_those_who_asked_before", |mut world| {
        let id = world.publish("7000:80");
        let peer = peer(OUTSIDE);
        assert_eq!(world.asks(&peer, "198.51.100.1:7000"), "198.51.100.1:7000");
        assert!(world.forwards.remove(id));
        world.publish("7000:80");
        assert_eq!(world.asks(&peer, "198.51.100.1:7000"), "198.51.100.1:7000");
        assert_eq!(world.stack.flows(), 1);
    });
}

/// All peers appear with one address, distinguished by ports.
#[test]
fn peers_that_look_the_same_are_not_taken_for_each_other() {
    world("peers_that_look_the_same_are_not_taken_for_each_other", |mut world| {
        world.publish("7000:80,7001:80");
        let peers: Vec<_> = (1..=1 + NAT_PORT_TRIES).map(|n| peer(&format!("127.0.0.{n}:5000"))).collect();
        let to = |n: usize| if n.is_multiple_of(2) { "127.0.0.1:7000" } else { "127.0.0.1:7001" };
        for round in 0..2 {
            for (n, peer) in peers.iter().enumerate() {
                let seen = world.arrives(peer, to(n));
                assert_eq!(seen, ([10, 0, 2, 4], 5000 + n as u16).into(), "in round {round}");
            }
        }
        let one_more = peer("127.0.0.99:5000");
        one_more.send_to(b"question", "127.0.0.1:7000").expect("send");
        world.turn(1000);
        assert_eq!((world.wire.arrived.len(), world.forwards.counters().lost), (0, 1));
        for (n, peer) in peers.iter().enumerate() {
            assert_eq!(world.asks(peer, to(n)), to(n));
        }
        assert_eq!(world.stack.flows(), peers.len());

        // Once flows have expired there is room, and the remaining peers keep their ports.
        world.now = world.now + Duration::from_secs(100);
        assert_eq!(world.asks(&peers[7], to(7)), to(7));
        world.now = world.now + Duration::from_secs(100);
        world.expire();
        assert_eq!(world.stack.flows(), 1);
        assert_eq!(world.arrives(&peers[7], to(7)).port(), 5007);
        assert_eq!(world.arrives(&one_more, to(0)).port(), 5000);
    });
}

/// The host's loopback is among the places to which the guest sends.
#[test]
fn a_peer_asked_by_the_guest_appears_at_the_asked_address_and_no_other_does() {
    world("a_peer_asked_by_the_guest_appears_at_the_asked_address_and_no_other_does", |mut world| {
        // Else its datagrams come to the flow's own socket.
        let ports = SourcePorts::Any;
        world.sockets = world.sockets.leaving_from(Outbound { ports, ..Outbound::default() });
        world.publish("7000:80");
        let peers = ["127.0.0.1:5000", "127.0.0.2:5000"].map(peer);
        world.answers(([10, 0, 2, 4], 5000).into(), b"a question");
        assert_eq!(peers[0].recv_from(&mut [0; 20]).expect("a question").0, 10);
        for (number, peer) in peers.iter().enumerate() {
            assert_eq!(world.arrives(peer, "127.0.0.1:7000").port(), 5000 + number as u16);
        }
        assert_eq!(world.stack.flows(), 2);
    });
}

#[test]
fn an_address_that_the_host_has_lost_is_answered_from_no_more() {
    world("an_address_that_the_host_has_lost_is_answered_from_no_more", |mut world| {
        world.publish("7000:80");
        world.sockets.assume_addresses([1, 2, 9].map(|last| [198, 51, 100, last].into()).into());
        let peer = peer(OUTSIDE);
        let seen = world.arrives(&peer, "198.51.100.1:7000");
        ip("addr del 198.51.100.1/32 dev lo");
        // No reader has asked yet.
        world.answers(seen, b"lost");
        world.sockets.set_addresses([[198, 51, 100, 2].into(), [198, 51, 100, 9].into()].into());
        world.answers(seen, b"from another");
        let (len, from) = peer.recv_from(&mut [0; 20]).expect("an answer");
        assert_eq!((len, from.port()), (12, 7000));
        assert_eq!(world.asks(&peer, "198.51.100.2:7000"), "198.51.100.2:7000");
        assert_eq!(world.stack.flows(), 1);
    });
}

#[test]
fn relayed_answers_leave_from_the_address_that_was_asked_last() {
    world("relayed_answers_leave_from_the_address_that_was_asked_last", |mut world| {
        let server = peer("127.0.0.1:80");
        world.publish("7000:127.0.0.1/80");
        // There is no broker to open sockets elsewhere.
        world.forwards.listeners.get_mut(0).expect("a listener").direction = ForwardDirection::Out;
        let peer = peer(OUTSIDE);
        for to in ["198.51.100.1:7000", "198.51.100.2:7000", "198.51.100.1:7000"] {
            peer.send_to(b"question", to).expect("send");
            world.turn(1000);
            let (_, relay) = server.recv_from(&mut [0; 10]).expect("a question");
            server.send_to(b"answer", relay).expect("send");
            world.turn(1000);
            let (_, from) = peer.recv_from(&mut [0; 10]).expect("an answer");
            assert_eq!(from.to_string(), to);
        }
        assert_eq!(world.forwards.datagrams.index.len(), 1);
        let flows: Vec<_> = world.stack.flow_details(0, world.now).map(|detail| detail.info).collect();
        let [info] = flows[..] else { panic!("one flow, not {flows:?}") };
        assert_eq!((info.carrier, info.initiator), (Carrier::Relay, Initiator::Guest));
        assert_eq!((info.from_guest, info.to_guest), (some(3, 24), some(3, 18)));

        // The flow's time-out closes the relay's socket.
        world.now = world.now + Duration::from_secs(181);
        world.expire();
        world.turn(0);
        assert_eq!((world.stack.flows(), world.forwards.datagrams.index.len()), (0, 0));
    });
}

/// A group is the source of no datagram: the answer leaves from an address of the interface that was asked.
#[test]
fn a_question_to_a_group_is_answered() {
    world("a_question_to_a_group_is_answered", |mut world| {
        ip("link add d0 type veth peer name d1");
        // No IPv6 below an MTU of 1280: else the question arrives at this end too, as another flow, and a
        // busy machine has that one first.
        ip("link set d1 mtu 1000 up");
        ip("link set d0 up");
        ip("addr add fe80::5/64 dev d0 nodad");
        let server = peer("[::1]:80");
        let scope = rustix::net::netdevice::name_to_index(&server, "d0").expect("d0");
        let at = |ip: &str, port| SocketAddrV6::new(ip.parse().expect("an address"), port, 0, scope);
        world.forwards.guest.addresses[1] = "fd00::15".parse().ok();
        world.publish("7000:[::1]/80");
        // There is no broker to open sockets elsewhere.
        world.forwards.listeners.get_mut(0).expect("a listener").direction = ForwardDirection::Out;
        let peer = UdpSocket::bind(at("fe80::5", 5000)).expect("bind");
        peer.set_read_timeout(Some(LIMIT)).expect("time-out");
        peer.send_to(b"question", at("ff02::1", 7000)).expect("send");
        world.turn(1000);
        let (_, relay) = server.recv_from(&mut [0; 10]).expect("a question");
        server.send_to(b"answer", relay).expect("send");
        world.turn(1000);
        let (_, from) = peer.recv_from(&mut [0; 10]).expect("an answer");
        assert_eq!(from, at("fe80::5", 7000).into());
        assert_eq!(world.stack.flows(), 1);
    });
}

fn some(packets: u64, bytes: u64) -> Traffic {
    Traffic { bytes, packets }
}

#[test]
fn a_relay_of_a_denied_destination_is_not_opened() {
    world("a_relay_of_a_denied_destination_is_not_opened", |mut world| {
        let deny = Deny::new([127, 0, 0, 1].into(), 32, Some(PortRange::one(80))).expect("a rule");
        let rules = Rules { deny: vec![deny], ..Rules::default() };
        let keys = Keys { table: [1; 16], isn: [2; 16], dns: [3; 16] };
        world.stack = Stack::new(Config { rules, ..Config::default() }, keys, LinkCaps::default());
        world.publish("7000:127.0.0.1/80");
        world.forwards.listeners.get_mut(0).expect("a listener").direction = ForwardDirection::Out;
        peer(OUTSIDE).send_to(b"question", "198.51.100.1:7000").expect("send");
        world.turn(1000);
        assert_eq!((world.stack.flows(), world.forwards.datagrams.index.len()), (0, 0));
        assert_eq!(world.stack.counters().dropped(DropReason::Denied), 1);
    });
}

/// Both directions are full: the link, for which questions wait in the kernel, and the port, for which an
/// answer waits.
#[test]
fn a_port_that_is_held_is_not_looked_at_while_answers_wait_for_room() {
    world("a_port_that_is_held_is_not_looked_at_while_answers_wait_for_room", |mut world| {
        ip("link add slow type veth peer name end");
        ip("link set slow up");
        ip("link set end up");
        ip("addr add 198.18.0.1/24 dev slow");
        ip("neigh add 198.18.0.2 lladdr 02:00:00:00:00:02 dev slow");
        let queue = "qdisc add dev slow root tbf rate 1mbit burst 16kb limit 10mb";
        let status = std::process::Command::new("tc").args(queue.split(' ')).status();
        assert!(status.is_ok_and(|it| it.success()), "tc {queue}");
        world.publish("7000:80");
        let peer = peer(OUTSIDE);
        let seen = world.arrives(&peer, "198.51.100.1:7000");

        world.wire.full = true;
        for _ in 0..2 {
            peer.send_to(b"question", "198.51.100.1:7000").expect("send");
            world.turn(900);
        }
        assert_eq!((world.forwards.datagrams.held.len(), world.turn(0)), (1, 0));
        let Body::Datagrams(port) = &world.forwards.listeners.get(0).expect("a listener").body else {
            panic!("it is of UDP")
        };
        let (data, to) = ([IoSlice::new(&[0; 1000])], ([198, 18, 0, 2], 9).into());
        while port.send(&data, to, None, None, IpHeaderFields::default()).is_ok() {}
        world.answers(seen, b"answer");
        world.turn(20);
        assert_eq!((world.forwards.datagrams.held.len(), world.turn(20)), (1, 0));

        world.wire.full = false;
        world.stack.link_writable();
        peer.set_nonblocking(true).expect("an option");
        let mut answers = 0;
        for _ in 0..100 {
            world.turn(100);
            answers += usize::from(peer.recv_from(&mut [0; 10]).is_ok());
            if (answers, world.wire.arrived.len()) == (1, 2) {
                return;
            }
        }
        panic!("{answers} answers, and {} questions", world.wire.arrived.len());
    });
}

/// The next listener of a slot has another destination: datagrams of the first one that waited for the link
/// are discarded.
#[test]
fn datagrams_of_a_closed_port_do_not_reach_the_next_one() {
    world("datagrams_of_a_closed_port_do_not_reach_the_next_one", |mut world| {
        let id = world.publish("7000:80");
        let peers = ["198.51.100.9:5000", "198.51.100.9:5001"].map(peer);
        world.wire.full = true;
        for peer in &peers {
            peer.send_to(b"for port 80", "198.51.100.1:7000").expect("send");
        }
        // The stack has taken the first; the second has been read, and waits.
        world.turn(1000);
        assert!(world.forwards.datagrams.published.as_ref().is_some_and(|arena| !arena.is_empty()));
        assert!(world.forwards.remove(id));
        world.turn(0);
        world.publish("7001:81");
        assert!(world.forwards.listeners.get(0).is_some(), "the slot is used again");

        world.wire.full = false;
        world.stack.link_writable();
        world.turn(0);
        let World { stack, sockets, tracer, wire, now, .. } = &mut world;
        let mut io: Io<'_, Linux<Wire>> = Io { now: *now, link: wire, host: sockets, observer: tracer };
        stack.serve(&mut io);
        let ports: Vec<_> = world.wire.arrived.iter().map(|(_, port, _)| *port).collect();
        assert_eq!(ports, [80], "the first, and no other");
        assert_eq!(world.forwards.counters().lost, 1);
    });
}
