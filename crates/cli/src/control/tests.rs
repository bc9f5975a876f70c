//! Clients that behave and clients that do not, against a server whose workers are a thread of the test's.

use super::*;
use crate::conversation::lines;
use crate::engine::answers::{Answers, FirstReview};
use crate::engine::outbox::Outbox;
use crate::flow_messages::Bounds;
use crate::mailbox::Mailbox;
use crate::upgrades::{History, Wish};
use brodo_control::client::{Client, ClientError};
use brodo_control::event::{Event, Level, Topic};
use brodo_control::method::{
    AddForward, GetCounters, GetFlow, GetFlows, GetHello, GetStatus, ListForwards, SetLogLevel, Side,
    StartCapture, StopCapture, Upgrade,
};
use brodo_control::rpc::{self, REQUEST_MAX, code};
use brodo_core::config::Config;
use brodo_core::link::Link;
use brodo_core::stack::{Keys, Stack};
use brodo_link::channel::{self, GuestEnd};
use brodo_net::clock::Clock;
use brodo_net::driver::{Parts, Worker};
use brodo_net::sockets::Sockets;
use brodo_net::workers::{WorkerHandle, Workers};
use rustix::fd::OwnedFd;
use rustix::net::SocketType;
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

/// An instance whose guest is silent, and a folder for its socket.
struct Served {
    folder: PathBuf,
    workers: Arc<Workers>,
    bus: Arc<EventBus>,
    upgrades: Arc<Upgrades>,
    control: Option<Control>,
    worker: Option<JoinHandle<()>>,
    outbox: Arc<Outbox>,
    _guest: GuestEnd,
    _records: OwnedFd,
}

impl Served {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("brodo-control-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        let workers = Arc::new(Workers::new(1).unwrap());
        let clock = Clock::start();
        let mailbox = Arc::new(Mailbox::with_waker().unwrap());
        let bus = EventBus::new(clock).with_clients(Some(mailbox.clone()));
        let bus = Arc::new(bus);
        // A link on which nothing ever happens.
        let (link, guest) = channel::pair(channel::Options::default()).unwrap();
        let stack =
            Stack::new(Config::default(), Keys { table: [1; 16], isn: [2; 16], dns: [3; 16] }, link.caps());
        let handle = WorkerHandle::new(workers.clone(), 0).unwrap();
        let parts = Parts::new(stack, link, Sockets::new().unwrap(), clock, handle);
        let mut worker = Worker::new(parts).unwrap();
        let closed = workers.clone();
        let worker = thread::spawn(move || {
            worker.run().unwrap();
            closed.close();
        });
        // The engine is a thread of the test's.
        let (requests, their_requests) = lines::pair(SocketType::STREAM).unwrap();
        let (records, their_records) = lines::pair(SocketType::STREAM).unwrap();
        let outbox = Arc::new(Outbox::new(their_records).unwrap());
        let answers = Answers {
            workers: workers.clone(),
            ring: None,
            host: None,
            policy: None,
            bounds: Bounds { rx_max: 1, tx_max: 2 },
            interface: "eth0".to_owned(),
            clock,
            capture: None,
            review: FirstReview::None,
            freezing: Arc::default(),
            begin: sync_channel(1).0,
        };
        let to = outbox.clone();
        thread::spawn(move || answers.serve(their_requests, &to));
        let engine = EngineClient::new(0);
        let upgrades = Arc::new(Upgrades::new(History::default()).unwrap());
        engine.hold().turn_to(requests, 0);
        let controlled = Controlled {
            engine: Arc::new(engine),
            desired: Arc::default(),
            bus: bus.clone(),
            mailbox,
            upgrades: upgrades.clone(),
            info: InstanceInfo {
                command: "run",
                target: "true".to_owned(),
                interface: "eth0".to_owned(),
                mtu: 65_520,
                networks: Vec::new(),
                flows_max: 17,
                confinement: "full".to_owned(),
                no_promotion: None,
            },
            started: Instant::now(),
        };
        let listener = PrivateListener::bind(&folder.join("socket")).unwrap();
        let control = Some(Control::start(listener, controlled).unwrap());
        Self {
            folder,
            workers,
            bus,
            upgrades,
            control,
            worker: Some(worker),
            outbox,
            _guest: guest,
            _records: records,
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.join("socket")
    }

    fn client(&self) -> Client {
        Client::connect(&self.path()).expect("the server answers")
    }

    /// A connection on which the test says what it likes.
    fn raw(&self) -> UnixStream {
        let stream = UnixStream::connect(self.path()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.control.take();
        self.outbox.close(Vec::new());
        self.workers.stop();
        if let Some(worker) = self.worker.take() {
            let _ = worker.join();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The next line as JSON; `None` at the end.
fn line(stream: &UnixStream) -> Option<Value> {
    let mut text = String::new();
    match BufReader::with_capacity(1, stream).read_line(&mut text) {
        Ok(0) | Err(_) => None,
        Ok(_) => Some(serde_json::from_str(&text).unwrap_or_else(|e| panic!("{text}: {e}"))),
    }
}

/// The code of an error, behind which the connection ends.
fn refused(stream: &UnixStream) -> i64 {
    let error = line(stream).expect("an error");
    assert_eq!(error["id"], Value::Null);
    assert_eq!(line(stream), None, "the connection is closed");
    error["error"]["code"].as_i64().expect("a code")
}

#[test]
fn every_method_answers() {
    let served = Served::new("methods");
    let mut client = served.client();
    assert_eq!(client.hello().unwrap().pid, std::process::id());
    let status = client.call(&GetStatus {}).unwrap();
    assert_eq!((status.workers, status.flows, status.flows_max), (1, 0, 17));
    assert!(status.rss_bytes > 0 && status.memory.budget == 256 << 20);
    assert!(client.call(&GetCounters {}).unwrap().counters.contains_key("rx_frames"));
    assert_eq!(client.flows(&GetFlows::default()).unwrap(), []);
    assert_eq!(client.call(&ListForwards {}).unwrap().forwards, []);
    assert_eq!(client.call(&SetLogLevel { level: Some(Level::Debug) }).unwrap().level, Level::Debug);
    assert_eq!(crate::log::level(), Level::Debug);
    crate::log::set_level(Level::Error);

    let code_of = |error: ClientError| match error {
        ClientError::Refused(error) => error.code,
        other => panic!("{other}"),
    };
    let gone = client.call(&GetFlow { id: "0:1.2".parse().unwrap() }).unwrap_err();
    assert_eq!(code_of(gone), code::NOT_FOUND);
    let gone = client.call(&GetFlow { id: "7:1.2".parse().unwrap() }).unwrap_err();
    assert_eq!(code_of(gone), code::NOT_FOUND);
    let wanted = AddForward {
        side: Side::Host,
        protocol: brodo_control::flow::Protocol::Tcp,
        spec: "8080".to_owned(),
    };
    assert_eq!(code_of(client.call(&wanted).unwrap_err()), code::UNSUPPORTED);
    let old = client.call(&GetHello { protocol: Some(99) }).unwrap_err();
    assert_eq!(code_of(old), code::UNSUPPORTED);
    let many = client.call(&GetFlows { limit: Some(1001), ..GetFlows::default() }).unwrap_err();
    assert_eq!(code_of(many), code::INVALID_PARAMS);
}

#[test]
fn an_upgrade_replies_at_its_end_and_other_clients_are_served_meanwhile() {
    let served = Served::new("upgrade");
    let mut asks = served.client();
    let asking = thread::spawn(move || asks.call(&Upgrade { program: Some("/bin/brodo".into()) }));
    let wish = loop {
        if let Some(wish) = served.upgrades.take() {
            break wish;
        }
        thread::sleep(Duration::from_millis(1));
    };
    assert_eq!(wish, Wish { program: Some("/bin/brodo".into()) });
    let mut other = served.client();
    assert_eq!(other.call(&GetStatus {}).unwrap().upgrades, None);
    let refused = other.call(&Upgrade::default()).unwrap_err().to_string();
    assert!(refused.contains("an upgrade is under way"), "{refused}");
    let clients = Mailbox::<()>::with_waker().unwrap();
    // The mailbox of the test wakes no thread: the server looks at the outcome at its next event.
    let notified = thread::spawn({
        let upgrades = served.upgrades.clone();
        move || upgrades.tell(Err("it is a script".to_owned()), "then".to_owned(), Some(&clients))
    });
    while !asking.is_finished() {
        served.bus.notify(Level::Info, "an event");
        let _ = other.call(&GetStatus {});
    }
    notified.join().unwrap();
    let refused = asking.join().unwrap().unwrap_err().to_string();
    assert!(refused.contains("it is a script"), "{refused}");
    let upgrades = other.call(&GetStatus {}).unwrap().upgrades.expect("an attempt");
    assert_eq!(
        (upgrades.count, upgrades.failure.map(|failed| failed.reason)),
        (0, Some("it is a script".into()))
    );
    let relative = other.call(&Upgrade { program: Some("brodo".into()) }).unwrap_err().to_string();
    assert!(relative.contains("no absolute path"), "{relative}");
}

#[test]
fn a_capture_begins_and_ends() {
    let served = Served::new("capture");
    let mut client = served.client();
    let start =
        |file: PathBuf, filter: Option<&str>| StartCapture { file, filter: filter.map(str::to_owned) };
    let file = served.folder.join("a.pcapng");
    let refusal = |result: Result<_, ClientError>| {
        result.map(|_: brodo_control::method::CaptureStatus| ()).unwrap_err().to_string()
    };
    assert!(refusal(client.call(&start("a".into(), None))).contains("no absolute path"));
    assert!(refusal(client.call(&start(file.clone(), Some("tcpp")))).contains("`tcpp` is not known"));
    assert!(refusal(client.call(&start("/dev/null".into(), None))).contains("no ordinary file"));
    assert!(refusal(client.call(&start("/nowhere/a".into(), None))).contains("No such file"));
    assert!(refusal(client.call(&StopCapture {})).contains("no capture is under way"));
    let status = client.call(&start(file.clone(), Some("tcp port 443"))).unwrap();
    assert_eq!((status.frames, status.filter.as_deref()), (0, Some("tcp port 443")));
    assert_eq!(client.call(&GetStatus {}).unwrap().capture, Some(status));
    assert!(refusal(client.call(&start(file.clone(), None))).contains("under way: stop it first"));
    client.call(&StopCapture {}).unwrap();
    assert_eq!(client.call(&GetStatus {}).unwrap().capture, None);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(fs::metadata(&file).unwrap().len() > 0, "the headers are there");
}

#[test]
fn a_request_that_breaks_the_rules_ends_its_client_and_no_other() {
    let served = Served::new("rules");
    let mut bystander = served.client();
    let wrongs: [(&[u8], i64); 7] = [
        (b"garbage\n", code::PARSE),
        (b"\xff\xfe\n", code::PARSE),
        (b"\n", code::PARSE),
        (b"{\"jsonrpc\":\"2.0\"}\n", code::INVALID_REQUEST),
        (b"[{\"jsonrpc\":\"2.0\",\"method\":\"status\",\"id\":1}]\n", code::INVALID_REQUEST),
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", code::PARSE),
        (b"{\"jsonrpc\":\"2.0\",\"method\":\"status\",\"id\":[1]}\n", code::INVALID_REQUEST),
    ];
    for (wrong, code) in wrongs {
        let mut stream = served.raw();
        stream.write_all(wrong).unwrap();
        assert_eq!(refused(&stream), code, "{wrong:?}");
        bystander.call(&GetStatus {}).unwrap();
    }
}

#[test]
fn a_line_that_is_too_long_is_not_read_to_its_end() {
    let served = Served::new("long");
    let mut bystander = served.client();
    let mut stream = served.raw();
    let too_long = vec![b'x'; 2 * REQUEST_MAX];
    // It closes before it has all of it.
    let _ = stream.write_all(&too_long);
    // Bytes left unread at the close: a reset in place of the error.
    if let Some(error) = line(&stream) {
        assert_eq!(error["error"]["code"], code::PARSE);
    }
    assert_eq!(line(&stream), None);
    bystander.call(&GetStatus {}).unwrap();
    // The longest that may be.
    let mut stream = served.raw();
    let request = r#"{"jsonrpc":"2.0","method":"hello","id":1}"#;
    let padded = format!("{request}{}\n", " ".repeat(REQUEST_MAX - request.len()));
    stream.write_all(padded.as_bytes()).unwrap();
    assert_eq!(line(&stream).unwrap()["result"]["program"], "brodo");
    let longer = format!("{request}{}\n", " ".repeat(REQUEST_MAX - request.len() + 1));
    stream.write_all(longer.as_bytes()).unwrap();
    assert_eq!(refused(&stream), code::PARSE);
}

#[test]
fn half_a_line_at_the_end_is_refused_and_whole_ones_before_it_are_answered() {
    let served = Served::new("half");
    let mut stream = served.raw();
    stream.write_all(b"{\"jsonrpc\":\"2.0\",\"method\":\"hello\",\"id\":\"a\"}\n{\"jsonrpc\"").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(line(&stream).unwrap()["id"], "a");
    assert_eq!(refused(&stream), code::PARSE);
    // With nothing behind it, it is answered and closed.
    let mut stream = served.raw();
    stream.write_all(b"{\"jsonrpc\":\"2.0\",\"method\":\"hello\",\"id\":7}\n").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(line(&stream).unwrap()["id"], 7);
    assert_eq!(line(&stream), None);
}

#[test]
fn a_request_without_id_is_carried_out_and_one_without_method_is_an_error() {
    let served = Served::new("ids");
    let mut stream = served.raw();
    stream
        .write_all(
            b"{\"jsonrpc\":\"2.0\",\"method\":\"log.level\",\"params\":{\"level\":\"info\"}}\n\
              {\"jsonrpc\":\"2.0\",\"method\":\"no.such\",\"id\":1}\n\
              {\"jsonrpc\":\"2.0\",\"method\":\"status\",\"params\":{\"x\":1},\"id\":2}\n\
              {\"jsonrpc\":\"2.0\",\"method\":\"log.level\",\"id\":3}\n",
        )
        .unwrap();
    assert_eq!(line(&stream).unwrap()["error"]["code"], code::NO_METHOD);
    assert_eq!(line(&stream).unwrap()["error"]["code"], code::INVALID_PARAMS);
    let last = line(&stream).unwrap();
    assert_eq!((&last["id"], &last["result"]["level"]), (&json!(3), &json!("info")));
}

#[test]
fn a_client_that_does_not_read_is_not_read_from_and_delays_no_other() {
    let served = Served::new("slow");
    let mut bystander = served.client();
    let mut slow = served.raw();
    slow.set_nonblocking(true).unwrap();
    let request = b"{\"jsonrpc\":\"2.0\",\"method\":\"counters\",\"id\":1}\n".repeat(1000);
    // Requests are taken until replies fill the way back.
    let mut written = 0_usize;
    for _ in 0..200 {
        match slow.write(&request) {
            Ok(n) => written += n,
            Err(_) => thread::sleep(Duration::from_millis(1)),
        }
        bystander.call(&GetStatus {}).unwrap();
    }
    assert!(written < 200 * request.len(), "it took {written} bytes of requests");
    // A client that reads is served.
    slow.set_nonblocking(false).unwrap();
    for _ in 0..100 {
        assert_eq!(line(&slow).unwrap()["id"], 1);
    }
}

#[test]
fn places_are_bounded_and_come_free() {
    let served = Served::new("many");
    let mut clients: Vec<_> = (0..server::CLIENTS_MAX).map(|_| served.client()).collect();
    for _ in 0..50 {
        assert_eq!(refused(&served.raw()), code::BUSY);
    }
    for client in &mut clients {
        client.call(&GetStatus {}).unwrap();
    }
    clients.truncate(1);
    // The server notices in its own time.
    let free = (0..1000).any(|_| {
        thread::sleep(Duration::from_millis(5));
        Client::connect(&served.path()).is_ok()
    });
    assert!(free, "no place came free");
}

#[test]
fn subscribers_get_events() {
    let served = Served::new("events");
    let mut client = served.client();
    served.bus.notify(Level::Info, "before");
    client.subscribe(&[Topic::Notice]).unwrap();
    served.bus.notify(Level::Info, "now");
    let event = client.next_event(Some(Duration::from_secs(30))).unwrap();
    assert!(matches!(event, Some(Event::Notice { text, level: Level::Info, .. }) if text == "now"));
    // Events beyond the bound are counted.
    let mut lost = 0;
    for _ in 0..20_000 {
        served.bus.notify(Level::Info, &"x".repeat(100));
    }
    served.bus.notify(Level::Info, "last");
    let mut received = 0;
    while let Some(event) = client.next_event(Some(Duration::from_millis(500))).unwrap() {
        match event {
            Event::Lost { count } => lost += count,
            _ => received += 1,
        }
    }
    assert_eq!(received + lost, 20_001);
    client.subscribe(&[]).unwrap();
    served.bus.notify(Level::Info, "after");
    client.call(&GetStatus {}).unwrap();
    assert_eq!(client.next_event(Some(Duration::ZERO)).unwrap(), None);
}

#[test]
fn without_workers_clients_get_an_error() {
    let mut served = Served::new("ended");
    let mut client = served.client();
    served.workers.stop();
    served.worker.take().unwrap().join().unwrap();
    let error = client.call(&GetStatus {}).unwrap_err();
    assert_eq!(error.to_string(), "brodo serves no network any more");
    client.call(&GetHello::default()).unwrap();
}

#[test]
fn a_socket_is_private_and_goes_with_its_server() {
    let served = Served::new("file");
    let path = served.path();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    drop(served);
    assert!(!path.exists());
}

#[test]
fn an_error_line_is_complete() {
    let served = Served::new("line");
    let mut stream = served.raw();
    stream.write_all(b"{}\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.ends_with("}\n"));
    assert_eq!(text.lines().count(), 1);
    assert!(rpc::error(None, &rpc::Error::new(1, "x")).ends_with(b"\n"));
}
