//! Gates for HTTP without TLS: every request of a connection names its host. Numbers are those of the bypass
//! attempts in the guide's page on policies.

use super::gates::{Gated, NAME};
use super::under_policy::{Ruled, policy, under};
use super::*;

const TO: &str = "203.0.113.5:80";

fn gated() -> Script {
    let mut t = Script::new(under(policy(
        &["http://pkg.example.com", "http://b.example", "https://pkg.example.com:80"],
        &["http://denied.example"],
    )));
    t.behind_gate_to(TO);
    t
}

fn get(host: &str) -> Vec<u8> {
    format!("GET /simple/ HTTP/1.1\r\nHost: {host}\r\nAccept: */*\r\n\r\n").into_bytes()
}

/// The guest gets 403 with this reason and the end of the stream; the peer is reset without a byte.
fn expect_forbidden(t: &mut Script, reason: &str) {
    let word = reason.strip_prefix("policy ").unwrap_or("deny");
    let text = format!("brodo: the policy refuses this request: {word}\n");
    let answer = format!(
        "HTTP/1.1 403 Forbidden\r\nX-Brodo-Policy: {word}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{text}",
        text.len()
    );
    let lines: Vec<String> = t.take_all().iter().map(ToString::to_string).collect();
    let length = format!("data={}", answer.len());
    assert!(lines.iter().any(|line| line.contains(&length)), "{reason}: no answer of {length}: {lines:?}");
    assert!(lines.iter().any(|line| line.contains("FIN")), "no end: {lines:?}");
    t.host_closed(Some(Close::Reset));
    assert_eq!(t.peer_gets(), [0; 0], "the server got no byte");
    t.guest("ACK");
    t.advance_ms(5000);
    t.expect_all_gone();
    assert_eq!(t.refused(), [(reason.to_owned(), 1)]);
}

/// Both sides are reset.
fn expect_reset(t: &mut Script, reason: &str) {
    let lines: Vec<String> = t.take_all().iter().map(ToString::to_string).collect();
    assert!(lines.iter().any(|line| line.contains("RST")), "{lines:?}");
    t.host_closed(Some(Close::Reset));
    assert_eq!(t.refused(), [(reason.to_owned(), 1)]);
    t.expect_all_gone();
}

#[test]
fn requests_and_answers_pass_unchanged() {
    let mut t = gated();
    let first = get("PKG.example.com:80");
    for piece in first.chunks(7) {
        assert_eq!(t.peer_gets(), [0; 0], "a part waits");
        t.sends(piece);
    }
    t.take_all();
    assert_eq!(t.peer_gets(), first);
    t.host_sends(1000);
    t.expect("ACK|PSH data=1000");
    // A body passes as it comes, and the next request behind it.
    let head = b"POST / HTTP/1.1\r\nHost: pkg.example.com\r\nContent-Length: 3000\r\n\r\n";
    for piece in [&head[..], &[b'x'; 1400], &[b'y'; 1400], &[b'z'; 200], &get(NAME)] {
        t.sends(piece);
        assert_eq!(t.peer_gets(), piece);
    }
    let pipelined = [get(NAME), get(NAME)].concat();
    t.sends(&pipelined);
    assert_eq!(t.peer_gets(), pipelined);
    assert_eq!(t.refused(), []);
}

#[test]
fn names_are_judged_as_by_tls() {
    for (host, reason) in [
        ("b.example", "policy name-elsewhere"),
        ("evil.example", "policy name"),
        ("denied.example", "deny http://denied.example"),
        ("203.0.113.5", "policy name"),
        ("[2001:db8::1]", "policy name"),
        ("", "policy no-name"),
        ("pkg.example.com, evil.example", "policy name"),
    ] {
        let mut t = gated();
        t.sends(&get(host));
        expect_forbidden(&mut t, reason);
    }
    let mut t = gated();
    t.sends(b"GET / HTTP/1.0\r\n\r\n");
    expect_forbidden(&mut t, "policy no-name");
}

#[test]
fn a_port_for_tls_and_http_takes_both() {
    let mut t = gated();
    let hello = brodo_sim::hello::record(22, &brodo_sim::hello::client_hello(NAME.as_bytes(), &[]));
    t.sends(&hello);
    assert_eq!(t.peer_gets(), hello);
    let mut t = gated();
    let hello = brodo_sim::hello::record(22, &brodo_sim::hello::client_hello(b"evil.example", &[]));
    t.sends(&hello);
    t.expect_alert("policy name");
}

#[test]
fn attempt_32_other_protocols_at_port_80() {
    for first in [&b"SSH-2.0-OpenSSH_9.9\r\n"[..], b"\x01\0\0\0", b"GET /\r\n"] {
        let mut t = gated();
        t.sends(first);
        expect_forbidden(&mut t, "policy not-http");
    }
}

#[test]
fn attempt_33_silence_and_half_a_request() {
    let mut t = gated();
    t.sends(b"GET / HTTP/1.1\r\nHost: pkg");
    t.take_all();
    t.advance_ms(5100);
    expect_forbidden(&mut t, "policy timeout");
    let mut t = gated();
    t.sends(b"GET / HTTP/1.1\r\nHost: pkg");
    t.take_all();
    t.guest("FIN|ACK");
    expect_forbidden(&mut t, "policy request");
}

/// | 36 | HTTP: another host in a later or pipelined request | both sides are reset, no byte of it leaves
/// |
#[test]
fn attempt_36_a_later_request_for_another_host() {
    // Behind an answer.
    let mut t = gated();
    t.sends(&get(NAME));
    t.peer_gets();
    t.host_sends(100);
    t.take_all();
    t.guest("ACK");
    t.sends(&get("evil.example"));
    assert_eq!(t.peer_gets(), [0; 0]);
    expect_reset(&mut t, "policy name-changed");
    // In the same segment none of both leaves, and an answer falls into no other.
    let mut t = gated();
    t.sends(&[get(NAME), get("b.example")].concat());
    expect_forbidden(&mut t, "policy name-changed");
    // The same behind a first request.
    let mut t = gated();
    t.sends(&get(NAME));
    t.peer_gets();
    t.take_all();
    t.sends(&[get(NAME), get("b.example")].concat());
    assert_eq!(t.peer_gets(), [0; 0]);
    expect_reset(&mut t, "policy name-changed");
    // As the body of an allowed one it is a body.
    let mut t = gated();
    let inner = get("evil.example");
    let head = format!("POST / HTTP/1.1\r\nHost: {NAME}\r\nContent-Length: {}\r\n\r\n", inner.len());
    t.sends(&[head.as_bytes(), &inner].concat());
    assert!(t.peer_gets().ends_with(&inner));
    t.take_all();
    t.sends(&inner);
    expect_reset(&mut t, "policy name-changed");
}

#[test]
fn attempt_37_to_39_requests_with_two_readings() {
    for request in [
        "GET http://evil.example/ HTTP/1.1\r\nHost: pkg.example.com\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: pkg.example.com\r\nHost: evil.example\r\n\r\n",
        "GET / HTTP/1.1\r\nHost : evil.example\r\nHost: pkg.example.com\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: pkg.example.com\r\nX: a\n b\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: pkg.example.com\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: pkg.example.com\r\nTransfer-Encoding: xchunked\r\n\r\n",
        "CONNECT pkg.example.com:443 HTTP/1.1\r\nHost: pkg.example.com\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: pkg.example.com\r\nUpgrade: websocket\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        let mut t = gated();
        t.sends(request.as_bytes());
        expect_forbidden(&mut t, "policy request");
    }
}
