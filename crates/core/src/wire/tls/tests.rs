//! ClientHellos whole, in pieces, and contradicting themselves. Numbers are those of the bypass attempts.

use super::*;

/// A hello with these extensions.
fn hello(extensions: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend([0, 0, 2, 0x13, 0x01, 1, 0]);
    let mut all = Vec::new();
    for (kind, data) in extensions {
        all.extend(kind.to_be_bytes());
        all.extend((data.len() as u16).to_be_bytes());
        all.extend(data);
    }
    body.extend((all.len() as u16).to_be_bytes());
    body.extend(all);
    let mut message = vec![1, 0];
    message.extend((body.len() as u16).to_be_bytes());
    message.extend(body);
    message
}

fn sni(name: &[u8]) -> (u16, Vec<u8>) {
    let mut data = ((name.len() + 3) as u16).to_be_bytes().to_vec();
    data.push(0);
    data.extend((name.len() as u16).to_be_bytes());
    data.extend(name);
    (SERVER_NAME, data)
}

/// The message in records of so many bytes.
fn records(message: &[u8], size: usize) -> Vec<u8> {
    let record = |chunk: &[u8]| {
        let [a, b] = (chunk.len() as u16).to_be_bytes();
        [&[22, 3, 1, a, b], chunk].concat()
    };
    message.chunks(size).flat_map(record).collect()
}

fn read(bytes: &[u8]) -> Result<Progress, Malformed> {
    HelloReader::default().read(bytes).map(|(_, progress)| progress)
}

#[test]
fn the_name_is_read() {
    let message = hello(&[(10, vec![0, 2, 0, 29]), sni(b"pkg.example.com"), (0x0a0a, vec![])]);
    let mut reader = HelloReader::default();
    let bytes = records(&message, 9999);
    assert_eq!(reader.read(&bytes), Ok((bytes.len(), Progress::Whole)));
    let parsed = ClientHello::parse(reader.message()).expect("a hello");
    assert_eq!(parsed.server_name, Some(&b"pkg.example.com"[..]));
    assert!(!parsed.encrypted && !parsed.encrypted_name && !parsed.early_data);
    let odd =
        hello(&[(EARLY_DATA, vec![]), (ENCRYPTED_CLIENT_HELLO, vec![1]), (ENCRYPTED_SERVER_NAME, vec![])]);
    let parsed = ClientHello::parse(&odd).expect("a hello");
    assert!(parsed.server_name.is_none() && parsed.encrypted && parsed.encrypted_name && parsed.early_data);
    // TLS 1.0 without extensions at all.
    let mut old = hello(&[]);
    old.truncate(old.len() - 2);
    old[3] -= 2;
    assert_eq!(ClientHello::parse(&old).expect("a hello").server_name, None);
}

/// | 24 to 26 | the ClientHello in single bytes, in 3, 16 and 40 records, empty records, 17 KiB, two
/// names, lengths that disagree | judged as a whole, or refused |
#[test]
fn attempt_24_pieces() {
    let message = hello(&[sni(b"pkg.example.com")]);
    let bytes = records(&message, 9999);
    let mut reader = HelloReader::default();
    for (n, byte) in bytes.iter().enumerate() {
        let expected = if n + 1 == bytes.len() { Progress::Whole } else { Progress::More };
        assert_eq!(reader.read(&[*byte]), Ok((1, expected)));
    }
    assert_eq!(read(&records(&message, message.len() / 3 + 1)), Ok(Progress::Whole));
    assert_eq!(read(&records(&message, message.len().div_ceil(16))), Ok(Progress::Whole));
    assert_eq!(read(&records(&message, message.len() / 40)), Err(Malformed::Hello));
    let empty = [&[22, 3, 1, 0, 0][..], &bytes].concat();
    assert_eq!(read(&empty), Err(Malformed::Hello));
    // A record behind it is not its own, and a message in the same record belongs to none of a client's.
    let two = HelloReader::default().read(&[&bytes[..], &bytes[..]].concat());
    assert_eq!(two, Ok((bytes.len(), Progress::Whole)));
    assert_eq!(read(&records(&message.repeat(2), 9999)), Err(Malformed::Hello));
}

#[test]
fn attempt_25_length() {
    let long = |len| hello(&[(21, vec![0; len]), sni(b"pkg.example.com")]);
    assert_eq!(read(&records(&long(15 << 10), 1 << 14)), Ok(Progress::Whole));
    assert_eq!(read(&records(&long(17 << 10), 1 << 14)), Err(Malformed::Hello));
}

#[test]
fn attempt_26_contradictions() {
    let two_names = {
        let mut data = vec![0, 14];
        for name in [b"abcd", b"efgh"] {
            data.extend([0, 0, 4]);
            data.extend(name);
        }
        (SERVER_NAME, data)
    };
    let mut trailing = sni(b"a.example");
    trailing.1.push(0);
    let mut long_list = sni(b"a.example");
    long_list.1[1] += 1;
    let mut long_name = sni(b"a.example");
    long_name.1[4] += 1;
    let mut other_kind = sni(b"a.example");
    other_kind.1[2] = 1;
    for extensions in [
        vec![sni(b"a.example"), sni(b"b.example")],
        vec![(10, vec![]), (10, vec![])],
        vec![two_names],
        vec![trailing],
        vec![long_list],
        vec![long_name],
        vec![other_kind],
        vec![sni(b"")],
        vec![(SERVER_NAME, vec![])],
    ] {
        assert_eq!(ClientHello::parse(&hello(&extensions)), Err(Malformed::Hello), "{extensions:?}");
    }
    let good = hello(&[sni(b"a.example")]);
    assert_eq!(ClientHello::parse(&[&good[..], &[0]].concat()), Err(Malformed::Hello));
    for len in 0..good.len() {
        assert!(ClientHello::parse(&good[..len]).is_err());
    }
    // Every byte other than it was: no panic, and never another name without another byte in it.
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0xff;
        let _ = ClientHello::parse(&bad);
    }
}

#[test]
fn attempt_31_and_32_other_protocols() {
    for other in [
        &b"SSH-2.0-OpenSSH_9.9\r\n"[..],
        b"GET / HTTP/1.1\r\n",
        &[0x80, 0x2e, 1, 0, 2],
        &[23, 3, 3, 0, 1, 0],
        &[22, 2, 0, 0, 1, 1],
        &[1, 0, 0, 0],
    ] {
        assert_eq!(read(other), Err(Malformed::NotTls), "{other:?}");
    }
    // A handshake record with another message.
    assert_eq!(read(&[22, 3, 1, 0, 4, 2, 0, 0, 0]), Err(Malformed::Hello));
    // As old as can be, with a name.
    let mut old = records(&hello(&[sni(b"a.example")]), 9999);
    old[2] = 0;
    assert_eq!(read(&old), Ok(Progress::Whole));
}
