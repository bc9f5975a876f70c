//! DHCPv4 requests with every option, refusals, and the longest reply; the service's tests have whole
//! conversations.

use super::*;

const MAC: MacAddr = MacAddr([0x52, 0x54, 0, 0x12, 0x34, 0x56]);

/// A client's message with these options, end option included or not.
fn message(options: &[u8]) -> Vec<u8> {
    let mut message = vec![0; FIXED_LEN];
    message[..12].copy_from_slice(&[1, 1, 6, 0, 0xde, 0xad, 0xbe, 0xef, 0, 1, 0x80, 0]);
    message[12..16].copy_from_slice(&[10, 0, 2, 15]);
    message[28..34].copy_from_slice(&MAC.0);
    message.extend(COOKIE);
    message.extend(options);
    message
}

#[test]
fn every_field() {
    let options = [
        0, 53, 1, 3, 50, 4, 10, 0, 2, 15, 54, 4, 10, 0, 2, 2, 0, 0, 61, 3, 1, 2, 3, 57, 2, 5, 0xdc, 55, 2, 1,
        3, 12, 0, 255, 53, 1, 9,
    ];
    let bytes = message(&options);
    let request = Request {
        kind: RequestType::Request,
        xid: 0xdead_beef,
        broadcast: true,
        ciaddr: Ipv4Addr::new(10, 0, 2, 15),
        giaddr: Ipv4Addr::UNSPECIFIED,
        chaddr: MAC,
        requested_ip: Some(Ipv4Addr::new(10, 0, 2, 15)),
        server_id: Some(Ipv4Addr::new(10, 0, 2, 2)),
        client_id: Some(&[1, 2, 3]),
        fqdn: None,
        lists_fqdn: false,
        rapid_commit: false,
        size_max: 1500,
    };
    assert_eq!(Request::parse(&bytes), Ok(request));
    assert_eq!(Request::parse(&[&bytes[..], &[0; 64]].concat()), Ok(request));
    // No end option, and a size that is below what every client takes.
    let bare = message(&[53, 1, 1, 57, 2, 0, 100]);
    let bare = Request::parse(&bare).unwrap();
    assert_eq!((bare.kind, bare.client_id, bare.size_max), (RequestType::Discover, None, 576));
}

#[test]
fn refusals() {
    let table: [(&str, &[u8]); 9] = [
        ("plain BOOTP", &[255]),
        ("no options", &[]),
        ("type of a server", &[53, 1, 2, 255]),
        ("type of two bytes", &[53, 2, 1, 1, 255]),
        ("cut value", &[53, 1, 1, 50, 4, 10, 0]),
        ("cut length", &[53, 1, 1, 50]),
        ("short address", &[53, 1, 1, 50, 3, 10, 0, 2, 255]),
        ("long address", &[53, 1, 1, 54, 5, 10, 0, 2, 2, 2, 255]),
        ("short size", &[53, 1, 1, 57, 1, 9, 255]),
    ];
    for (name, options) in table {
        assert_eq!(Request::parse(&message(options)), Err(DropReason::MalformedDhcpv4), "{name}");
    }
    let good = message(&[53, 1, 1, 255]);
    for at in [0, 1, 2, FIXED_LEN] {
        let mut bad = good.clone();
        bad[at] ^= 3;
        assert_eq!(Request::parse(&bad), Err(DropReason::MalformedDhcpv4), "byte {at}");
    }
    for len in 0..good.len() - 1 {
        assert_eq!(Request::parse(&good[..len]), Err(DropReason::MalformedDhcpv4), "cut to {len}");
    }
}

#[test]
fn longest_reply_fits_and_leaves_out_what_the_client_cannot_take() {
    let id = [7; 255];
    let search = vec!["x".repeat(63); 4];
    let network = Network {
        prefix_len: 0,
        router: Ipv4Addr::BROADCAST,
        dns: Some(Ipv4Addr::BROADCAST),
        mtu: 65520,
        host_name: None,
        fqdn: None,
        search: &search,
    };
    let reply = Reply {
        kind: ReplyType::Ack,
        yiaddr: Ipv4Addr::BROADCAST,
        server_id: Ipv4Addr::BROADCAST,
        lease_s: Some(LEASE_INFINITE),
        network: Some(network),
    };
    let bytes = message(&[53, 1, 1, 255]);
    let request = Request { client_id: Some(&id), size_max: 1500, ..Request::parse(&bytes).unwrap() };
    let mut out = [0; Reply::LEN_MAX];
    let len = reply.emit(&request, &mut out);
    assert!(out[..len].windows(4).any(|w| w == [119, 195, 63, b'x']));
    let len = reply.emit(&Request { size_max: 576, ..request }, &mut out);
    assert!(len + 28 <= 576);
    assert!(!out[..len].windows(3).any(|w| w == [119, 195, 63]));
    // Names beyond the least packet of every link are left out, even for a client that takes more.
    let name = "n".repeat(255);
    let fqdn = ["x"; 120].join(".");
    let search = [search.clone(), vec!["y".repeat(57)]].concat();
    let network = Network { host_name: Some(&name), fqdn: Some(&fqdn), search: &search, ..network };
    let named = Reply { network: Some(network), ..reply };
    let long = Request { lists_fqdn: true, size_max: u16::MAX, ..request };
    let len = named.emit(&long, &mut out);
    assert!(out[..len].windows(4).any(|w| w == [12, 255, b'n', b'n']));
    assert!(out[..len].windows(3).any(|w| w == [81, 245 - 1, 0b1100]), "{len}");
    assert!(!out[..len].windows(3).any(|w| w == [119, 254, 63]));
    // Short replies are padded to the length of BOOTP.
    let nak = Reply { kind: ReplyType::Nak, lease_s: None, network: None, ..reply };
    assert_eq!(nak.emit(&Request { client_id: None, ..request }, &mut out), 300);
}
