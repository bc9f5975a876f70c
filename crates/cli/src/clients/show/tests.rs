//! Answers of instances, as printed.

use super::*;
use brodo_control::flow::{FlowDirection, Tcp, Traffic};
use std::collections::BTreeMap;

fn half(limited_by: &str) -> Half {
    Half {
        limit: 1 << 20,
        limit_max: 4 << 20,
        window: 65_536,
        in_flight: 3000,
        held: 0,
        limited_by: limited_by.to_owned(),
        limited_us: BTreeMap::from([("application".to_owned(), 17), ("loss".to_owned(), 1_200_000)]),
        grows: 4,
        shrinks: 1,
    }
}

fn some_flow(out: &str, into: &str) -> Flow {
    Flow {
        time: None,
        id: "0:12.3".parse().unwrap(),
        protocol: Protocol::Tcp,
        direction: FlowDirection::Outbound,
        carrier: Carrier::Stack,
        guest: "10.0.2.15:40000".parse().unwrap(),
        remote: "192.0.2.7:443".parse().unwrap(),
        name: Some("exa\x1bmple.org".to_owned()),
        state: "established".to_owned(),
        age_us: 61_000_000,
        idle_us: 4000,
        from_guest: Traffic { bytes: 1234, packets: 3 },
        to_guest: Traffic { bytes: 5 << 20, packets: 90 },
        rtt_us: Some(30),
        remote_rtt_us: Some(23_400),
        tcp: Some(Tcp { mss: 1460, retransmissions: 2, from_guest: half(out), to_guest: half(into) }),
    }
}

#[test]
fn flows_fit_the_terminal_and_the_peer_is_never_left_out() {
    let list = [some_flow("application", "our-limit")];
    let wide = "\
ID PROTO DIR CARRIER GUEST REMOTE STATE AGE IDLE OUT IN RTT RETRANS LIMITED BY
0:12.3 tcp out stack 10.0.2.15:40000 exa\\u{1b}mple.org:443 established 61.0s 4.0ms 1.21K 5M 23ms 2 in our-limit
";
    assert_eq!(
        flows(&list, None).split_whitespace().collect::<Vec<_>>(),
        wide.split_whitespace().collect::<Vec<_>>()
    );
    let hostile = [Flow { state: "\u{1b}c".to_owned(), ..some_flow("application", "our-limit") }];
    assert!(flows(&hostile, None).contains(" \\u{1b}c "), "{:?}", flows(&hostile, None));
    for width in [48, 60, 80, 100, 120] {
        let text = flows(&list, Some(width));
        assert!(text.lines().all(|line| line.chars().count() <= width), "{width}:\n{text}");
        assert!(text.contains("exa\\u{1b}mple.org:443") && text.contains("5M"), "{width}:\n{text}");
    }
}

#[test]
fn limiting_factors_are_shown_of_limited_directions() {
    let by = |out: &str, into: &str| limited_by(&some_flow(out, into));
    assert_eq!(by("application", "application"), "application");
    assert_eq!(by("host-socket", "application"), "out host-socket");
    assert_eq!(by("application", "loss"), "in loss");
    assert_eq!(by("memory", "link"), "out memory, in link");
}

#[test]
fn one_flow_in_detail() {
    let step = TuningStep {
        ago_us: 2_000_000,
        from_guest: false,
        from: 65_536,
        to: 1 << 20,
        cause: "hit".to_owned(),
        per_rtt: 70_000,
        rtt_us: 20,
    };
    let detail = FlowDetail { flow: some_flow("application", "loss"), history: vec![step] };
    let expected = "\
0:12.3 tcp 10.0.2.15:40000 -> 192.0.2.7:443 established
  age        61.0s, idle 4.0ms
  name       exa\\u{1b}mple.org
  out        1.21K in 3 packets
  in         5M in 90 packets
  rtt        23ms to the peer, 30us to the guest
  mss        1460
  retrans    2 segments

  out: limited by application
    limit    1M of 4M, grew 4 times, shrank 1
    window   64K, 2.93K in flight, 0 held
        1.2s loss
        17us application

  in: limited by loss
    limit    1M of 4M, grew 4 times, shrank 1
    window   64K, 2.93K in flight, 0 held
        1.2s loss
        17us application

 AGO  DIR  FROM  TO  CAUSE  PER RTT   RTT
2.0s  in    64K  1M  hit      68.4K  20us
";
    assert_eq!(flow(&detail), expected);
}

#[test]
fn counters_that_are_zero_are_left_out() {
    let mut all = Counters::default();
    all.counters.extend([("rx_frames".to_owned(), 7), ("tx_frames".to_owned(), 0)]);
    all.drops.insert("SpoofedSource".to_owned(), 1);
    assert_eq!(counters(&all), "             7  rx_frames\n             1  drop SpoofedSource\n");
}

#[test]
fn every_event_begins_with_its_time_and_a_change_has_one_line() {
    let mut lines = EventLines::default();
    let mut line = |event: serde_json::Value| {
        let event = serde_json::from_value(event.clone()).unwrap_or_else(|error| panic!("{event}: {error}"));
        lines.line(&event, 62_000_000_000)
    };
    let flow = serde_json::to_value(some_flow("application", "loss")).expect("JSON");
    let opened = line(serde_json::json!({"event": "flow_opened", "flow": flow}));
    assert_eq!(
        opened,
        "1970-01-01T00:00:01.000000Z opened 0:12.3 tcp 10.0.2.15:40000 exa\\u{1b}mple.org:443\n"
    );
    let dated = Flow { time: Some("T".to_owned()), ..some_flow("application", "loss") };
    let dated = line(serde_json::json!({"event": "flow_opened", "flow": dated}));
    assert!(dated.starts_with("T opened 0:12.3 tcp"), "{dated}");
    let ended = line(serde_json::json!({"event": "flow_ended", "flow": {
        "time": "T", "id": "0:12.3", "protocol": "tcp", "direction": "outbound", "guest": "10.0.2.15:4",
        "remote": "192.0.2.7:443", "duration_us": 1000, "from_guest": {"bytes": 1, "packets": 1},
        "to_guest": {"bytes": 2, "packets": 1}, "cause": "finished",
    }}));
    assert_eq!(ended, "T ended 0:12.3 tcp 10.0.2.15:4 192.0.2.7:443 finished after 1.0ms, out 1, in 2\n");
    let decided = line(serde_json::json!({"event": "decision", "decision": {
        "time": "T", "stage": "question", "verdict": "deny", "reason": "policy question", "name": "a.example",
        "count": 2,
    }}));
    assert_eq!(decided, "T denied question a.example by policy question (2 times)\n");
    let decided = line(serde_json::json!({"event": "decision", "decision": {
        "time": "T", "stage": "question", "verdict": "allow", "reason": "allow a.example", "name": "a.example",
        "qtype": "AAAA", "count": 1,
    }}));
    assert_eq!(decided, "T allowed question a.example AAAA by allow a.example\n");
    let change = line(serde_json::json!({"event": "policy_changed", "change": {
        "time": "T", "gen": 3, "stage": "policy", "change": "rule added", "before": "a", "after": "b",
    }}));
    assert_eq!(change, "T policy rule added: generation 3\n");
    let mut notice =
        |text: &str| line(serde_json::json!({"event": "notice", "time": "T", "level": "info", "text": text}));
    assert_eq!(notice("policy rule added: generation 3"), "");
    assert_eq!(notice("policy rule added: generation 33"), "T info: policy rule added: generation 33\n");
    assert_eq!(
        line(serde_json::json!({"event": "lost", "count": 4})),
        "1970-01-01T00:01:02.000000Z 4 events were lost\n"
    );
}
