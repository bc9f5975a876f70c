//! Carried flows, whose payload a splice or a relay moves: admission, shares, eviction, time-outs and records
//! are those of the one flow table.

use brodo_core::carried::{CarriedProgress, Released};
use brodo_core::config::Config;
use brodo_core::counters::DropReason;
use brodo_core::flow::end::EndCause;
use brodo_core::flow::info::{Carrier, FlowState, Initiator, Opening, Traffic};
use brodo_core::flow::state::State;
use brodo_core::flow::{Endpoint, FlowId, FlowKey, Protocol};
use brodo_core::host::HostError;
use brodo_core::link::LinkCaps;
use brodo_core::policy::Deny;
use brodo_core::port_range::PortRange;
use brodo_core::time::{Duration, Instant};
use brodo_sim::driver::SimDriver;
use brodo_sim::script::Script;
use std::net::IpAddr;

const LOOPBACK: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

fn driver(config: Config) -> SimDriver {
    let mut driver = SimDriver::new(config, LinkCaps::default(), 1);
    driver.stack.record_openings(true);
    driver.stack.record_ends(true);
    driver
}

/// A flow between loopbacks; each `port` is another one.
fn between(carrier: Carrier, initiator: Initiator, port: u16) -> Opening {
    let protocol = if carrier == Carrier::Splice { Protocol::Tcp } else { Protocol::Udp };
    let (one, other) = (Endpoint::new(LOOPBACK, port), Endpoint::new(LOOPBACK, 80));
    let (guest, remote) = if initiator == Initiator::Guest { (one, other) } else { (other, one) };
    Opening { key: FlowKey { protocol, guest, remote }, initiator, carrier }
}

fn open(driver: &mut SimDriver, now: Instant, opening: Opening) -> Result<FlowId, DropReason> {
    let mut result = Err(DropReason::Refused);
    let number = u32::from(opening.key.guest.port());
    driver.turn_with(now, |stack, io| result = stack.open_carried(io, opening, |_| Ok(number)));
    result
}

fn connected(driver: &mut SimDriver, now: Instant, id: FlowId) {
    let progress = CarriedProgress { connected: true, ..CarriedProgress::default() };
    driver.turn_with(now, |stack, io| stack.carried_progress(io, id, &progress));
}

fn traffic(bytes: u64, packets: u64) -> Traffic {
    Traffic { bytes, packets }
}

#[test]
fn a_splice_is_recorded_with_its_traffic_seen_from_the_guest() {
    for (initiator, out, into) in [(Initiator::Guest, 1000, 7), (Initiator::Peer, 7, 1000)] {
        let mut driver = driver(Config::default());
        let at = Instant::from_ms;
        let opening = between(Carrier::Splice, initiator, 5000);
        let id = open(&mut driver, at(10), opening).expect("admitted");
        let [opened] = driver.stack.take_openings()[..] else { panic!("one opening") };
        assert_eq!((opened.flow, opened.carrier, opened.key), (id, Carrier::Splice, opening.key));
        assert_eq!(opened.state, FlowState::Tcp(State::SynSent));
        connected(&mut driver, at(15), id);
        let (from_initiator, from_responder) = (traffic(1000, 0), traffic(7, 0));
        let progress = CarriedProgress { from_initiator, from_responder, ..CarriedProgress::default() };
        driver.turn_with(at(20), |stack, io| stack.carried_progress(io, id, &progress));
        let info = driver.stack.flow_detail(id, at(50)).expect("open").info;
        assert_eq!((info.from_guest.bytes, info.to_guest.bytes), (out, into));
        assert_eq!(info.state, FlowState::Tcp(State::Established));
        assert_eq!((info.age, info.idle), (Duration::from_millis(40), Duration::from_millis(30)));
        assert_eq!(info.connect, Some(Duration::from_millis(5)));
        driver.turn_with(at(60), |stack, io| stack.close_carried(io, id, EndCause::ResetByHost));
        let ends = driver.stack.take_ends();
        let [end] = &ends[..] else { panic!("one end") };
        assert_eq!((end.opened, end.cause, end.info.from_guest.bytes), (true, EndCause::ResetByHost, out));
        assert_eq!((driver.stack.flows(), driver.stack.has_released()), (0, false));
        let counters = driver.stack.counters();
        assert_eq!((counters.splice_opened, counters.splice_bytes, counters.carried_closed), (1, 1007, 1));
    }
}

#[test]
fn a_half_closed_splice_has_the_state_of_its_guests_connection() {
    for (initiator, first, second) in [
        (Initiator::Guest, State::CloseWait, State::FinWait2),
        (Initiator::Peer, State::FinWait2, State::CloseWait),
    ] {
        for (initiator_finished, state) in [(true, first), (false, second)] {
            let mut driver = driver(Config::default());
            let id =
                open(&mut driver, Instant::ZERO, between(Carrier::Splice, initiator, 5000)).expect("room");
            connected(&mut driver, Instant::ZERO, id);
            let responder_finished = !initiator_finished;
            let fin =
                CarriedProgress { initiator_finished, responder_finished, ..CarriedProgress::default() };
            let bytes = CarriedProgress { from_responder: traffic(7, 0), ..CarriedProgress::default() };
            for progress in [fin, bytes] {
                driver.turn_with(Instant::ZERO, |stack, io| stack.carried_progress(io, id, &progress));
                let info = driver.stack.flow_detail(id, Instant::ZERO).expect("open").info;
                assert_eq!(info.state, FlowState::Tcp(state), "{initiator:?}");
            }
        }
    }
}

#[test]
fn no_frame_leads_to_a_carried_flow_of_the_same_key() {
    Script::each(|t| {
        t.connection(5000, 80);
        t.establish();
        let now = t.driver.now();
        let key = t.driver.stack.flow_details(0, now).next().expect("open").info.key;
        let twin = Opening { key, initiator: Initiator::Guest, carrier: Carrier::Splice };
        let twins =
            [(); 2].map(|()| open(&mut t.driver, now, twin).expect("keys of carried flows may repeat"));
        t.guest("ACK|PSH data=100");
        assert_eq!(t.driver.stack.flows(), 3);
        for id in twins {
            let info = t.driver.stack.flow_detail(id, now).expect("open").info;
            assert_eq!((info.carrier, info.from_guest.bytes), (Carrier::Splice, 0));
            t.driver.turn_with(now, |stack, io| stack.close_carried(io, id, EndCause::Finished));
        }
        t.guest("ACK|PSH data=100");
        let info = t.driver.stack.flow_details(0, now).next().expect("open").info;
        assert_eq!((info.carrier, info.from_guest.bytes), (Carrier::Stack, 200));
    });
}

#[test]
fn a_forward_goes_around_the_floor_and_not_around_a_deny_rule() {
    let opening = |initiator| between(Carrier::Splice, initiator, 5000);
    let mut allowed = driver(Config::default());
    assert!(open(&mut allowed, Instant::ZERO, opening(Initiator::Guest)).is_ok());

    let mut config = Config::default();
    config.rules.deny = vec![Deny::new(LOOPBACK, 8, Some(PortRange::one(80))).expect("a rule")];
    let mut denying = driver(config);
    let result = open(&mut denying, Instant::ZERO, opening(Initiator::Guest));
    assert_eq!(result, Err(DropReason::Denied));
    let ends = denying.stack.take_ends();
    let [end] = &ends[..] else { panic!("one end") };
    assert_eq!((end.opened, end.cause, end.info.carrier), (false, EndCause::Denied, Carrier::Splice));
    assert_eq!(end.rule.as_deref(), Some("deny 127.0.0.0/8:80"));
    // An accepted connection is exempt from the rules, as at every published port.
    assert!(open(&mut denying, Instant::ZERO, opening(Initiator::Peer)).is_ok());
}

#[test]
fn limits_of_the_guest_count_its_carried_flows() {
    let mut config = Config::default();
    config.rules.flows_per_destination = Some(2);
    let mut driver = driver(config);
    let mut begin = |port| open(&mut driver, Instant::ZERO, between(Carrier::Relay, Initiator::Guest, port));
    let first = begin(1).expect("one");
    begin(2).expect("two");
    assert_eq!(begin(3), Err(DropReason::FlowsPerDestination));
    driver.turn_with(Instant::ZERO, |stack, io| stack.close_carried(io, first, EndCause::Finished));
    open(&mut driver, Instant::ZERO, between(Carrier::Relay, Initiator::Guest, 3)).expect("room again");
}

#[test]
fn a_full_table_evicts_what_is_not_in_use_and_releases_it() {
    let mut driver = driver(Config { max_flows: 2, ..Config::default() });
    let at = Instant::from_ms;
    let used = open(&mut driver, at(0), between(Carrier::Splice, Initiator::Guest, 1)).expect("room");
    connected(&mut driver, at(1), used);
    let unanswered = open(&mut driver, at(2), between(Carrier::Relay, Initiator::Guest, 2)).expect("room");
    let third = open(&mut driver, at(3), between(Carrier::Splice, Initiator::Guest, 3)).expect("by eviction");
    let released = [Released { flow: unanswered, carrier: Carrier::Relay, number: 2 }];
    assert_eq!(driver.stack.take_released(), released);
    connected(&mut driver, at(4), third);
    // Connections in use stay, as those of the stack do, for five minutes of silence.
    let fourth = between(Carrier::Splice, Initiator::Guest, 4);
    assert_eq!(open(&mut driver, at(5), fourth), Err(DropReason::FlowTableFull));
    assert!(open(&mut driver, at(300_002), fourth).is_ok());
    let released = [Released { flow: used, carrier: Carrier::Splice, number: 1 }];
    assert_eq!(driver.stack.take_released(), released);
    let causes: Vec<_> = driver.stack.take_ends().iter().map(|end| end.cause).collect();
    assert_eq!(causes, [EndCause::Evicted, EndCause::NoResources, EndCause::Evicted]);
    assert_eq!(driver.stack.counters().flows_evicted, 2);
}

#[test]
fn inbound_shares_hold_and_the_hosts_loopback_is_no_single_peer() {
    let mut driver = driver(Config { max_flows: 16, ..Config::default() });
    let from = |ip: [u8; 4], port| {
        let loopback = between(Carrier::Splice, Initiator::Peer, port);
        Opening { key: FlowKey { remote: Endpoint::new(ip.into(), port), ..loopback.key }, ..loopback }
    };
    for port in 0..2 {
        let id = open(&mut driver, Instant::ZERO, from([192, 0, 2, 1], port)).expect("its part");
        connected(&mut driver, Instant::ZERO, id);
    }
    let beyond = open(&mut driver, Instant::ZERO, from([192, 0, 2, 1], 9));
    assert_eq!(beyond, Err(DropReason::FlowsPerPeer));
    for port in 0..10 {
        let id = open(&mut driver, Instant::ZERO, from([127, 0, 0, 1], port)).expect("the inbound share");
        connected(&mut driver, Instant::ZERO, id);
    }
    let beyond = open(&mut driver, Instant::ZERO, from([127, 0, 0, 1], 99));
    assert_eq!((beyond, driver.stack.flows()), (Err(DropReason::InboundFlows), 12));
}

#[test]
fn a_silent_relay_times_out_and_is_released() {
    for (answered, seconds, cause) in [(false, 30, EndCause::TimedOut), (true, 180, EndCause::Finished)] {
        let mut driver = driver(Config::default());
        let opening = between(Carrier::Relay, Initiator::Guest, 5000);
        let id = open(&mut driver, Instant::ZERO, opening).expect("admitted");
        let packets = u64::from(answered);
        let progress = CarriedProgress {
            from_initiator: traffic(10, 1),
            from_responder: traffic(10 * packets, packets),
            ..CarriedProgress::default()
        };
        driver.turn_with(Instant::ZERO, |stack, io| stack.carried_progress(io, id, &progress));
        driver.turn(Instant::from_ms(seconds * 1000 - 1000), &[]);
        assert_eq!(driver.stack.flows(), 1);
        driver.turn(Instant::from_ms(seconds * 1000 + 1000), &[]);
        assert_eq!((driver.stack.flows(), driver.stack.take_released().len()), (0, 1));
        assert_eq!(driver.stack.take_ends()[0].cause, cause);
    }
}

#[test]
fn a_carrier_that_cannot_open_leaves_no_flow() {
    let mut driver = driver(Config::default());
    let opening = between(Carrier::Splice, Initiator::Guest, 5000);
    let mut results = Vec::new();
    driver.turn_with(Instant::ZERO, |stack, io| {
        for error in [HostError::Refused, HostError::Exhausted] {
            results.push(stack.open_carried(io, opening, |_| Err(error)));
        }
    });
    assert_eq!(results, [Err(DropReason::Refused), Err(DropReason::HostExhausted)]);
    let causes: Vec<_> = driver.stack.take_ends().iter().map(|end| (end.opened, end.cause)).collect();
    assert_eq!(causes, [(false, EndCause::Refused), (false, EndCause::NoResources)]);
    assert_eq!((driver.stack.flows(), driver.stack.has_released()), (0, false));
}
