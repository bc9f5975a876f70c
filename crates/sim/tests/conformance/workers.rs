//! Workers that share a memory budget, and flows parked for it: they resume at once when any worker frees
//! memory. Workers that share flows: a frame that comes to another worker than its flow's goes to that one.

use brodo_core::config::Config;
use brodo_core::flow::owners::FlowOwners;
use brodo_core::link::RxFrame;
use brodo_core::memory::budget::Budget;
use brodo_core::policy::Deny;
use brodo_core::stack::{Keys, Settings, Stack};
use brodo_sim::fragments::cut;
use brodo_sim::handover::Snapshot;
use brodo_sim::script::{Script, Setup};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// A worker of that number.
fn worker(setup: &Setup, budget: &Arc<Budget>, number: u32) -> Script {
    let mut t = Script::new(setup.clone());
    let keys = Keys { table: [number as u8; 16], isn: [7; 16], dns: [3; 16] };
    t.driver.handovers.switch_off();
    t.driver.stack = Stack::sharing(setup.config.clone(), keys, setup.caps, budget.clone(), number);
    t
}

fn establish_and_hoard(t: &mut Script) {
    t.establish();
    t.hoard();
}

#[test]
fn a_read_waits_for_memory_of_another_worker() {
    let setup = Setup { config: Config { mtu: 9000, ..Config::default() }, ..Setup::default() };
    let budget = Arc::new(Budget::new(70_000));
    let mut holds = worker(&setup, &budget, 0);
    let mut waits = worker(&setup, &budget, 5);
    establish_and_hoard(&mut holds);
    assert_eq!(holds.driver.stack.take_wakes(), 0);
    waits.establish();
    waits.host_sends(100);
    waits.expect_nothing();
    // Time alone changes nothing.
    waits.advance_ms(5000);
    waits.expect_nothing();
    holds.host_accepts_all();
    assert_eq!(holds.driver.stack.take_wakes(), 1 << 5, "the other one is to turn");
    assert_eq!(holds.driver.stack.take_wakes(), 0, "once");
    waits.rung();
    waits.expect("ACK|PSH seq=1 data=100");
    assert_eq!(waits.driver.stack.take_wakes(), 0, "it needs no telling what it has itself given back");
}

/// Both workers are handed over, into a new budget: the flow is parked there as before, and the memory that
/// the other holds is taken there.
#[test]
fn a_read_waits_for_memory_after_a_hand_over() {
    let setup = Setup { config: Config { mtu: 9000, ..Config::default() }, ..Setup::default() };
    let budget = Arc::new(Budget::new(70_000));
    let mut holds = worker(&setup, &budget, 0);
    let mut waits = worker(&setup, &budget, 5);
    establish_and_hoard(&mut holds);
    waits.establish();
    waits.host_sends(100);
    waits.expect_nothing();
    let new = Arc::new(Budget::new(70_000));
    for (t, number) in [(&mut holds, 0), (&mut waits, 5)] {
        let (config, caps) = (setup.config.clone(), setup.caps);
        let settings = Settings {
            config,
            caps,
            budget: new.clone(),
            worker: number,
            host_addresses: Arc::default(),
            payload: None,
            room: None,
        };
        let driver = &mut t.driver;
        driver.stack =
            Snapshot::of(&driver.stack, driver.now()).restore(settings, driver.now(), &driver.host);
    }
    assert_eq!((new.used(), new.reserved()), (budget.used(), budget.reserved()));
    waits.poll();
    waits.expect_nothing();
    holds.host_accepts_all();
    assert_eq!(holds.driver.stack.take_wakes(), 1 << 5, "the other one is to turn");
    waits.rung();
    waits.expect("ACK|PSH seq=1 data=100");
}

#[test]
fn a_window_waits_for_memory_of_another_worker() {
    let budget = Arc::new(Budget::new(256 << 10));
    let setup = Setup::default();
    let mut holds = worker(&setup, &budget, 3);
    let mut waits = worker(&setup, &budget, 4);
    waits.establish();
    // Windows get half of the budget, and a minimum for each connection.
    let flows = holds.connections(100, establish_and_hoard);
    assert_eq!(holds.driver.stack.memory_used(), waits.driver.stack.memory_used());
    // It may send the whole reserved window, and no more.
    waits.guest_fills_window();
    waits.host_received_some();
    waits.advance_ms(5000);
    waits.expect_nothing();
    holds.select(flows[0]);
    holds.host_accepts_all();
    assert_eq!(holds.driver.stack.take_wakes(), 1 << 4);
    waits.rung();
    waits.expect("ACK win>=1460");
}

#[test]
fn reads_that_wait_go_on_in_the_turn_that_gives_memory_back() {
    let mut setup = Setup::default();
    setup.config.memory = 256 << 10;
    Script::each_with(&setup, |t| {
        let hoards = t.connections(50, establish_and_hoard);
        for port in 0..20 {
            t.connection(42_000 + port, 80);
            t.establish();
            t.host_sends(100);
        }
        t.expect_nothing();
        // Each needs 64 KiB to read into and keeps 2 KiB: as many go on as there is room for, one after the
        // other.
        let mut seen = Vec::new();
        for &flow in &hoards {
            t.select(flow);
            t.host_accepts_all();
            let now = t.take_all().iter().filter(|line| line.to_string().contains("data=100")).count();
            seen.push(now);
        }
        assert!(seen[0] > 0 && seen.iter().sum::<usize>() == 20, "{seen:?}");
    });
}

/// Two workers that share flows.
fn sharing(setup: &Setup) -> ([Script; 2], Arc<FlowOwners>) {
    let budget = Arc::new(Budget::new(1 << 20));
    let owners = Arc::new(FlowOwners::new([5; 16]));
    let workers = [0, 1].map(|number| {
        let mut t = worker(setup, &budget, number);
        t.driver.stack.share_flows(owners.clone());
        t
    });
    (workers, owners)
}

/// The worker that a frame goes to which `by` gets: itself, or the other one.
fn steered(workers: &mut [Script; 2], by: usize, frame: &[u8]) -> usize {
    workers[by].driver.stack.steer(&RxFrame::whole(frame), |_| false).map_or(by, |other| other as usize)
}

#[test]
fn frames_of_a_connection_go_to_the_worker_that_has_opened_it() {
    Script::each_with(&Setup::default(), |t| {
        let (mut workers, owners) = sharing(t.setup());
        let syn = t.frame("SYN seq=0 win=65535 mss=1460 wscale=7 sackok");
        assert_eq!(steered(&mut workers, 1, &syn), 1, "it claims the flow");
        assert_eq!(steered(&mut workers, 0, &syn), 1, "sent again by another queue");
        workers[1].establish();
        let segment = workers[1].frame("ACK data=10");
        for by in [0, 1] {
            assert_eq!(steered(&mut workers, by, &segment), 1);
        }
        workers[1].guest("RST|ACK seq=1");
        assert_eq!(owners.claims(), 0, "it has ended");
        assert_eq!(steered(&mut workers, 0, &segment), 0, "answered with a reset, by whichever gets it");
        assert_eq!(steered(&mut workers, 0, &syn), 0, "and opened by whichever gets it");
    });
}

#[test]
fn a_claim_of_which_no_flow_comes_is_given_up() {
    let deny = |address| Deny::new(address, 0, None).expect("a rule");
    let mut setup = Setup::default();
    setup.config.rules.deny = vec![deny(Ipv4Addr::UNSPECIFIED.into()), deny(Ipv6Addr::UNSPECIFIED.into())];
    Script::each_with(&setup, |t| {
        let (mut workers, owners) = sharing(t.setup());
        let syn = t.frame("SYN seq=0 win=65535 mss=1460 wscale=7 sackok");
        assert_eq!(steered(&mut workers, 1, &syn), 1);
        assert_eq!(owners.claims(), 1);
        workers[1].guest_raw(&syn);
        assert_eq!(owners.claims(), 0, "a rule has refused it");
    });
}

#[test]
fn flows_of_a_restored_stack_are_claimed() {
    let setup = Setup::default();
    let (mut workers, _) = sharing(&setup);
    workers[1].establish();
    let segment = workers[1].frame("ACK data=10");
    let (config, caps) = (setup.config.clone(), setup.caps);
    let settings = Settings {
        config,
        caps,
        budget: Arc::new(Budget::new(1 << 20)),
        worker: 1,
        host_addresses: Arc::default(),
        payload: None,
        room: None,
    };
    let driver = &mut workers[1].driver;
    driver.stack = Snapshot::of(&driver.stack, driver.now()).restore(settings, driver.now(), &driver.host);
    let owners = Arc::new(FlowOwners::new([6; 16]));
    for t in &mut workers {
        t.driver.stack.share_flows(owners.clone());
    }
    assert_eq!(steered(&mut workers, 0, &segment), 1);
}

#[test]
fn answers_of_a_published_port_belong_to_the_first_worker() {
    let (mut workers, _) = sharing(&Setup::default());
    let datagram = workers[1].frame("UDP data=4");
    let published = |_: u16| true;
    assert_eq!(workers[1].driver.stack.steer(&RxFrame::whole(&datagram), published), Some(0));
    assert_eq!(workers[0].driver.stack.steer(&RxFrame::whole(&datagram), published), None);
    assert_eq!(
        workers[1].driver.stack.steer(&RxFrame::whole(&datagram), |_| false),
        None,
        "a port of its own"
    );
}

/// The first worker puts fragments together, whichever queues they came by; the datagram is its flow's.
#[test]
fn a_datagram_in_fragments_goes_to_the_worker_of_its_flow() {
    Script::each_with(&Setup::default(), |t| {
        let (mut workers, _) = sharing(t.setup());
        workers[1].connection(5000, 4433);
        workers[1].guest("UDP data=4");
        workers[1].host_got_datagram(4);
        let whole = workers[1].frame("UDP data=4000");
        for (number, fragment) in cut(&whole, 1448, 1).iter().enumerate() {
            assert_eq!(steered(&mut workers, number % 2, fragment), 0);
            workers[0].guest_raw(fragment);
        }
        let passed = workers[0].driver.stack.take_passed();
        let [(1, frame)] = passed.as_slice() else { panic!("{} frames", passed.len()) };
        workers[1].guest_raw(frame);
        workers[1].host_got_datagram(4000);
        let flows = workers.each_ref().map(|t| t.driver.stack.flows());
        assert_eq!(flows, [0, 1]);
    });
}

/// The answer to a request for the guest's MAC address may come to another worker than the one that asks.
#[test]
fn the_guest_s_mac_address_is_known_to_all_once_one_has_learned_it() {
    Script::each_with(&Setup::default(), |t| {
        let (mut workers, _) = sharing(t.setup());
        workers[0].connection(8080, 50_123);
        workers[0].peer_connects().unwrap();
        workers[0].take_all();
        workers[1].establish();
        workers[0].connection(8080, 50_124);
        workers[0].peer_connects().unwrap();
        workers[0].expect("SYN seq=0");
    });
}
