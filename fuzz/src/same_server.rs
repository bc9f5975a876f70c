//! Body that compares a gate with a server: what a gate lets pass names the same server to both.
//!
//! The servers are other people's parsers: rustls for ClientHellos, httparse for requests. One that refuses
//! what a gate lets pass is no finding; one that reads another name is the hole that a gate is to close.

use brodo_core::policy::DomainName;
use brodo_core::wire::http::{Progress as HttpProgress, RequestReader};
use brodo_core::wire::tls::{ClientHello, HelloReader, Progress};
use httparse::{Header, Request, Status};
use rustls::server::Acceptor;

/// Most fields of a head that the server reads, more than the gate does.
const FIELDS_MAX: usize = 256;

/// The first byte chooses the protocol.
pub fn run(data: &[u8]) {
    match data.split_first() {
        Some((0, bytes)) => tls(bytes),
        Some((_, bytes)) => http(bytes),
        None => {}
    }
}

/// The bytes up to the end of a ClientHello, and its name; none if the gate refuses them or waits for more.
fn gate_reads(bytes: &[u8]) -> Option<(&[u8], Option<DomainName>)> {
    let mut reader = HelloReader::default();
    for (n, byte) in bytes.iter().enumerate() {
        if reader.read(&[*byte]).ok()?.1 == Progress::Whole {
            let hello = ClientHello::parse(reader.message()).ok()?;
            let name = hello.server_name.map(DomainName::parse);
            // A name that is none is refused.
            return Some((&bytes[..=n], name.map(|name| name.ok_or(())).transpose().ok()?));
        }
    }
    None
}

fn tls(bytes: &[u8]) {
    let Some((mut hello, name)) = gate_reads(bytes) else { return };
    let mut acceptor = Acceptor::default();
    let accepted = loop {
        match (acceptor.read_tls(&mut hello), acceptor.accept()) {
            (_, Ok(Some(accepted))) => break accepted,
            (Err(_), _) | (_, Err(_)) => return,
            (Ok(0), Ok(None)) => panic!("the server waits for more of a hello that was whole"),
            (Ok(_), Ok(None)) => {}
        }
    };
    let read = accepted.client_hello().server_name().map(str::to_owned);
    let read = read.map(|read| DomainName::parse(read.as_bytes()).expect("the server's name is one"));
    assert_eq!(read, name, "the server reads another name");
}

/// The hosts of the requests that a gate lets pass, and the bytes of them.
fn gate_passes(bytes: &[u8]) -> (Vec<Vec<u8>>, &[u8]) {
    let (mut reader, mut hosts, mut at, mut passed) = (RequestReader::default(), Vec::new(), 0, 0);
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        let Ok((taken, progress)) = reader.read(rest) else { break };
        at += taken;
        match progress {
            HttpProgress::Head(Some(host)) => hosts.push(host.into_vec()),
            HttpProgress::Head(None) => break,
            HttpProgress::Body => {}
            HttpProgress::More => continue,
        }
        passed = at;
    }
    (hosts, &bytes[..passed])
}

/// Length of a body, if it has one; `None` if it is chunked.
fn length(headers: &[Header<'_>]) -> Option<usize> {
    let find = |name: &str| headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
    if find("transfer-encoding").is_some() {
        return None;
    }
    let digits = find("content-length").map(|header| std::str::from_utf8(header.value).expect("digits"));
    Some(digits.map_or(0, |digits| digits.parse().expect("a length")))
}

/// Bytes behind a chunked body; none if it is not whole.
fn behind_chunks(mut bytes: &[u8]) -> Option<&[u8]> {
    loop {
        let Status::Complete((at, size)) = httparse::parse_chunk_size(bytes).expect("a chunk") else {
            return None;
        };
        let rest = bytes.get(at..)?;
        if size == 0 {
            let mut trailers = [httparse::EMPTY_HEADER; FIELDS_MAX];
            return match httparse::parse_headers(rest, &mut trailers).expect("trailers") {
                Status::Complete((end, _)) => rest.get(end..),
                Status::Partial => None,
            };
        }
        bytes = rest.get(usize::try_from(size).ok()?.checked_add(2)?..)?;
    }
}

/// Hosts as a server sees them.
fn server_reads(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut hosts = Vec::new();
    loop {
        let mut headers = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut request = Request::new(&mut headers);
        // A server that refuses the request sees no further one.
        let Ok(Status::Complete(end)) = request.parse(bytes) else { return hosts };
        let named: Vec<_> =
            request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("host")).collect();
        assert!(named.len() <= 1, "a second Host has passed");
        let Some(host) = named.first() else { return hosts };
        hosts.push(host.value.to_vec());
        let rest = match length(request.headers) {
            Some(length) => bytes[end..].get(length..),
            None => behind_chunks(&bytes[end..]),
        };
        match rest {
            Some(rest) => bytes = rest,
            None => return hosts,
        }
    }
}

fn http(bytes: &[u8]) {
    let (allowed, passed) = gate_passes(bytes);
    for (n, read) in server_reads(passed).iter().enumerate() {
        let host = allowed.get(n).expect("the server sees a request that the gate has not seen");
        let port = read.strip_prefix(&host[..]).expect("the server reads another host");
        let is_port = port.is_empty() || (port[0] == b':' && port[1..].iter().all(u8::is_ascii_digit));
        assert!(is_port, "the server reads another host");
    }
}
