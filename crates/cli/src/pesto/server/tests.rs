//! A client at a server whose forwards are only noted.

use super::*;
use crate::pesto::client::Step;
use crate::pesto::rules::of_spec;
use brodo_control::flow::Protocol;
use brodo_control::method::Side;
use brodo_control::rpc::code;
use std::cell::RefCell;
use std::os::unix::net::UnixListener;
use std::thread;

/// Forwards that are only noted; port 1 is in use.
#[derive(Default)]
struct Noted {
    all: RefCell<Vec<Forward>>,
    last_id: RefCell<u64>,
}

impl Forwards for Noted {
    fn list(&self) -> Result<Vec<Forward>, Error> {
        Ok(self.all.borrow().clone())
    }

    fn add(&self, wanted: &AddForward) -> Result<Forward, Error> {
        if wanted.spec == "1" {
            return Err(Error::new(code::FAILED, "cannot listen on port 1: Address already in use"));
        }
        let AddForward { side, protocol, ref spec } = *wanted;
        *self.last_id.borrow_mut() += 1;
        let id = *self.last_id.borrow();
        let forward = Forward { id, side, protocol, spec: spec.clone(), sockets: 1, listening: Vec::new() };
        self.all.borrow_mut().push(forward.clone());
        Ok(forward)
    }

    fn remove(&self, id: u64) -> Result<Forward, Error> {
        let mut all = self.all.borrow_mut();
        let at = all.iter().position(|forward| forward.id == id);
        at.map(|at| all.remove(at)).ok_or_else(|| Error::new(code::NOT_FOUND, "none"))
    }
}

impl Noted {
    fn with(specs: &[&str]) -> Self {
        let noted = Self::default();
        for spec in specs {
            let (side, protocol) = (Side::Host, Protocol::Tcp);
            noted.add(&AddForward { side, protocol, spec: (*spec).to_owned() }).expect("added");
        }
        noted
    }

    /// Their numbers and specifications.
    fn shown(&self) -> Vec<String> {
        self.all.borrow().iter().map(|forward| format!("{} {}", forward.id, forward.spec)).collect()
    }

    /// Result of these steps of a client.
    fn after(&self, steps: Vec<Step>) -> Result<String, String> {
        let name = format!("brodo-pesto-{}-{:?}", std::process::id(), thread::current().id());
        let path = std::env::temp_dir().join(name);
        let listener = UnixListener::bind(&path).expect("a socket");
        let request = crate::pesto::client::Request { path: path.clone(), show: true, steps };
        let client = thread::spawn(move || crate::pesto::client::execute(&request));
        let (mut stream, _) = listener.accept().expect("the client");
        serve(self, Families { v4: true, v6: true }, || {}, &mut stream).expect("served");
        drop(stream);
        std::fs::remove_file(&path).expect("it is there");
        client.join().expect("no panic")
    }
}

fn host(spec: &str) -> Vec<Rule> {
    of_spec(&spec.parse().expect(spec), TableId::Host, Protocol::Tcp, &ephemeral_ports())
}

#[test]
fn changes_leave_other_forwards_alone() {
    let noted = Noted::with(&["8080:80", "7000-7002", "auto"]);
    let text = noted.after(vec![Step::Add(TableId::Host, host("9000"))]).expect("added");
    assert!(
        text.starts_with("Previous configuration (") && text.contains("Updated configuration ("),
        "{text}"
    );
    assert_eq!(text.matches("TCP [*]:9000  =>  9000 \n").count(), 1, "{text}");
    assert_eq!(noted.shown(), ["1 8080:80", "2 7000-7002", "3 auto", "4 9000"]);
    noted.after(vec![Step::Add(TableId::Host, host("9000"))]).expect("no change");
    noted.after(vec![Step::Delete(TableId::Host, host("7000-7002"))]).expect("removed");
    assert_eq!(noted.shown(), ["1 8080:80", "3 auto", "4 9000"]);
    noted
        .after(vec![Step::Clear(TableId::Host), Step::Add(TableId::Host, host("8080:80"))])
        .expect("replaced");
    assert_eq!(noted.shown(), ["1 8080:80"]);
    let splice = of_spec(&"5432".parse().expect("ports"), TableId::Splice, Protocol::Udp, &ephemeral_ports());
    noted.after(vec![Step::Add(TableId::Splice, splice)]).expect("added");
    let added = noted.all.borrow()[1].clone();
    assert_eq!((added.side, added.protocol, added.spec.as_str()), (Side::Guest, Protocol::Udp, "5432"));
}

#[test]
fn a_part_of_a_forward_can_be_removed() {
    let noted = Noted::with(&["20-30,~25"]);
    noted.after(vec![Step::Delete(TableId::Host, host("20-24"))]).expect("removed");
    assert_eq!(noted.shown(), ["2 26-30"]);
}

#[test]
fn a_failure_is_an_error_and_changes_nothing() {
    let noted = Noted::with(&["8080:80"]);
    let steps = vec![Step::Clear(TableId::Host), Step::Add(TableId::Host, host("9000,1,9001"))];
    let why = noted.after(steps).expect_err("a port in use");
    assert_eq!(why, "cannot listen on port 1: Address already in use");
    let shown = noted.shown();
    assert!(shown.len() == 1 && shown[0].ends_with(" 8080:80"), "{shown:?}");
}

#[test]
fn listing_and_foreign_bytes_change_nothing() {
    let noted = Noted::with(&["8080:80"]);
    let text = noted.after(Vec::new()).expect("a list");
    assert!(text.starts_with("passt/pasta configuration ("), "{text}");
    assert!(text.ends_with("  HOST\n    TCP [*]:8080  =>  80 \n  SPLICE\n"), "{text}");
    let (mut ours, mut theirs) = std::os::unix::net::UnixStream::pair().expect("a pair");
    theirs.write_all(b"{\"jsonrpc\":\"2.0\"}").expect("room");
    serve(&noted, Families { v4: true, v6: false }, || {}, &mut ours).expect("served");
    drop(ours);
    let mut all = Vec::new();
    // Bytes that were not read end the connection with an error behind the sentence.
    let _ = theirs.read_to_end(&mut all);
    assert!(String::from_utf8_lossy(&all).ends_with("an unknown table"), "{}", all.escape_ascii());
    assert_eq!(noted.shown(), ["1 8080:80"]);
}
