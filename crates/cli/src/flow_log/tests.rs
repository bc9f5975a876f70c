//! Lines, rotation, and completeness at the end.

use super::*;
use crate::flow_messages;
use crate::mailbox::Mailbox;
use brodo_control::policy::{Decision, NameSource, Ruling, Stage};
use brodo_core::flow::end::{EndCause, FlowEnd};
use brodo_core::flow::info::{Carrier, FlowInfo, FlowState, Initiator, Traffic};
use brodo_core::flow::{Endpoint, FlowId, FlowKey, Protocol};
use brodo_core::time::{Duration, Instant};
use brodo_net::clock::Clock;
use serde_json::Value;
use std::fs;
use std::io::Read as _;
use std::net::Ipv4Addr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// A folder of this test's own, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("brodo-flow-log-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn log(&self) -> PathBuf {
        self.0.join("log")
    }

    /// The lines of a file.
    fn lines(&self, name: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.0.join(name)).unwrap_or_default();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}")))
            .collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn ended(port: u16) -> FlowEnd {
    let key = FlowKey {
        protocol: Protocol::Tcp,
        guest: Endpoint::new(Ipv4Addr::new(10, 0, 2, 15).into(), port),
        remote: Endpoint::new(Ipv4Addr::new(192, 0, 2, 7).into(), 443),
    };
    let info = FlowInfo {
        flow: FlowId { index: 3, generation: 1 },
        key,
        initiator: Initiator::Guest,
        carrier: Carrier::Stack,
        state: FlowState::Active,
        age: Duration::from_millis(1500),
        idle: Duration::ZERO,
        from_guest: Traffic { bytes: 100, packets: 2 },
        to_guest: Traffic { bytes: 3000, packets: 3 },
        rtt: Some(Duration::from_micros(20)),
        connect: Some(Duration::from_millis(30)),
        retransmissions: 1,
    };
    let at = Instant::from_ms(5);
    FlowEnd { at, info, opened: true, cause: EndCause::Finished, name: None, rule: None }
}

fn event(end: &FlowEnd) -> Event {
    Event::FlowEnded { flow: flow_messages::end(1, end, Clock::start()) }
}

fn events(ports: std::ops::Range<u16>) -> Vec<Event> {
    ports.map(|port| event(&ended(port))).collect()
}

/// Writes events to a log, to its end.
fn write(folder: &Folder, (len_max, keep): (u64, u32), events: Vec<Event>) {
    let mailbox = Arc::new(Mailbox::new());
    let bus = EventBus::new(Clock::start()).with_log(Some(mailbox.clone()));
    let files = Rotated::open(&folder.log(), len_max, keep).unwrap();
    let bus = Arc::new(bus);
    let log = FlowLog::start(Kind::Flows, files, mailbox, bus.clone(), 0, || {}).unwrap();
    for event in events {
        match event {
            Event::Lost { count } => bus.publish_lost(0, count),
            event => bus.publish(event),
        }
    }
    log.finish();
}

/// A process that was killed, or a machine that has lost its power, leaves half a line.
#[test]
fn the_first_line_behind_half_a_one_is_whole() {
    let folder = Folder::new("half");
    fs::write(folder.log(), "{\"time\":\"2026-11").unwrap();
    write(&folder, (1 << 20, 1), events(4000..4001));
    write(&folder, (1 << 20, 1), events(4001..4002));
    let text = fs::read_to_string(folder.log()).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.len() == 3 && text.ends_with('\n'), "{text}");
    for line in &lines[1..] {
        assert!(serde_json::from_str::<Value>(line).is_ok(), "{line}");
    }
}

#[test]
fn a_line_says_who_how_much_how_long_and_why() {
    let folder = Folder::new("line");
    let mut last = ended(4000);
    last.name = Some("example.org".into());
    last.rule = Some("deny 192.0.2.0/24".into());
    last.opened = false;
    last.cause = EndCause::Denied;
    write(&folder, (1 << 20, 3), vec![event(&ended(4001)), event(&last), Event::Lost { count: 7 }]);
    let lines = folder.lines("log");
    assert_eq!(lines.len(), 3);
    let expected = serde_json::json!({
        "time": lines[0]["time"], "id": "1:3.1", "protocol": "tcp", "direction": "outbound",
        "carrier": "stack",
        "guest": "10.0.2.15:4001", "remote": "192.0.2.7:443", "duration_us": 1_500_000,
        "from_guest": {"bytes": 100, "packets": 2}, "to_guest": {"bytes": 3000, "packets": 3},
        "rtt_us": 20, "remote_rtt_us": 30_000, "retransmissions": 1, "cause": "finished",
    });
    assert_eq!(lines[0], expected);
    assert_eq!(lines[1]["cause"], "denied");
    assert_eq!(lines[1]["name"], "example.org");
    assert_eq!(lines[1]["rule"], "deny 192.0.2.0/24");
    assert_eq!(lines[1].get("id"), None);
    assert_eq!(lines[2]["lost"], 7);
}

#[test]
fn a_file_that_is_long_enough_becomes_old_and_the_oldest_goes() {
    let folder = Folder::new("rotates");
    // About eleven lines each.
    write(&folder, (4096, 2), events(1000..1100));
    let ports = |name: &str| -> Vec<String> {
        folder.lines(name).iter().map(|line| line["guest"].as_str().unwrap().to_owned()).collect()
    };
    let all = [ports("log.2"), ports("log.1"), ports("log")].concat();
    let expected: Vec<_> = (1100 - all.len()..1100).map(|port| format!("10.0.2.15:{port}")).collect();
    assert_eq!(all, expected, "the newest, in order");
    for name in ["log", "log.1", "log.2"] {
        assert!(fs::metadata(folder.0.join(name)).unwrap().len() <= 4096);
    }
    assert!(!folder.0.join("log.3").exists());
    // A later brodo appends to the file.
    let before = ports("log").len();
    write(&folder, (1 << 20, 2), events(1..3));
    assert_eq!(ports("log").len(), before + 2);
}

#[test]
fn without_old_files_only_the_newest_lines_stay() {
    let folder = Folder::new("keeps-none");
    write(&folder, (4096, 0), events(1000..1100));
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1);
    assert_eq!(folder.lines("log").last().unwrap()["guest"], "10.0.2.15:1099");
}

#[test]
fn every_queued_line_is_written_at_the_end() {
    let folder = Folder::new("end");
    write(&folder, (1 << 30, 0), events(0..30_000));
    assert_eq!(folder.lines("log").len(), 30_000);
}

#[test]
fn a_full_disk_costs_lines_and_nothing_else() {
    let mailbox = Arc::new(Mailbox::new());
    let clients = Arc::new(Mailbox::new());
    let bus = EventBus::new(Clock::start()).with_clients(Some(clients.clone()));
    let bus = Arc::new(bus.with_log(Some(mailbox.clone())));
    let files = Rotated::open(Path::new("/dev/full"), 1 << 20, 1).unwrap();
    for event in events(0..10) {
        bus.publish(event);
    }
    bus.set_subscribed(true);
    FlowLog::start(Kind::Flows, files, mailbox, bus.clone(), 0, || {}).unwrap().finish();
    let items = clients.take().items;
    assert_eq!(items.len(), 1, "{items:?}");
    let expected = "flow log /dev/full lacks records from now on: write: No space left on device";
    assert!(matches!(&*items[0], Event::Notice { text, .. } if text == expected), "{items:?}");
}

fn decision(count: u64) -> Decision {
    Decision {
        time: "2026-11-21T18:42:30.000000Z".to_owned(),
        generation: 4,
        guest: Some("10.0.2.15:40000".parse().unwrap()),
        pinned: vec!["a.example".to_owned()],
        stage: Stage::Question,
        verdict: Ruling::Deny,
        reason: "policy question".to_owned(),
        rule: None,
        protocol: None,
        remote: None,
        name: Some("evil.example\n".to_owned()),
        name_from: Some(NameSource::Dns),
        qtype: Some("AAAA".to_owned()),
        ech: false,
        count,
    }
}

#[test]
fn decisions_that_a_full_disk_costs_are_counted() {
    let mailbox = Arc::new(Mailbox::new());
    let bus = Arc::new(EventBus::new(Clock::start()).with_audit(Some(mailbox.clone())));
    let files = Rotated::open(Path::new("/dev/full"), 1 << 20, 1).unwrap();
    let log = FlowLog::start(Kind::Audit, files, mailbox, bus.clone(), 0, || {}).unwrap();
    for lost in [12, 3] {
        bus.publish(Event::Decision { decision: decision(1000) });
        bus.publish(Event::DecisionsLost { count: lost });
        log.flush();
    }
    log.finish();
    assert_eq!(bus.audit_lost(), Some(2015));
}

#[test]
fn a_log_of_another_program_goes_on_with_the_number_of_records_that_are_missing() {
    let folder = Folder::new("upgraded");
    let mut missing = 0;
    for (path, decided) in [("/dev/full".into(), 7), (folder.log(), 5)] {
        let mailbox = Arc::new(Mailbox::new());
        let bus = EventBus::new(Clock::start()).with_audit(Some(mailbox.clone())).with_audit_lost(missing);
        let bus = Arc::new(bus);
        let files = Rotated::open(&path, 1 << 20, 1).unwrap();
        let log = FlowLog::start(Kind::Audit, files, mailbox, bus.clone(), missing, || {}).unwrap();
        bus.publish(Event::Decision { decision: decision(decided) });
        log.flush();
        missing = log.missing();
        assert_eq!((missing, bus.audit_lost()), (if decided == 7 { 7 } else { 0 }, Some(7)));
        log.finish();
    }
    let lines = folder.lines("log");
    assert_eq!((&lines[0]["lost"], &lines[1]["count"]), (&7.into(), &5.into()));
}

#[test]
fn a_log_goes_on_when_it_can_with_the_number_of_records_that_are_missing() {
    let folder = Folder::new("room");
    let mailbox = Arc::new(Mailbox::new());
    let bus = Arc::new(EventBus::new(Clock::start()).with_audit(Some(mailbox.clone())));
    // A folder in the way of the old file: nothing can be written that would make the file longer than this.
    let in_the_way = folder.0.join("log.1");
    fs::create_dir_all(in_the_way.join("full")).unwrap();
    let files = Rotated::open(&folder.log(), 900, 1).unwrap();
    let log = FlowLog::start(Kind::Audit, files, mailbox, bus.clone(), 0, || {}).unwrap();
    let publish = |events: &[Event]| {
        for event in events {
            bus.publish(event.clone());
        }
        log.flush();
    };
    let decided = |count| Event::Decision { decision: decision(count) };
    publish(&[decided(1)]);
    publish(&[decided(2), decided(10), decided(100)]);
    publish(&[decided(1000), Event::DecisionsLost { count: 10_000 }]);
    assert_eq!(bus.audit_lost(), Some(11_100));
    fs::remove_dir_all(&in_the_way).unwrap();
    publish(&[decided(5)]);
    log.finish();
    let lines = [folder.lines("log.1"), folder.lines("log")].concat();
    let numbers = |key: &str| -> Vec<u64> { lines.iter().filter_map(|line| line[key].as_u64()).collect() };
    assert_eq!((numbers("seq"), numbers("count")), (vec![1, 2, 3, 6], vec![1, 2, 10, 5]));
    // The number of missing records comes before the next line.
    assert_eq!(numbers("lost").iter().sum::<u64>(), 11_100);
    assert!(lines[lines.len() - 2]["lost"].is_u64() && lines[lines.len() - 1]["seq"] == 6, "{lines:?}");
    assert_eq!(bus.audit_lost(), Some(11_100), "counted once");
}

#[test]
fn of_a_line_that_does_not_fit_nothing_stays() {
    let folder = Folder::new("part");
    let mut files = Rotated::open(&folder.log(), 1000, 1).unwrap();
    let records = |whole| Records { whole, lost: 0 };
    files.write(b"first\n", records(1)).unwrap();
    files.flush().unwrap();
    // As a full disk leaves it: the second line whole, three bytes of the third.
    let end = |text: &str| fs::write(folder.log(), text).unwrap();
    end("first\nsecond\nthi");
    files.give_up(10, &[(7, records(1)), (6, records(10)), (8, records(100))]);
    assert_eq!(fs::read_to_string(folder.log()).unwrap(), "first\nsecond\n");
    assert_eq!(files.given_up(), records(110));
    files.write(b"next\n", records(1)).unwrap();
    files.flush().unwrap();
    assert_eq!(fs::read_to_string(folder.log()).unwrap(), "first\nsecond\nnext\n");
    // Another program has written meanwhile.
    end("first\nsecond\nnext\nthird of another\n");
    files.give_up(3, &[(6, records(1))]);
    assert_eq!(fs::read_to_string(folder.log()).unwrap(), "first\nsecond\nnext\nthird of another\n");
}

#[test]
fn a_log_that_was_moved_or_removed_is_begun_anew() {
    let folder = Folder::new("moved");
    let old = |number: u32| folder.log().with_file_name(format!("log.{number}"));
    let mut files = Rotated::open(&folder.log(), 10, 3).unwrap();
    let mut write = |line: &[u8]| {
        files.write(line, Records { whole: 1, lost: 0 }).unwrap();
        files.flush().unwrap();
    };
    write(b"first\n");
    write(b"second\n");
    fs::rename(folder.log(), old(9)).unwrap();
    write(b"third\n");
    fs::remove_file(folder.log()).unwrap();
    write(b"fourth\n");
    let read = |path: &Path| fs::read_to_string(path).unwrap();
    assert_eq!(
        (read(&folder.log()), read(&old(1)), read(&old(9))),
        ("fourth\n".to_owned(), "first\n".to_owned(), "second\n".to_owned())
    );
    assert!(!old(2).exists());
}

/// The folder is another's, or hidden, once brodo has given up its rights; here it has another name.
#[test]
fn a_log_whose_folder_is_out_of_reach_goes_on_in_its_file() {
    let folder = Folder::new("hidden");
    let path = folder.log().with_file_name("below").join("log");
    let moved = path.parent().unwrap().with_file_name("moved");
    fs::create_dir(path.parent().unwrap()).unwrap();
    let mut files = Rotated::open(&path, 10, 1).unwrap();
    fs::rename(path.parent().unwrap(), &moved).unwrap();
    for _ in 0..5 {
        files.write(b"a line\n", Records { whole: 1, lost: 0 }).unwrap();
        files.flush().unwrap();
    }
    assert_eq!(fs::read_to_string(moved.join("log")).unwrap(), "a line\n".repeat(5));
}

#[test]
fn devices_and_links_have_no_bound() {
    let folder = Folder::new("links");
    let target = folder.log().with_file_name("target");
    fs::write(&target, "").unwrap();
    std::os::unix::fs::symlink(&target, folder.log()).unwrap();
    for path in [folder.log(), "/dev/null".into()] {
        let mut files = Rotated::open(&path, 10, 1).unwrap();
        for _ in 0..5 {
            files.write(b"a line\n", Records { whole: 1, lost: 0 }).unwrap();
            files.flush().unwrap();
        }
    }
    assert!(folder.log().is_symlink() && !folder.log().with_file_name("log.1").exists());
    assert_eq!(fs::read_to_string(target).unwrap(), "a line\n".repeat(5));
    assert!(!fs::metadata("/dev/null").unwrap().is_file());
}

#[test]
fn a_new_log_is_empty_and_a_device_is_no_failure() {
    let folder = Folder::new("new");
    fs::write(folder.log(), "of an earlier run\n").unwrap();
    for path in [folder.log(), "/dev/null".into()] {
        let mut files = Rotated::open_new(&path, 100, 1).unwrap();
        files.write(b"a line\n", Records { whole: 1, lost: 0 }).unwrap();
        files.flush().unwrap();
    }
    assert_eq!(fs::read_to_string(folder.log()).unwrap(), "a line\n");
}

#[test]
fn decisions_are_numbered_and_flows_are_not_among_them() {
    let folder = Folder::new("audit");
    let mailbox = Arc::new(Mailbox::new());
    let bus = Arc::new(EventBus::new(Clock::start()).with_audit(Some(mailbox.clone())));
    let files = Rotated::open(&folder.log(), 1 << 20, 1).unwrap();
    let log = FlowLog::start(Kind::Audit, files, mailbox, bus.clone(), 0, || {}).unwrap();
    let decision = decision(12);
    bus.publish(event(&ended(1)));
    bus.publish(Event::Decision { decision: decision.clone() });
    bus.publish(Event::DecisionsLost { count: 3 });
    bus.publish(Event::Decision { decision });
    log.finish();
    let text = fs::read_to_string(folder.log()).unwrap();
    let lines: Vec<_> = text.lines().collect();
    let line = "{\"seq\":1,\"time\":\"2026-11-21T18:42:30.000000Z\",\"gen\":4,\"stage\":\"question\",\
                \"verdict\":\"deny\",\
                \"reason\":\"policy question\",\"name\":\"evil.example\\n\",\"name_from\":\"dns\",\"qtype\":\"AAAA\",\"guest\":\"10.0.2.15:40000\",\
                \"pinned\":[\"a.example\"],\"count\":12}";
    assert_eq!(lines[0], line);
    assert!(lines[1].ends_with("\"lost\":3}") && lines[2].starts_with("{\"seq\":2,"), "{text}");
    assert_eq!(lines.len(), 3);
}

/// The wait for a reader would hold up the program that replaces another.
#[test]
fn a_pipe_is_opened_again_only_while_something_reads_it() {
    let folder = Folder::new("pipe");
    let path = folder.log();
    let made = std::process::Command::new("mkfifo").arg(&path).status().expect("it runs");
    assert!(made.success());
    let error = Rotated::reopen(&path, 1 << 20, 1, None).expect_err("nothing reads it");
    assert_eq!(error.raw_os_error(), Some(libc::ENXIO));
    let mut reader =
        fs::File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&path).expect("a reader");
    let mut pipe = Rotated::reopen(&path, 1 << 20, 1, None).expect("a reader is there");
    pipe.write(b"line\n", Records::default()).and_then(|()| pipe.flush()).expect("room");
    let mut line = [0; 5];
    reader.read_exact(&mut line).expect("the line");
    assert_eq!(&line, b"line\n");
}
