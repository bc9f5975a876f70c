//! Promptness of a destination: its conditions, its end, and its scope.

use super::{NEED_MAX, NEED_MIN, PromptPeers, Promptness};
use crate::flow::Endpoint;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

fn prompt(record: &mut Promptness, times: u32) {
    for _ in 0..times {
        record.record_prompt();
    }
}

#[test]
fn a_record_takes_a_few_prompt_answers_in_a_row() {
    let mut record = Promptness::NONE;
    prompt(&mut record, u32::from(NEED_MIN) - 1);
    record.record_late();
    prompt(&mut record, u32::from(NEED_MIN) - 1);
    assert!(!record.is_prompt());
    record.record_prompt();
    assert!(record.is_prompt());
    prompt(&mut record, 1000);
    assert!(record.is_prompt());
}

#[test]
fn each_harm_doubles_what_it_takes() {
    let mut record = Promptness::NONE;
    for expected in [4, 8, 16, 32, 64, 128, 128] {
        let mut answers = 0;
        while !record.is_prompt() {
            record.record_prompt();
            answers += 1;
        }
        assert_eq!(answers, expected);
        record.record_harm();
    }
    assert_eq!(record.need, NEED_MAX);
}

#[test]
fn a_long_time_without_disappointment_is_rewarded() {
    let mut record = Promptness::NONE;
    (0..10).for_each(|_| record.record_harm());
    prompt(&mut record, 255);
    record.record_late();
    prompt(&mut record, u32::from(NEED_MIN));
    assert!(record.is_prompt());
}

#[test]
fn each_destination_has_its_own() {
    let mut peers = PromptPeers::default();
    let v4 = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    let v6 = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1));
    let all = [(v4, 80), (v4, 81), (v6, 80), (v6, 81)].map(|(ip, port)| Endpoint::new(ip, port));
    for (place, remote) in all.iter().enumerate() {
        assert_eq!(peers.of(remote), Promptness::NONE);
        let mut record = Promptness::NONE;
        prompt(&mut record, 10 + place as u32);
        peers.keep(remote, record);
    }
    for (place, remote) in all.iter().enumerate() {
        assert_eq!(usize::from(peers.of(remote).streak), 10 + place);
    }
}

/// The ports of one server are many places, and so are the servers of one port.
#[test]
fn destinations_that_are_alike_do_not_meet() {
    for alike in [
        (0..64).map(|i| Endpoint::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 8000 + i)).collect::<Vec<_>>(),
        (0..64).map(|i| Endpoint::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, i)), 443)).collect(),
    ] {
        let mut peers = PromptPeers::default();
        for remote in &alike {
            let mut record = Promptness::NONE;
            record.record_prompt();
            peers.keep(remote, record);
        }
        let kept = alike.iter().filter(|remote| peers.of(remote) != Promptness::NONE).count();
        assert!(kept >= 52, "{kept} of 64");
    }
}
