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
