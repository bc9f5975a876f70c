//! The model after samples of a fictitious instance.

use super::*;
use brodo_control::event::Level;
use brodo_control::flow::{FlowDirection, Protocol, Traffic};
use brodo_control::method::{Bulk, Memory};

/// Status of the fictitious instance after so many seconds.
pub(in crate::top) fn status(at_s: u64) -> Status {
    Status {
        pid: 4711,
        version: "0.1.0".into(),
        protocol: 1,
        uptime_s: 3600 + at_s,
        command: "run".into(),
        target: "cargo test --workspace".into(),
        interface: "eth0".into(),
        mtu: 65520,
        networks: Vec::new(),
        resolvers: Vec::new(),
        workers: 1,
        memory: Memory { used: 12 << 20, reserved: 34 << 20, budget: 256 << 20 },
        flows: 7,
        flows_max: 65536,
        cpu_user_us: 100_000 + at_s * 100_000,
        cpu_system_us: 50_000 + at_s * 23_000,
        rss_bytes: 14 << 20,
        capture: None,
        confinement: "full".to_owned(),
        bulk: Bulk::default(),
        crashes: 0,
        upgrades: None,
        log_level: Level::Warn,
    }
}

/// Counters of the instance.
pub(in crate::top) fn counters(at_s: u64) -> Counters {
    let counted =
        [("rx_bytes", 1_000_000 * at_s), ("tx_bytes", 20_000_000 * at_s), ("tcp_retransmissions", 3 * at_s)];
    let drops = [("OutOfWindow", 12), ("LinkFull", 2 * at_s), ("NoConnection", 1), ("Refused", 0)];
    let named = |pairs: &[(&str, u64)]| pairs.iter().map(|&(name, count)| (name.to_owned(), count)).collect();
    Counters { counters: named(&counted), drops: named(&drops), rules: named(&[("deny 10.0.0.0/8", at_s)]) }
}

fn half(limit: u32, in_flight: u32, limited_by: &str, at_s: u64) -> Half {
    let limited_us = [("application", 400_000), (limited_by, 100_000 * at_s)];
    Half {
        limit,
        limit_max: 4 << 20,
        window: limit / 2,
        in_flight,
        held: in_flight / 4,
        limited_by: limited_by.into(),
        limited_us: limited_us.into_iter().map(|(by, us)| (by.to_owned(), us)).collect(),
        grows: 5,
        shrinks: 1,
    }
}

/// One of its flows: number, peer, bytes per second from and to the guest.
pub(in crate::top) fn flow(index: u32, remote: &str, from: u64, to: u64, at_s: u64) -> Flow {
    let id = FlowRef { worker: 0, index, generation: 0 };
    let traffic = |rate: u64| Traffic { bytes: rate * at_s, packets: rate * at_s / 1400 };
    let index = u64::from(index);
    Flow {
        id,
        protocol: Protocol::Tcp,
        direction: FlowDirection::Outbound,
        carrier: brodo_control::flow::Carrier::Stack,
        guest: format!("10.0.2.15:{}", 40_000 + index).parse().expect("an address"),
        remote: remote.parse().expect("an address"),
        name: None,
        state: "established".into(),
        age_us: (60 + index + at_s) * 1_000_000,
        idle_us: 1500 * index,
        from_guest: traffic(from),
        to_guest: traffic(to),
        rtt_us: Some(20 + 300 * index),
        time: None,
        remote_rtt_us: Some(12_000),
        tcp: Some(Tcp {
            mss: 65_160,
            retransmissions: (index * at_s) as u32 / 4,
            from_guest: half(64 << 10, 0, "host-socket", at_s),
            to_guest: half(
                562 << 10,
                300 << 10,
                ["our-limit", "guest-window", "loss"][index as usize % 3],
                at_s,
            ),
        }),
    }
}

/// All of its flows.
pub(in crate::top) fn flows(at_s: u64) -> Vec<Flow> {
    let mut download = flow(0, "93.184.216.34:443", 3_000, 15_400_000, at_s);
    download.name = Some("example.org".into());
    let mut web = flow(4, "[2606:4700:10::6814:179a]:443", 900, 40_000, at_s);
    // A varying rate, for the sparkline.
    web.to_guest.bytes = (0..at_s).map(|second| 20_000 * (1 + second % 5)).sum();
    web.name = Some("a-very-long-name.that-does-not-fit.example.com".into());
    let mut dns = flow(5, "10.0.2.3:53", 0, 0, at_s);
    (dns.protocol, dns.state, dns.tcp, dns.rtt_us) = (Protocol::Udp, "active".into(), None, None);
    (dns.from_guest, dns.to_guest) = (Traffic { bytes: 120, packets: 3 }, Traffic { bytes: 900, packets: 3 });
    let mut inbound = flow(6, "192.0.2.77:51234", 250_000, 8_000, at_s);
    inbound.direction = FlowDirection::Inbound;
    let mut ping = flow(7, "[2001:db8:1234:5678:9abc:def0:1234:5678]:7", 64, 64, at_s);
    (ping.protocol, ping.state, ping.tcp, ping.rtt_us) = (Protocol::Echo, "active".into(), None, None);
    let upload = flow(2, "198.51.100.7:22", 1_200_000, 9_000, at_s);
    let idle = flow(3, "203.0.113.9:5432", 0, 0, at_s);
    vec![download, upload, idle, web, dns, inbound, ping]
}

pub(in crate::top) fn sample(at_s: u64) -> Sample {
    let at = Duration::from_secs(at_s);
    let (status, counters, flows) = (status(at_s), counters(at_s), flows(at_s));
    Sample { at, status, counters, flows, refusals: Vec::new(), detail: None }
}

/// The model after `seconds` seconds.
pub(in crate::top) fn after(seconds: u64) -> Model {
    let mut model = Model::default();
    (1..=seconds).for_each(|at_s| model.update(sample(at_s)));
    model
}

fn row(model: &Model, index: u32) -> &Row {
    &model.rows[&FlowRef { worker: 0, index, generation: 0 }]
}

#[test]
fn rates_are_differences_over_time() {
    let mut model = after(1);
    assert_eq!(model.totals, Totals::default());
    assert_eq!((row(&model, 0).rates, row(&model, 0).history.len()), (Rates::default(), 0));
    // Three seconds later.
    model.update(sample(4));
    let download = row(&model, 0);
    assert_eq!(download.rates, Rates { from_guest: 3_000.0, to_guest: 15_400_000.0 });
    assert_eq!(download.history, [15_403_000]);
    assert!(download.is_to_guest() && !row(&model, 2).is_to_guest());
    let totals = model.totals;
    assert_eq!(totals.link, Rates { from_guest: 1e6, to_guest: 20e6 });
    assert!((totals.cpu - 0.123).abs() < 1e-9, "{totals:?}");
    assert!((totals.retransmissions - 3.0).abs() < 1e-9 && (totals.drops - 2.0).abs() < 1e-9, "{totals:?}");
    // Two samples at one time: no division by zero.
    model.update(sample(4));
    assert_eq!(model.totals, Totals::default());
}

#[test]
fn a_flow_that_is_new_has_moved_all_its_bytes_since() {
    let mut model = after(1);
    let mut next = sample(2);
    let mut fresh = flow(99, "192.0.2.1:80", 0, 0, 2);
    fresh.to_guest.bytes = 5000;
    next.flows.push(fresh);
    model.update(next);
    assert_eq!(row(&model, 99).rates, Rates { from_guest: 0.0, to_guest: 5000.0 });
    // The flow ends, and its slot is reused by another flow.
    model.update(sample(3));
    assert!(!model.rows.contains_key(&FlowRef { worker: 0, index: 99, generation: 0 }));
    // Totals below the earlier ones belong to another flow.
    model.update(sample(2));
    assert_eq!(row(&model, 0).rates, Rates::default());
}

#[test]
fn history_is_bounded() {
    let model = after(HISTORY as u64 + 30);
    assert_eq!(row(&model, 4).history.len(), HISTORY);
}

#[test]
fn rows_are_sorted_and_filtered() {
    let model = after(5);
    let order = |sort, reversed, filter: &str| -> Vec<u32> {
        model.rows(sort, reversed, filter).iter().map(|row| row.flow.id.index).collect()
    };
    assert_eq!(order(Sort::Rate, false, ""), [0, 2, 6, 4, 7, 3, 5]);
    assert_eq!(order(Sort::Rate, true, ""), [5, 3, 7, 4, 6, 2, 0]);
    assert_eq!(order(Sort::Retransmissions, false, "")[..2], [6, 4]);
    assert_eq!(order(Sort::Rtt, false, "")[..2], [6, 4]);
    assert_eq!(order(Sort::Age, false, "")[0], 0);
    assert_eq!(order(Sort::Bytes, false, "")[0], 0);
    assert_eq!(order(Sort::Peer, false, "")[..2], [5, 6]);
    for (filter, expected) in [
        ("EXAMPLE.org", &[0][..]),
        ("udp", &[5]),
        ("inbound", &[6]),
        (":40002", &[2]),
        ("loss", &[]),
        ("host-socket", &[2, 6]),
        ("198.51.100", &[2]),
        ("no such", &[]),
    ] {
        assert_eq!(order(Sort::Rate, false, filter), expected, "{filter}");
    }
}

#[test]
fn drops_and_rules_are_ordered_by_count() {
    let model = after(5);
    let expected = [("OutOfWindow", 12), ("LinkFull", 10), ("deny 10.0.0.0/8", 5), ("NoConnection", 1)];
    assert_eq!(model.drops(), expected);
}

#[test]
fn another_instance_begins_anew() {
    let mut model = after(5);
    model.lost = Some("brodo 4711 has ended".into());
    model.look_at(Some(FlowRef { worker: 0, index: 0, generation: 0 }));
    let mut other = sample(6);
    other.status.pid = 4712;
    model.update(other);
    assert_eq!((model.totals, row(&model, 0).rates), (Totals::default(), Rates::default()));
    assert!(model.lost.is_none() && model.detail.is_none());
}

#[test]
fn details_are_kept_when_their_flow_has_ended() {
    let mut model = after(2);
    let id = FlowRef { worker: 0, index: 0, generation: 0 };
    model.look_at(Some(id));
    let step = TuningStep {
        ago_us: 500_000,
        from_guest: false,
        from: 65_536,
        to: 158_080,
        cause: "hit".into(),
        per_rtt: 79_040,
        rtt_us: 20,
    };
    let mut next = sample(3);
    next.detail = Some(FlowDetail { flow: next.flows[0].clone(), history: vec![step.clone()] });
    model.update(next);
    let detail = model.detail.as_ref().expect("looked at");
    assert_eq!(detail.steps, [(Duration::from_millis(2500), step)]);
    assert_eq!((detail.points.len(), detail.ended), (1, false));
    let mut last = sample(4);
    last.flows.remove(0);
    model.update(last);
    let detail = model.detail.as_ref().expect("looked at");
    assert!(detail.ended && detail.row.is_some() && detail.points.len() == 1 && detail.steps.len() == 1);
}

#[test]
fn points_are_bounded() {
    let mut model = after(1);
    model.look_at(Some(FlowRef { worker: 0, index: 0, generation: 0 }));
    (2..POINTS_MAX as u64 + 100).for_each(|at_s| model.update(sample(at_s)));
    assert_eq!(model.detail.expect("looked at").points.len(), POINTS_MAX);
}
