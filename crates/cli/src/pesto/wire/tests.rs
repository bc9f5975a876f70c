//! Bytes as passt's programs of 2026-10-02 send them, and bytes that are none.

use super::*;

fn rule(listen: &str, ports: (u16, u16, u16), flags: u8) -> Rule {
    let (first, last, to) = ports;
    let listen = listen.parse().expect("an address");
    Rule { listen, interface: None, first, last, target: None, to, protocol: TCP, flags }
}

/// The rule `-t 127.0.0.1/1235:169.254.2.1/5` as pasta sends it.
const RULE: &str = "00000000000000000000ffff7f000001 00000000000000000000ffffa9fe0201 \
                    00000000000000000000000000000000 04d3 04d3 0005 06 00";

fn bytes(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte =
        |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16).expect("hexadecimal");
    digits.chunks(2).map(byte).collect()
}

#[test]
fn a_rule_has_the_bytes_that_pasta_sends() {
    let expected = Rule { target: Some([169, 254, 2, 1].into()), ..rule("127.0.0.1", (1235, 1235, 5), 0) };
    let mut written = Vec::new();
    expected.write(&mut written);
    assert_eq!(written, bytes(RULE));
    assert_eq!(Rule::read(&mut written.as_slice()).expect("a rule"), expected);
    let any = Rule { interface: Some("lo".to_owned()), ..rule("::", (1, 32767, 1), ANY | WEAK | SCAN) };
    let mut written = Vec::new();
    any.write(&mut written);
    assert_eq!(Rule::read(&mut written.as_slice()).expect("a rule"), any);
    assert_eq!(any.to_string(), "TCP [*]%lo:1-32767  =>  1-32767  (best effort) (auto-scan)");
    assert_eq!(expected.to_string(), "TCP [127.0.0.1]:1235  =>  169.254.2.1:5 ");
}

#[test]
fn a_greeting_begins_as_pastas_and_is_read_again() {
    let tables = [
        Table { id: TableId::Host, rules: vec![rule("0.0.0.0", (80, 80, 80), 0)] },
        Table { id: TableId::Splice, rules: Vec::new() },
    ];
    let greeting = greeting(&tables, IPV4 | IPV6);
    assert!(greeting.starts_with(&bytes("626173696c3a7300 00000002 00000080 00000010 01 484f5354 00")));
    assert_eq!(&greeting[20 + 129..][..8], bytes("0000003f 00000001"));
    assert_eq!(greeting.last(), Some(&0));
    assert_eq!(read_greeting(&mut greeting.as_slice()).expect("a greeting"), tables);
    for (at, what) in [(0, "another program"), (11, "version"), (15, "lengths"), (20, "table")] {
        let mut other = greeting.clone();
        other[at] ^= 0x40;
        let error = read_greeting(&mut other.as_slice()).expect_err(what);
        assert!(error.to_string().contains(what), "{error}");
    }
    for length in 0..greeting.len() {
        assert!(read_greeting(&mut &greeting[..length]).is_err(), "cut at {length}");
    }
}

#[test]
fn an_answer_is_read_and_nothing_is_none() {
    let tables = [Table { id: TableId::Splice, rules: vec![rule("::1", (5, 9, 7), 0)] }];
    let answer = answer(&tables);
    assert_eq!(answer.len(), 1 + 4 + RULE_LEN + 1);
    assert_eq!(read_answer(&mut answer.as_slice()).expect("an answer"), Some(tables.to_vec()));
    assert_eq!(read_answer(&mut [].as_slice()).expect("an end"), None);
    assert_eq!(read_answer(&mut [0].as_slice()).expect("no tables"), Some(Vec::new()));
    for length in 1..answer.len() {
        assert!(read_answer(&mut &answer[..length]).is_err(), "cut at {length}");
    }
    for hostile in ["02", "01 ffffffff", "01 00000000 01 00000000 00"] {
        let error = read_answer(&mut bytes(hostile).as_slice()).expect_err(hostile);
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{hostile}");
    }
    // An interface's name without its end, and one that is no text.
    for byte in [b'x', 0xff] {
        let mut strange = answer.clone();
        strange[1 + 4 + 32..][..INTERFACE_LEN].fill(byte);
        assert!(read_answer(&mut strange.as_slice()).is_err());
    }
}
