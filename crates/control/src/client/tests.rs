//! The client against simulated servers, valid and faulty.
use super::*;
use crate::method::{GetStatus, LogLevel, SetLogLevel};
use std::io::{BufRead, BufReader};
use std::thread;

/// A client whose requests are answered by `answer`.
fn client(mut answer: impl FnMut(&str) -> Vec<u8> + Send + 'static) -> Client {
    let (ours, theirs) = UnixStream::pair().unwrap();
    thread::spawn(move || {
        let mut lines = BufReader::new(theirs.try_clone().unwrap());
        let mut line = String::new();
        while lines.read_line(&mut line).is_ok_and(|len| len > 0) {
            if (&theirs).write_all(&answer(&line)).is_err() {
                break;
            }
            line.clear();
        }
    });
    Client::new(ours).unwrap()
}

const LEVEL: &str = r#"{"jsonrpc":"2.0","id":1,"result":{"level":"info","more":1}}"#;
const LOST: &str = r#"{"jsonrpc":"2.0","method":"event","params":{"event":"lost","count":3}}"#;
const STRANGE: &str = r#"{"jsonrpc":"2.0","method":"event","params":{"event":"eclipse"}}"#;

#[test]
fn events_before_a_reply_are_kept_and_strange_ones_are_not() {
    let mut client = client(|_| format!("{LOST}\n{STRANGE}\n{LEVEL}\n{LOST}\n").into_bytes());
    let level = client.call(&SetLogLevel { level: None }).unwrap();
    assert_eq!(level, LogLevel { level: crate::event::Level::Info });
    for _ in 0..2 {
        assert_eq!(client.next_event(None).unwrap(), Some(Event::Lost { count: 3 }));
    }
    assert_eq!(client.next_event(Some(Duration::ZERO)).unwrap(), None);
}

#[test]
fn a_refusal_before_the_first_request_is_read() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let refusal = rpc::error(None, &rpc::Error::new(rpc::code::DENIED, "not you"));
    (&theirs).write_all(&refusal).unwrap();
    drop(theirs);
    assert_eq!(Client::new(ours).unwrap().call(&GetStatus {}).unwrap_err().to_string(), "not you");
}

#[test]
fn errors_say_what_they_are() {
    let error = r#"{"jsonrpc":"2.0","id":1,"error":{"code":4,"message":"later"}}"#;
    let mut busy = client(move |_| format!("{error}\n").into_bytes());
    assert_eq!(busy.call(&GetStatus {}).unwrap_err().to_string(), "later");
    let mut wrong = client(|_| b"220 smtp ready\n".to_vec());
    assert!(matches!(wrong.call(&GetStatus {}), Err(ClientError::Protocol(_))));
    let mut endless = client(|_| vec![b'x'; MESSAGE_MAX + READ_SIZE]);
    assert!(matches!(endless.call(&GetStatus {}), Err(ClientError::Protocol(_))));
    let (ours, theirs) = UnixStream::pair().unwrap();
    drop(theirs);
    assert!(matches!(Client::new(ours).unwrap().call(&GetStatus {}), Err(ClientError::Closed)));
}

#[test]
fn a_server_that_does_not_answer_is_given_up_in_the_time_of_the_caller() {
    let path = std::env::temp_dir().join(format!("brodo-silent-{}", std::process::id()));
    let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let started_at = Instant::now();
    let error = Client::connect_within(&path, Duration::from_millis(50)).unwrap_err();
    assert!(matches!(error, ClientError::TimedOut), "{error}");
    assert!(started_at.elapsed() < REPLY_TIMEOUT / 2, "{:?}", started_at.elapsed());
    std::fs::remove_file(&path).unwrap();
}
