//! QUIC Initials of other implementations, read as a gate reads them: those of `quinn` (version 1), and
//! packets of versions 1 and 2 that `rustls` has protected.

use brodo_core::wire::quic::protection::ClientKeys;
use brodo_core::wire::quic::{CryptoFrames, LongType, QuicPacket, Version};
use brodo_core::wire::tls::ClientHello;
use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_proto::{ClientConfig, Endpoint, EndpointConfig};
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::quic::{ClientConnection, Keys, Version as OracleVersion};
use rustls::{RootCertStore, Side};
use std::sync::Arc;
use std::time::Instant;

/// Settings of a TLS client with so many application protocols, which make its ClientHello long.
fn tls(protocols: usize) -> rustls::ClientConfig {
    let builder = rustls::ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_protocol_versions(&[&rustls::version::TLS13]).expect("TLS 1.3");
    let mut config = builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    config.alpn_protocols = (0..protocols).map(|n| format!("protocol-{n:020}").into_bytes()).collect();
    config
}

/// Datagrams with which a client of quinn begins a connection to `name`.
fn first_flight(name: &str, protocols: usize) -> Vec<Vec<u8>> {
    let crypto = QuicClientConfig::try_from(Arc::new(tls(protocols))).expect("a cipher for Initials");
    let mut endpoint = Endpoint::new(Arc::new(EndpointConfig::default()), None, true, None);
    let (now, remote) = (Instant::now(), "192.0.2.7:443".parse().expect("an address"));
    let config = ClientConfig::new(Arc::new(crypto));
    let (_, mut connection) = endpoint.connect(now, config, remote, name).expect("a connection");
    let mut datagrams = Vec::new();
    loop {
        let mut datagram = Vec::new();
        if connection.poll_transmit(now, 1, &mut datagram).is_none() {
            return datagrams;
        }
        datagrams.push(datagram);
    }
}

/// The ClientHello in Initials, each opened with the keys of its own connection ID.
fn hello_of(datagrams: &[Vec<u8>], version: Version) -> Vec<u8> {
    let mut stream = Vec::new();
    for datagram in datagrams {
        let (packet, _) = QuicPacket::parse(datagram).expect("a packet");
        let QuicPacket::Long(packet) = packet else { panic!("a long header") };
        assert_eq!((packet.version, packet.kind), (version, LongType::Initial));
        let payload = ClientKeys::new(version, packet.destination).open(&packet).expect("a valid tag");
        for frame in CryptoFrames::new(&payload) {
            let frame = frame.expect("a frame");
            let (start, end) = (frame.offset as usize, frame.offset as usize + frame.data.len());
            stream.resize(stream.len().max(end), 0);
            stream[start..end].copy_from_slice(frame.data);
        }
    }
    stream
}

fn name_of(message: &[u8]) -> Vec<u8> {
    ClientHello::parse(message).expect("a ClientHello").server_name.expect("a name").to_vec()
}

#[test]
fn initials_of_quinn_name_their_server() {
    for (name, protocols) in [("pkg.example.com", 0), ("a.example", 1), ("many.example.org", 120)] {
        let datagrams = first_flight(name, protocols);
        let message = hello_of(&datagrams, Version::V1);
        assert_eq!(name_of(&message), name.as_bytes());
        assert_eq!(datagrams.len() > 1, protocols > 100, "a long hello takes several datagrams");
        for datagram in &datagrams {
            let mut broken = datagram.clone();
            *broken.last_mut().expect("bytes") ^= 1;
            let Ok((QuicPacket::Long(packet), _)) = QuicPacket::parse(&broken) else { continue };
            assert_eq!(ClientKeys::new(Version::V1, packet.destination).open(&packet), None, "a bad tag");
        }
    }
}

/// An Initial protected by rustls.
fn protected(version: OracleVersion, first: u8, number: u32, destination: &[u8], frames: &[u8]) -> Vec<u8> {
    let suite = ring::cipher_suite::TLS13_AES_128_GCM_SHA256.tls13().expect("of TLS 1.3");
    let keys = Keys::initial(version, suite, suite.quic.expect("of QUIC"), destination, Side::Client);
    let wire_version: u32 = if matches!(version, OracleVersion::V2) { 0x6b33_43cf } else { 1 };
    let mut packet = vec![first];
    packet.extend(wire_version.to_be_bytes());
    packet.push(destination.len() as u8);
    packet.extend(destination);
    packet.extend([0, 0]);
    let mut payload = frames.to_vec();
    payload.resize(payload.len().max(1100), 0);
    let tag_len = keys.local.packet.tag_len();
    packet.extend(((4 + payload.len() + tag_len) as u16 | 0x4000).to_be_bytes());
    let number_at = packet.len();
    packet.extend(number.to_be_bytes());
    let tag = keys.local.packet.encrypt_in_place(number.into(), &packet, &mut payload).expect("room");
    packet.extend(payload);
    packet.extend(tag.as_ref());
    let sample_at = number_at + 4;
    let sample = packet[sample_at..sample_at + keys.local.header.sample_len()].to_vec();
    let (head, rest) = packet.split_at_mut(number_at);
    keys.local.header.encrypt_in_place(&sample, &mut head[0], &mut rest[..4]).expect("a sample");
    packet
}

#[test]
fn initials_protected_by_rustls_open_in_both_versions() {
    for (version, own, first) in
        [(OracleVersion::V1, Version::V1, 0xc3), (OracleVersion::V2, Version::V2, 0xd3)]
    {
        for (n, name) in ["pkg.example.com", "xn--bcher-kva.example", "a.b"].into_iter().enumerate() {
            let server = ServerName::try_from(name).expect("a name");
            let mut client =
                ClientConnection::new(Arc::new(tls(n)), version, server, vec![1, 2, 3]).expect("a client");
            let mut message = Vec::new();
            client.write_hs(&mut message);
            let mut frame = vec![6, 0];
            frame.extend((message.len() as u16 | 0x4000).to_be_bytes());
            frame.extend(&message);
            for length in [8, 9, 20] {
                let destination: Vec<u8> = (0..length).map(|byte| byte * 7 + n as u8).collect();
                let datagram = protected(version, first, 2 + n as u32, &destination, &frame);
                let read = hello_of(&[datagram], own);
                assert_eq!(read, message, "{own:?} {length}");
                assert_eq!(name_of(&read), name.as_bytes());
            }
        }
    }
}
