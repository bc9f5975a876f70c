//! Requests whole and in pieces, and those that can be read in two ways. Numbers are those of the bypass
//! attempts.

use super::*;

/// Hosts of the requests in `bytes`, read at once; they end with a whole request.
fn hosts(bytes: &[u8]) -> Result<Vec<Option<String>>, Malformed> {
    let (mut reader, mut rest, mut hosts) = (RequestReader::default(), bytes, Vec::new());
    while !rest.is_empty() {
        let (taken, progress) = reader.read(rest)?;
        assert!(taken > 0, "progress");
        rest = &rest[taken..];
        if let Progress::Head(host) = progress {
            hosts.push(host.map(|host| String::from_utf8_lossy(&host).into_owned()));
        }
    }
    assert!(reader.is_between_requests(), "{:?}", reader.place());
    Ok(hosts)
}

fn host(bytes: &[u8]) -> Option<String> {
    let mut all = hosts(bytes).expect("requests");
    assert_eq!(all.len(), 1);
    all.remove(0)
}

/// A request with these lines behind the first one and its host.
fn get(lines: &str) -> Vec<u8> {
    format!("GET / HTTP/1.1\r\nHost: a.example\r\n{lines}\r\n").into_bytes()
}

#[test]
fn hosts_are_read_without_their_port() {
    let of = |value: &str| host(format!("GET /x?y HTTP/1.1\r\nhOsT:{value}\r\n\r\n").as_bytes());
    assert_eq!(of(" a.example ").as_deref(), Some("a.example"));
    assert_eq!(of("a.example:8080").as_deref(), Some("a.example"));
    assert_eq!(of("").as_deref(), Some(""));
    assert_eq!(of("[2001:db8::1]:80").as_deref(), Some("[2001:db8::1]"));
    assert_eq!(of("[2001:db8::1]").as_deref(), Some("[2001:db8::1]"));
    assert_eq!(host(b"GET / HTTP/1.0\r\n\r\n"), None);
    assert_eq!(host(b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n").as_deref(), Some("a"));
    let absolute = b"GET HTTP://A.example:80/x@y HTTP/1.1\r\nHost: a.example:80\r\n\r\n";
    assert_eq!(host(absolute).as_deref(), Some("a.example"));
}

#[test]
fn bodies_are_counted() {
    let two = |first: &str| {
        let all = [first.as_bytes(), &get("")].concat();
        assert_eq!(hosts(&all), Ok(vec![Some("b".to_owned()), Some("a.example".to_owned())]), "{first}");
        // In single bytes as at once.
        let (mut reader, mut heads) = (RequestReader::default(), 0);
        for byte in &all {
            let (taken, progress) = reader.read(&[*byte]).expect("a request");
            assert_eq!(taken, 1);
            heads += u32::from(matches!(progress, Progress::Head(_)));
        }
        assert!(heads == 2 && reader.is_between_requests());
    };
    two("GET / HTTP/1.1\r\nHost: b\r\n\r\n");
    two("POST / HTTP/1.1\r\nHost: b\r\nContent-Length: 0\r\n\r\n");
    two(
        "POST / HTTP/1.1\r\nHost: b\r\nContent-Length: 18\r\nExpect: 100-continue\r\n\r\nGET / HTTP/1.1\r\n\r\n",
    );
    two(
        "POST / HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: Chunked\r\n\r\n5\r\nGET /\r\n0a;x=\"y z\"\r\n0123456789\r\n\
         000\r\n\r\n",
    );
    two("POST / HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Sum: 1\r\nY: 2\r\n\r\n");
}

/// | 37 to 39 | HTTP: targets, fields and lengths with two readings; `CONNECT`, `Upgrade`, HTTP/2 | 403 |
#[test]
fn attempt_37_heads_with_two_readings() {
    for lines in [
        "Host: b.example\r\n",
        "hOST: a.example\r\n",
        "X : y\r\n",
        "X: y\r\n folded\r\n",
        " X: y\r\n",
        "X\r\n",
        ": y\r\n",
        "X: y\nHost: b\r\n",
        "X: y\rHost: b\r\n",
        "X: \0\r\n",
        "X: \x7f\r\n",
        "X\u{e9}: y\r\n",
        "Host : b\r\n",
        "Host: b:x\r\n",
    ] {
        assert_eq!(hosts(&get(lines)), Err(Malformed::Request), "{lines:?}");
    }
    for head in [
        "GET http://b.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
        "GET http://a.example@b.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
        "GET http://a.example\\@b.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
        "GET http://a.example/ HTTP/1.1\r\n\r\n",
        "GET https://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
        "GET a.example HTTP/1.1\r\nHost: a.example\r\n\r\n",
        "GET * HTTP/1.1\r\nHost: a.example\r\n\r\n",
        "GET /\u{e9} HTTP/1.1\r\nHost: a.example\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a.example:\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a.example:123456\r\n\r\n",
    ] {
        assert_eq!(hosts(head.as_bytes()), Err(Malformed::Request), "{head:?}");
    }
    // Bare line feeds, from the first line on.
    assert_eq!(hosts(b"GET / HTTP/1.1\nHost: a\n\n"), Err(Malformed::NotHttp));
}

#[test]
fn attempt_38_bodies_with_two_lengths() {
    for lines in [
        "Content-Length: 1\r\nContent-Length: 1\r\n",
        "Content-Length: 1, 1\r\n",
        "Content-Length: +5\r\n",
        "Content-Length: 0x5\r\n",
        "Content-Length: -1\r\n",
        "Content-Length: \r\n",
        "Content-Length: 5 5\r\n",
        "Content-Length: 9999999999999999999\r\n",
        "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: identity\r\n",
        "Transfer-Encoding: \x0bchunked\r\n",
    ] {
        assert_eq!(hosts(&get(lines)), Err(Malformed::Request), "{lines:?}");
    }
    let old = b"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(hosts(old), Err(Malformed::Request));
    let chunked = |body: &str| hosts(&[&get("Transfer-Encoding: chunked\r\n"), body.as_bytes()].concat());
    let long = format!("5;{}\r\nabcde\r\n0\r\n\r\n", "x".repeat(1024));
    for body in [
        "+5\r\nabcde\r\n0\r\n\r\n",
        "5 \r\nabcde\r\n0\r\n\r\n",
        "0x5\r\nabcde\r\n0\r\n\r\n",
        "\r\n",
        "5\nabcde\r\n0\r\n\r\n",
        "5;a\nb\r\nabcde\r\n0\r\n\r\n",
        "5\r\nabcdef\r\n0\r\n\r\n",
        "5\r\nabcde\n0\r\n\r\n",
        "1000000000000000\r\n",
        "0\r\nHost: b\r\n\r\n",
        "0\r\nContent-Length: 5\r\n\r\n",
        "0\r\nX\r\n\r\n",
        &long,
    ] {
        assert_eq!(chunked(body), Err(Malformed::Request), "{body:?}");
    }
}

#[test]
fn attempt_39_other_protocols() {
    for lines in ["Upgrade: h2c\r\n", "upgrade:websocket\r\n", "Expect: y 100-continue\r\n"] {
        assert_eq!(hosts(&get(lines)), Err(Malformed::Request), "{lines:?}");
    }
    for (head, reason) in [
        (&b"CONNECT a.example:443 HTTP/1.1\r\n"[..], Malformed::Request),
        (b"PRI * HTTP/2.0\r\n", Malformed::Request),
        (b"GET / HTTP/2\r\n", Malformed::NotHttp),
        (b"GET /\r\n", Malformed::NotHttp),
        (b"GET  / HTTP/1.1\r\n", Malformed::NotHttp),
        (b"SSH-2.0-OpenSSH_9.9\r\n", Malformed::NotHttp),
        (b"\r\n", Malformed::NotHttp),
        (&[22, 3, 1], Malformed::NotHttp),
    ] {
        assert_eq!(RequestReader::default().read(head), Err(reason), "{head:?}");
    }
}

#[test]
fn heads_are_bounded() {
    let fields = |count: usize| get(&"X: y\r\n".repeat(count));
    assert!(hosts(&fields(FIELDS_MAX - 1)).is_ok());
    assert_eq!(hosts(&fields(FIELDS_MAX)), Err(Malformed::Request));
    let long = |len: usize| get(&format!("X: {}\r\n", "y".repeat(len)));
    assert!(hosts(&long(HEAD_LEN_MAX - 100)).is_ok());
    assert_eq!(hosts(&long(HEAD_LEN_MAX)), Err(Malformed::Request));
    let endless = [b'a'; HEAD_LEN_MAX];
    assert_eq!(RequestReader::default().read(&endless), Err(Malformed::NotHttp));
}
