//! DHCPv6 messages with every option, refusals, and the longest reply; the service's tests have whole
//! conversations.

use super::*;

/// An option.
fn option(code: u16, value: &[u8]) -> Vec<u8> {
    [&code.to_be_bytes()[..], &(value.len() as u16).to_be_bytes(), value].concat()
}

fn ia(code: u16, iaid: u32, options: &[u8]) -> Vec<u8> {
    option(code, &[&iaid.to_be_bytes()[..], &[0; 8], options].concat())
}

fn address(n: u16) -> Vec<u8> {
    option(IA_ADDRESS, &[&Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n).octets()[..], &[0; 8]].concat())
}

fn message(kind: u8, options: &[Vec<u8>]) -> Vec<u8> {
    [&[kind, 1, 2, 3], &options.concat()[..]].concat()
}

#[test]
fn every_field() {
    let bytes = message(
        1,
        &[
            option(CLIENT_ID, &[0, 3, 0, 1, 9, 9]),
            option(SERVER_ID, &[7]),
            option(RAPID_COMMIT, &[]),
            option(6, &[0, 23]),
            ia(IA_NA, 0x0102_0304, &[address(1), option(13, &[0, 0]), address(2)].concat()),
            ia(4, 1, &[]),
            ia(IA_PD, 5, &[]),
        ],
    );
    let parsed = ClientMessage::parse(&bytes).unwrap();
    assert_eq!(parsed.kind, ClientMessageType::Solicit);
    assert_eq!(parsed.transaction, [1, 2, 3]);
    assert_eq!((parsed.client_id, parsed.server_id), (Some(&[0, 3, 0, 1, 9, 9][..]), Some(&[7][..])));
    assert!(parsed.rapid_commit);
    let associations: Vec<_> =
        parsed.associations().map(|a| (a.kind, a.iaid, a.addresses().count())).collect();
    assert_eq!(
        associations,
        [(AssociationType::Addresses, 0x0102_0304, 2), (AssociationType::Prefixes, 5, 0)]
    );
    // Cut between two options the message is valid, anywhere else it is malformed; nothing panics.
    for len in 0..bytes.len() {
        if let Ok(parsed) = ClientMessage::parse(&bytes[..len]) {
            parsed.associations().flat_map(|a| a.addresses()).for_each(drop);
        }
    }
}

#[test]
fn refusals() {
    let table: [(&str, Vec<u8>); 10] = [
        ("empty", vec![]),
        ("no transaction", vec![1, 0, 0]),
        ("a server's message", message(7, &[])),
        ("a relay agent's", message(12, &[])),
        ("cut option", message(11, &[vec![0, 1, 0, 9, 0]])),
        ("empty identifier", message(11, &[option(CLIENT_ID, &[])])),
        ("long identifier", message(11, &[option(CLIENT_ID, &[0; DUID_LEN_MAX + 1])])),
        ("short association", message(1, &[option(IA_NA, &[0; 11])])),
        ("short address", message(1, &[ia(IA_NA, 1, &option(IA_ADDRESS, &[0; 23]))])),
        ("too many associations", message(1, &vec![ia(IA_NA, 1, &[]); ASSOCIATIONS_MAX + 1])),
    ];
    for (name, bytes) in table {
        assert_eq!(ClientMessage::parse(&bytes), Err(DropReason::MalformedDhcpv6), "{name}");
    }
}

#[test]
fn longest_message_fits() {
    let addresses: Vec<u8> = (10..30).flat_map(address).collect();
    let mut options = vec![ia(IA_NA, 1, &addresses); ASSOCIATIONS_MAX];
    options.push(option(CLIENT_ID, &[1; DUID_LEN_MAX]));
    let bytes = message(1, &options);
    let parsed = ClientMessage::parse(&bytes).unwrap();
    let mut out = [0; ServerMessage::LEN_MAX];
    let mut answer = ServerMessage::new(ServerMessageType::Reply, &parsed, MacAddr::default(), &mut out);
    answer.rapid_commit();
    for association in parsed.associations() {
        answer.addresses(&association, Ipv6Addr::LOCALHOST);
    }
    answer.status(StatusCode::Success);
    answer.dns(Some(Ipv6Addr::LOCALHOST), &vec!["x".repeat(59); 5]);
    assert!(answer.finish() <= ServerMessage::LEN_MAX);
}
