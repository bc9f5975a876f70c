//! Scripts that end with a snapshot: each with another part of the state that a hand-over carries. They
//! are the seeds of the fuzz target `restore`, and together the fixture of the format's first version.

use crate::handover::Snapshot;
use crate::hello::{client_hello, record};
use crate::quic::{Client, crypto};
use crate::script::{Script, Setup};
use brodo_core::carried::CarriedProgress;
use brodo_core::config::Config;
use brodo_core::flow::info::{Carrier, Initiator, Opening, Traffic};
use brodo_core::flow::{Endpoint, FlowKey, Protocol};
use brodo_core::wire::dns::encode_name;
use brodo_core::wire::dns::message::A;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// One part of the state: its name, and the script that makes it.
pub type Sample = (&'static str, fn(&mut Script));

/// The address of every name.
const ANSWER: [u8; 4] = [203, 0, 113, 5];

/// All samples. They can be played one after another; the last leaves the link without credit.
pub const SAMPLES: &[Sample] = &[
    ("connecting", connecting),
    ("held-up", held_up),
    ("in-flight", in_flight),
    ("closing", closing),
    ("inbound", inbound),
    ("datagrams", datagrams),
    ("carried", carried),
    ("names", names),
    ("inbox", inbox),
];

/// A script with the configuration of the samples, which is `config` but for what they need.
pub fn script(config: Config) -> Script {
    let resolvers = vec![SocketAddr::from(([192, 0, 2, 53], 53))];
    Script::new(Setup { config: Config { resolvers, ..config }, ..Setup::default() })
}

/// Snapshot of a script as it stands.
pub fn snapshot(script: &Script) -> Snapshot {
    Snapshot::of(&script.driver.stack, script.now())
}

/// An established connection from this port.
fn open(t: &mut Script, port: u16) {
    t.take_all();
    t.connection(port, 80);
    t.establish();
}

/// A connect under way.
fn connecting(t: &mut Script) {
    t.connection(41_000, 80);
    t.guest("SYN win=65535 mss=1460 wscale=7 sackok");
}

/// Bytes of the guest that the host socket does not take, and others ahead of gaps.
fn held_up(t: &mut Script) {
    open(t, 41_001);
    t.host_accepts(20);
    t.guest("ACK data=100");
    t.guest("ACK seq=301 data=30");
    t.guest("ACK seq=501 data=20");
    t.take_all();
}

/// Bytes to the guest: selectively acknowledged, lost and sent again, on their way.
fn in_flight(t: &mut Script) {
    t.take_all();
    t.connection(41_002, 80);
    t.establish_with("win=65535 mss=100 wscale=7 sackok");
    t.host_sends(600);
    t.guest("ACK ack=101 sack=201-301,401-501");
    t.advance_ms(3);
    t.take_all();
}

/// Connections half closed from either side, and one in TIME-WAIT.
fn closing(t: &mut Script) {
    open(t, 41_003);
    t.guest("FIN|ACK data=10");
    open(t, 41_004);
    t.host_sends_last(5);
    open(t, 41_005);
    t.host_eof();
    t.guest("ACK ack=2");
    t.guest("FIN|ACK ack=2");
    t.take_all();
}

/// A connection of a peer's, whose SYN the guest has not answered, and a datagram from outside.
fn inbound(t: &mut Script) {
    t.connection(8080, 50_000);
    assert_eq!(t.peer_connects(), Ok(()), "there is room");
    t.connection(8081, 50_001);
    assert_eq!(t.peer_sends_first(30, None), Ok(()), "there is room");
    t.take_all();
}

/// Datagrams that wait for their host socket, answered ones, and an echo.
fn datagrams(t: &mut Script) {
    t.connection(42_000, 9);
    t.guest("UDP data=20");
    t.host_sends_datagram(30);
    t.host_accepts(0);
    t.guest("UDP data=40 tos=1");
    t.guest("UDP data=40 tos=1");
    t.connection(42_001, 9);
    t.guest("ICMP echo-request id=5 seq=1 data=16");
    t.take_all();
}

/// A batch of datagrams for which the link has no credit.
fn inbox(t: &mut Script) {
    t.connection(42_002, 9);
    t.guest("UDP data=20");
    t.take_all();
    t.link_credit(Some(1));
    t.host_sends_burst(&[(40, 0), (2000, 0), (7, 2)]);
    t.take_all();
}

/// A splice and a relay.
fn carried(t: &mut Script) {
    let loopback = |port| Endpoint::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
    let now = t.now();
    for (carrier, protocol, port) in
        [(Carrier::Splice, Protocol::Tcp, 5000), (Carrier::Relay, Protocol::Udp, 5001)]
    {
        let key = FlowKey { protocol, guest: loopback(port), remote: loopback(80) };
        let opening = Opening { key, initiator: Initiator::Guest, carrier };
        t.driver.turn_with(now, |stack, io| {
            let id = stack.open_carried(io, opening, |_| Ok(7)).expect("there is room");
            let from_initiator = Traffic { bytes: 1000, packets: 3 };
            let progress = CarriedProgress { connected: true, from_initiator, ..CarriedProgress::default() };
            stack.carried_progress(io, id, &progress);
        });
    }
}

/// An answer in the cache, and the name learnt from it.
fn names(t: &mut Script) {
    resolve(t, 43_000, "www.example.org");
}

/// Flows behind gates, under a policy with rules for their name: in the midst of a head, of a body, of a
/// first and behind a first ClientHello, of QUIC.
pub fn gated(t: &mut Script) {
    const NAME: &str = "gate.example.org";
    resolve(t, 43_001, NAME);
    let head = format!("POST / HTTP/1.1\r\nHost: {NAME}\r\nContent-Length: 10\r\n\r\n");
    let hello = record(22, &client_hello(NAME.as_bytes(), &[]));
    let parts: [(u16, &[u8]); 5] = [
        (80, &head.as_bytes()[..20]),
        (80, head.as_bytes()),
        (443, &hello[..20]),
        (443, &[&hello[..], &[20, 3]].concat()),
        (443, &[&hello[..], &record(20, &[1])[..6]].concat()),
    ];
    for (n, (port, bytes)) in parts.into_iter().enumerate() {
        let guest = SocketAddr::new(t.addresses().0, 44_000 + n as u16);
        t.connection_to(guest, SocketAddr::from((ANSWER, port)));
        t.establish();
        t.guest_sends(bytes);
        t.take_all();
    }
    let stream = client_hello(NAME.as_bytes(), &[]);
    let client = Client::new(b"abcdefgh");
    for (port, end) in [(44_100, stream.len()), (44_101, stream.len() / 2)] {
        let guest = SocketAddr::new(t.addresses().0, port);
        t.connection_to(guest, SocketAddr::from((ANSWER, 443)));
        t.guest_udp(SocketAddr::from((ANSWER, 443)), &client.datagram(0, &crypto(&stream, 0, end)));
    }
    t.take_all();
}

/// Resolves a name for the guest, from one of its ports.
fn resolve(t: &mut Script, port: u16, name: &str) {
    let dns = SocketAddr::new(t.setup().config.v4.expect("IPv4").dns.expect("DNS").into(), 53);
    t.connection(port, 53);
    let mut question = vec![0, 9, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    let mut wire = [0; 255];
    let len = encode_name(name, &mut wire).expect("a name");
    question.extend(&wire[..len]);
    question.extend([0, A as u8, 0, 1]);
    t.guest_udp(dns, &question);
    let socket = t.driver.host.last().expect("a resolver is asked");
    let (mut answer, _) = t.driver.host.take_datagram(socket).expect("a query");
    // Without the OPT record of a question that brodo writes itself.
    answer.truncate(12 + len + 4);
    answer[10..12].fill(0);
    (answer[2], answer[3], answer[7]) = (0x81, 0x80, 1);
    answer.extend([0xc0, 12, 0, A as u8, 0, 1, 0, 0, 14, 16, 0, 4]);
    answer.extend(ANSWER);
    t.driver.host.peer_datagram(socket, &answer, None);
    t.poll();
    t.take_all();
}
