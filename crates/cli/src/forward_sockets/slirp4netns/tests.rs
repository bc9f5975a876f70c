//! Requests of callers, and those that are none, with the replies of slirp4netns 1.3.3.

use super::*;
use brodo_control::rpc::{Error, code};
use std::cell::RefCell;

const GUEST: Option<Ipv4Addr> = Some(Ipv4Addr::new(10, 0, 2, 100));

/// Forwards that are only noted; port 1 is in use.
#[derive(Default)]
struct Noted(RefCell<Vec<Forward>>);

impl Forwards for Noted {
    fn list(&self) -> Result<Vec<Forward>, Error> {
        Ok(self.0.borrow().clone())
    }

    fn add(&self, wanted: &AddForward) -> Result<Forward, Error> {
        let AddForward { side, protocol, ref spec } = *wanted;
        if let Err(why) = spec.parse::<Spec>() {
            return Err(Error::new(code::INVALID_PARAMS, why));
        }
        if spec.contains("/1:") {
            return Err(Error::new(code::FAILED, "Address already in use"));
        }
        let id = self.0.borrow().len() as u64 + 1;
        let forward = Forward { id, side, protocol, spec: spec.clone(), sockets: 1, listening: Vec::new() };
        self.0.borrow_mut().push(forward.clone());
        Ok(forward)
    }

    fn remove(&self, id: u64) -> Result<Forward, Error> {
        let mut all = self.0.borrow_mut();
        let at = all.iter().position(|forward| forward.id == id);
        at.map(|at| all.remove(at)).ok_or_else(|| Error::new(code::NOT_FOUND, "none"))
    }
}

fn asked(forwards: &Noted, request: &str) -> Value {
    serde_json::from_slice(&answer(forwards, GUEST, request.as_bytes())).expect("JSON")
}

#[test]
fn a_forward_is_added_listed_and_removed() {
    let forwards = Noted::default();
    let add = r#"{"execute":"add_hostfwd","arguments":{"proto":"tcp","host_addr":"0.0.0.0","host_port":8080,
        "guest_addr":"10.0.2.100","guest_port":80}}"#;
    assert_eq!(asked(&forwards, add), json!({ "return": { "id": 1 } }));
    assert_eq!(forwards.0.borrow()[0].spec, "0.0.0.0/8080:10.0.2.100/80");
    let short = r#"{"execute":"add_hostfwd","arguments":{"proto":"udp","host_port":53,"guest_port":5353}}"#;
    assert_eq!(asked(&forwards, short), json!({ "return": { "id": 2 } }));
    let v6 = r#"{"execute":"add_hostfwd","arguments":{"proto":"tcp","host_addr":"::1","host_port":9,"guest_port":9}}"#;
    assert_eq!(asked(&forwards, v6), json!({ "return": { "id": 3 } }));
    let list = asked(&forwards, r#"{"execute":"list_hostfwd"}"#);
    let entry = |number: usize| &list["return"]["entries"][number];
    let first = json!({ "id": 1, "proto": "tcp", "host_addr": "0.0.0.0", "host_port": 8080,
        "guest_addr": "10.0.2.100", "guest_port": 80 });
    assert_eq!(*entry(0), first);
    assert_eq!((&entry(1)["proto"], &entry(1)["guest_addr"]), (&json!("udp"), &json!("10.0.2.100")));
    assert_eq!((&entry(2)["host_addr"], &entry(2)["host_port"]), (&json!("::1"), &json!(9)));
    assert_eq!(list["entries"], list["return"]["entries"], "as the original has them");
    let remove = r#"{"execute":"remove_hostfwd","arguments":{"id":1}}"#;
    assert_eq!(asked(&forwards, remove), json!({ "return": {} }));
    assert_eq!(
        asked(&forwards, remove)["error"]["desc"],
        json!("bad request: remove_hostfwd: bad arguments.id")
    );
}

#[test]
fn forwards_of_other_origin_are_in_the_list() {
    let forwards = Noted::default();
    let of = |side, spec: &str| AddForward { side, protocol: Protocol::Tcp, spec: spec.to_owned() };
    forwards.add(&of(Side::Host, "2000-2002:3000-3002,~2001")).expect("added");
    forwards.add(&of(Side::Guest, "5432")).expect("added");
    forwards.add(&of(Side::Host, "auto")).expect("added");
    let list = asked(&forwards, r#"{"execute":"list_hostfwd"}"#);
    let ports = |name: &str| -> Vec<_> {
        list["entries"].as_array().expect("a list").iter().map(|entry| entry[name].clone()).collect()
    };
    assert_eq!(ports("host_port"), [json!(2000), json!(2002)]);
    assert_eq!(ports("guest_port"), [json!(3000), json!(3002)]);
}

#[test]
fn an_empty_address_is_none() {
    let podman = r#"{"execute":"add_hostfwd","arguments":{"proto":"tcp","host_addr":"","host_port":8080,
        "guest_addr":"","guest_port":80}}"#;
    let forwards = Noted::default();
    assert_eq!(asked(&forwards, podman)["return"]["id"], json!(1));
    let entry = &asked(&forwards, r#"{"execute":"list_hostfwd"}"#)["entries"][0];
    assert_eq!((&entry["host_addr"], &entry["guest_addr"]), (&json!("0.0.0.0"), &json!("10.0.2.100")));
}

#[test]
fn errors_have_the_texts_of_the_original() {
    let add = |arguments: &str| format!(r#"{{"execute":"add_hostfwd","arguments":{{{arguments}}}}}"#);
    let tcp = r#""proto":"tcp""#;
    for (request, text) in [
        ("badjson".to_owned(), "cannot parse JSON"),
        (String::new(), "cannot parse JSON"),
        (r#"{"unexpectedjson":42}"#.to_owned(), "no execute found"),
        (r#"{"execute":42}"#.to_owned(), "no execute found"),
        ("[1]".to_owned(), "no execute found"),
        (r#"{"execute":"bad"}"#.to_owned(), "unknown execute"),
        ("x".repeat(4096), "too large message"),
        (r#"{"execute":"add_hostfwd"}"#.to_owned(), "add_hostfwd: bad arguments.proto"),
        (add(r#""proto":"bad""#), "add_hostfwd: bad arguments.proto"),
        (add(&format!(r#"{tcp},"host_addr":"x""#)), "add_hostfwd: bad arguments.host_addr"),
        (add(tcp), "add_hostfwd: bad arguments.host_port"),
        (add(&format!(r#"{tcp},"host_port":65536"#)), "add_hostfwd: bad arguments.host_port"),
        (add(&format!(r#"{tcp},"host_port":80,"guest_addr":7"#)), "add_hostfwd: bad arguments.guest_addr"),
        (add(&format!(r#"{tcp},"host_port":80,"guest_port":0"#)), "add_hostfwd: bad arguments.guest_port"),
        (
            add(&format!(r#"{tcp},"host_port":1,"guest_port":80"#)),
            "add_hostfwd: slirp_add_hostfwd failed: Address already in use",
        ),
        (r#"{"execute":"remove_hostfwd"}"#.to_owned(), "remove_hostfwd: bad arguments.id"),
        (
            r#"{"execute":"remove_hostfwd","arguments":{"id":-1}}"#.to_owned(),
            "remove_hostfwd: bad arguments.id",
        ),
    ] {
        let reply = asked(&Noted::default(), &request);
        assert_eq!(reply["error"]["desc"], json!(format!("bad request: {text}")), "{request}");
    }
}

#[test]
fn a_request_ends_with_its_value_with_the_stream_or_with_its_bound() {
    let read = |mut bytes: &[u8]| read(&mut bytes).expect("a slice");
    assert_eq!(read(b"{\"execute\":\"x\"}"), b"{\"execute\":\"x\"}");
    assert_eq!(read(b"badjson\n"), b"badjson\n");
    assert_eq!(read(&[0; 9000]).len(), REQUEST_MAX + 1);
    // Cut in two, by a client that then waits.
    let cut = Read::chain(&b"{\"execute\":"[..], &b"\"x\"}"[..]);
    let mut cut = cut.chain(Endless);
    assert_eq!(super::read(&mut cut).expect("a value"), b"{\"execute\":\"x\"}");
}

/// A client that sends nothing more and does not end.
struct Endless;

impl Read for Endless {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        panic!("read once more behind a complete request")
    }
}
