//! Promptness of a destination: its conditions, its end, and its scope.

use super::{NEED_MAX, NEED_MIN, PromptPeers, Promptness};
use crate::flow::Endpoint;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

fn prompt(habit: &mut Promptness, times: u32) {
    for _ in 0..times {
        habit.record_prompt();
    }
}

#[test]
fn a_habit_takes_a_few_prompt_answers_in_a_row() {
    let mut habit = Promptness::NONE;
    prompt(&mut habit, u32::from(NEED_MIN) - 1);
    habit.record_late();
    prompt(&mut habit, u32::from(NEED_MIN) - 1);
    assert!(!habit.is_prompt());
    habit.record_prompt();
    assert!(habit.is_prompt());
    prompt(&mut habit, 1000);
    assert!(habit.is_prompt());
}

#[test]
fn each_harm_doubles_what_it_takes() {
    let mut habit = Promptness::NONE;
    for expected in [4, 8, 16, 32, 64, 128, 128] {
        let mut answers = 0;
        while !habit.is_prompt() {
            habit.record_prompt();
            answers += 1;
        }
        assert_eq!(answers, expected);
        habit.record_harm();
    }
    assert_eq!(habit.need, NEED_MAX);
}

#[test]
fn a_long_time_without_disappointment_is_rewarded() {
    let mut habit = Promptness::NONE;
    (0..10).for_each(|_| habit.record_harm());
    prompt(&mut habit, 255);
    habit.record_late();
    prompt(&mut habit, u32::from(NEED_MIN));
    assert!(habit.is_prompt());
}

#[test]
fn each_destination_has_its_own() {
    let mut habits = PromptPeers::default();
    let v4 = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    let v6 = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1));
    let all = [(v4, 80), (v4, 81), (v6, 80), (v6, 81)].map(|(ip, port)| Endpoint::new(ip, port));
    for (place, remote) in all.iter().enumerate() {
        assert_eq!(habits.of(remote), Promptness::NONE);
        let mut habit = Promptness::NONE;
        prompt(&mut habit, 10 + place as u32);
        habits.keep(remote, habit);
    }
    for (place, remote) in all.iter().enumerate() {
        assert_eq!(usize::from(habits.of(remote).streak), 10 + place);
    }
}

/// The ports of one server are many places, and so are the servers of one port.
#[test]
fn destinations_that_are_alike_do_not_meet() {
    for alike in [
        (0..64).map(|i| Endpoint::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 8000 + i)).collect::<Vec<_>>(),
        (0..64).map(|i| Endpoint::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, i)), 443)).collect(),
    ] {
        let mut habits = PromptPeers::default();
        for remote in &alike {
            let mut habit = Promptness::NONE;
            habit.record_prompt();
            habits.keep(remote, habit);
        }
        let kept = alike.iter().filter(|remote| habits.of(remote) != Promptness::NONE).count();
        assert!(kept >= 52, "{kept} of 64");
    }
}
