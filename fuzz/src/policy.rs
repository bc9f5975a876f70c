//! Bodies for what a policy reads: rules as text, and the first bytes of a guest that is held at a gate.

use brodo_core::policy::{AllowRule, Effect, PolicyRules, Rule, Ruleset, Scheme};
use brodo_core::wire::http::{Malformed, Progress as HttpProgress, RequestReader};
use brodo_core::wire::quic::protection::ClientKeys;
use brodo_core::wire::quic::{CryptoFrames, LongType, QuicPacket, Version};
use brodo_core::wire::tls::{ClientHello, HelloReader, Progress};
use brodo_sim::quic::Client;

/// Each line is a rule of both lists: one that is read is read again from its own text, and compiles.
pub fn rules(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut policy = PolicyRules::default();
    for line in text.lines().take(64) {
        for effect in [Effect::Allow, Effect::Deny] {
            match Rule::parse(line, effect) {
                Ok(rule) => {
                    assert_eq!(Rule::parse(&rule.to_string(), effect), Ok(rule.clone()));
                    match effect {
                        Effect::Allow => policy.allow.push(AllowRule::from(rule)),
                        Effect::Deny => policy.deny.push(rule),
                    }
                }
                Err(error) => assert!(!error.to_string().is_empty()),
            }
        }
    }
    let rules = Ruleset::new(policy.clone()).expect("few rules");
    assert_eq!(*rules.source(), policy);
    for (name, port) in [("example.com", 443), ("a.example.com", 22), ("x", 0)] {
        let denied = rules.try_name(Scheme::Tcp, name, port).is_none_or(|tried| tried.effect == Effect::Deny);
        assert!(denied || !policy.allow.is_empty(), "nothing is allowed that no rule allows");
    }
}

/// The first byte is the size of pieces: a hello in pieces is read as the whole one is.
pub fn hello(data: &[u8]) {
    let Some((&size, bytes)) = data.split_first() else { return };
    let (mut whole, mut pieces) = (HelloReader::default(), HelloReader::default());
    let at_once = whole.read(bytes);
    let (mut in_pieces, mut taken) = (Ok(Progress::More), 0);
    for piece in bytes.chunks(usize::from(size).max(1)) {
        let read = pieces.read(piece);
        taken += read.map_or(0, |(taken, _)| taken);
        in_pieces = read.map(|(_, progress)| progress);
        if in_pieces != Ok(Progress::More) {
            break;
        }
    }
    assert_eq!(at_once, in_pieces.map(|progress| (taken, progress)));
    if in_pieces == Ok(Progress::Whole) {
        assert_eq!(whole.message(), pieces.message());
        if let Ok(ClientHello { server_name: Some(name), .. }) = ClientHello::parse(whole.message()) {
            assert!(!name.is_empty() && whole.message().windows(name.len()).any(|window| window == name));
        }
    }
}

/// Hosts of the requests of a stream, each without its port.
type Hosts = Vec<Option<Box<[u8]>>>;

/// Hosts in a client's stream that comes in pieces of so many bytes, and how its reading ends.
fn hosts(bytes: &[u8], size: usize) -> (Hosts, Option<Malformed>) {
    let (mut reader, mut hosts) = (RequestReader::default(), Vec::new());
    for mut piece in bytes.chunks(size) {
        while !piece.is_empty() {
            match reader.read(piece) {
                Ok((taken, progress)) => {
                    assert!(taken > 0, "the reader goes on");
                    piece = &piece[taken..];
                    if let HttpProgress::Head(host) = progress {
                        hosts.push(host);
                    }
                }
                Err(malformed) => return (hosts, Some(malformed)),
            }
        }
    }
    (hosts, None)
}

/// The first byte is the size of pieces: requests in pieces are read as at once, and every host stands in a
/// line of its own.
pub fn http(data: &[u8]) {
    let Some((&size, bytes)) = data.split_first() else { return };
    let at_once = hosts(bytes, bytes.len().max(1));
    assert_eq!(at_once, hosts(bytes, usize::from(size).max(1)));
    for host in at_once.0.iter().flatten() {
        assert!(bytes.windows(host.len() + 1).any(|window| window.starts_with(host)));
        assert!(!host.iter().any(|byte| b"\r\n\0".contains(byte)));
    }
}

/// Packets of a datagram end within it; an Initial that opens is made of frames or is not, and one that is
/// sealed from the input opens to the same.
pub fn quic(data: &[u8]) {
    let mut rest = data;
    while let Ok((packet, behind)) = QuicPacket::parse(rest) {
        assert!(behind.len() < rest.len(), "the parser goes on");
        if let QuicPacket::Long(packet) = packet {
            assert!(packet.number_at <= packet.bytes.len());
            let payload = ClientKeys::new(packet.version, packet.destination).open(&packet);
            assert!(payload.is_none() || packet.kind == LongType::Initial);
        }
        rest = behind;
    }
    for frame in CryptoFrames::new(data).flatten() {
        assert!(frame.data.len() <= data.len());
    }
    let (id, payload) = data.split_at(data.len().min(8));
    if payload.len() >= 4 && payload.len() < 8000 {
        for version in [Version::V1, Version::V2] {
            let client = Client { version, destination: id, keys_of: id };
            let sealed = client.initial(7, payload);
            let Ok((QuicPacket::Long(packet), [])) = QuicPacket::parse(&sealed) else { panic!("a packet") };
            assert_eq!(ClientKeys::new(version, id).open(&packet).as_deref(), Some(payload));
        }
    }
}
