//! Crashes: at every point of a world the stack is gone, and another one goes on with the records of its
//! journal and the chunks of its payload memory. Each stream is delivered to its last byte.

use super::points;
use super::world::EAGER;
use brodo_core::config::Config;
use brodo_core::host::{Close, HostError};
use brodo_core::link::LinkCaps;
use brodo_core::promotion::Bulk;
use brodo_core::time::{Duration, Instant};
use brodo_core::wire::ethernet::MacAddr;
use brodo_sim::crashes::{Crashes, FLOWS_MAX};
use brodo_sim::driver::SimDriver;
use brodo_sim::link::GUEST_MAC;
use brodo_sim::net::{Delay, Path};
use brodo_sim::samples::script;
use brodo_sim::script::Script;
use brodo_sim::world::{Behind, Conversation, Ending, Pace, World};

fn config() -> Config {
    Config { mtu: 1500, max_flows: FLOWS_MAX, ..Config::default() }
}

fn wire() -> Path {
    Path::new(vec![Box::new(Delay(Duration::from_micros(50)))])
}

/// A world whose stack keeps a journal, and the conversation in it.
fn world(plan: &Conversation) -> World {
    world_with(config(), plan)
}

fn world_with(config: Config, plan: &Conversation) -> World {
    let caps = LinkCaps { checksum: true, tso: true, uso: true, packet_max: None };
    let mut world = World::new(config, caps, 1, wire(), wire());
    // A stack that takes over begins without a journal.
    world.driver.handovers.switch_off();
    let crashes = Crashes::new(&mut world.driver.stack, 7);
    world.driver.crashes = Some(crashes);
    world.add(plan.clone());
    world
}

/// An open connection to a stack with a journal.
fn journalled() -> Script {
    let mut t = script(config());
    t.driver.handovers.switch_off();
    t.driver.crashes = Some(Crashes::new(&mut t.driver.stack, 7));
    t.establish();
    t
}

/// A connection that was recovered from a crash: its guest has got 1000 bytes before and 1300 after it, the
/// same ones first, and has acknowledged none.
pub(crate) fn resumed() -> Script {
    let mut t = journalled();
    t.host_sends(1000);
    t.expect("ACK|PSH seq=1 ack=1 data=1000");
    t.driver.crashes.as_mut().expect("a journal").at(0);
    t.host_sends(300);
    t.expect("ACK|PSH seq=1 ack=1 data=1300");
    t
}

/// A world in which each connection gets a kernel socket as soon as it is quiet, and comes back, drawn from a
/// seed.
fn promoting(plan: &Conversation, seed: u64) -> World {
    let config = Config { bulk: Bulk::Kernel, bulk_bounds: EAGER, ..config() };
    let mut world = world_with(config, plan);
    let SimDriver { promotions, host, .. } = &mut world.driver;
    promotions.at_random(host, seed);
    world
}

/// Result of all worlds of a plan, each with one crash at another point.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    /// Worlds, one for each point.
    worlds: u64,
    /// Crashes in them.
    crashes: u64,
    /// Flows that were lost.
    lost: u64,
    /// Kernel sockets made.
    made: u64,
    /// Conversations delivered whole.
    whole: u64,
}

impl Outcome {
    /// Checks that every conversation was delivered to the last byte, and no flow was lost.
    fn assert_whole(&self, plan: &str) {
        assert!(self.worlds > 5 && self.whole == self.worlds && self.lost == 0, "{plan}: {self:?}");
    }
}

fn has_crashed(world: &World) -> bool {
    world.driver.crashes.as_ref().is_some_and(|all| all.done() > 0)
}

fn at_every_point(plan: &Conversation) -> Outcome {
    at_every_point_and_again(plan, None)
}

/// The same with a second crash, `again` points after the first.
fn at_every_point_and_again(plan: &Conversation, again: Option<u64>) -> Outcome {
    at_every_point_of(plan, again, || world(plan))
}

/// The same of any world of the plan.
fn at_every_point_of(plan: &Conversation, again: Option<u64>, make: impl Fn() -> World) -> Outcome {
    let with_crash = |point| {
        let mut world = make();
        if let Some(crashes) = &mut world.driver.crashes {
            crashes.at(point);
            if let Some(again) = again {
                crashes.again_after(again);
            }
        }
        world
    };
    let mut outcome = Outcome::default();
    for world in points::each(with_crash, has_crashed) {
        let crashes = world.driver.crashes.as_ref();
        outcome.worlds += 1;
        outcome.crashes += crashes.map_or(0, Crashes::done);
        outcome.made += world.driver.promotions.done().made;
        outcome.lost += crashes.map_or(0, Crashes::lost);
        outcome.whole += u64::from(world.delivered(0) == (plan.up, plan.down));
    }
    outcome
}

/// The ends of a connection, in each order, with a little data each way. A reset of either end may come
/// before the last bytes, as without a crash.
#[test]
fn every_ending_is_exact() {
    for ending in
        [Ending::Each, Ending::GuestFirst, Ending::HostFirst, Ending::GuestResets, Ending::HostResets]
    {
        for v6 in [false, true] {
            let outcome =
                at_every_point(&Conversation { up: 5000, down: 7000, ending, v6, ..Conversation::default() });
            if matches!(ending, Ending::GuestResets | Ending::HostResets) {
                assert!(outcome.crashes > 5, "{ending:?}: {outcome:?}");
            } else {
                outcome.assert_whole(&format!("{ending:?}"));
            }
        }
    }
}

/// A kernel socket may have the connection at any point, may be on its way to have it, or back. Its bytes
/// are in the kernel, and the next stack goes on with it.
#[test]
fn promoted_connections_go_on() {
    for (seed, ending) in (1..).zip([Ending::Each, Ending::GuestFirst, Ending::HostFirst]) {
        let pace = Pace::Bursts { bytes: 4000, every: Duration::from_millis(7) };
        let plan = Conversation { up: 24_000, down: 20_000, pace, ending, ..Conversation::default() };
        for again in [None, Some(3)] {
            let outcome = at_every_point_of(&plan, again, || promoting(&plan, seed));
            assert!(2 * outcome.made > outcome.worlds, "{ending:?}: {outcome:?}");
            outcome.assert_whole(&format!("{ending:?}, again after {again:?}"));
        }
    }
}

/// A guest that only waits sends nothing that would meet a reset. Each connection that it takes for open is
/// delivered or reset, also one whose record says that its handshake is not over. A handshake that is not
/// over for the guest either is its own time-out.
#[test]
fn a_guest_that_sends_nothing_hears_of_a_crash() {
    for v6 in [false, true] {
        let plan = Conversation { down: 7000, ending: Ending::HostFirst, v6, ..Conversation::default() };
        let mut whole = 0;
        for point in 0.. {
            let mut world = world(&plan);
            world.driver.crashes.as_mut().expect("a journal").at(point);
            world.run(Instant::from_ms(20_000));
            if !has_crashed(&world) {
                assert!(point > 10, "{point} crashes");
                break;
            }
            whole += u64::from(world.delivered(0).1 == plan.down);
        }
        assert!(whole > 5, "{whole} delivered");
    }
}

/// The guest may acknowledge what was sent before the crash and not again since: within a window that has
/// become smaller it is more than SND.NXT.
#[test]
fn an_acknowledgement_of_what_was_sent_before_the_crash_counts() {
    let mut t = journalled();
    t.host_sends(3000);
    t.expect("ACK seq=1 ack=1 data=1460");
    t.expect("ACK seq=1461 ack=1 data=1460");
    t.expect("ACK|PSH seq=2921 ack=1 data=80");
    t.guest_window(1408);
    t.guest("ACK ack=1");
    t.driver.crashes.as_mut().expect("a journal").at(0);
    t.guest("ACK ack=1 data=7");
    t.expect("ACK seq=1 ack=1 data=1408");
    t.expect_nothing();
    t.guest_window(60_000);
    t.guest("ACK ack=3001");
    t.host_sends(10);
    t.expect("ACK|PSH seq=3001 ack=1 data=10");
    t.guest("ACK ack=3011");
    t.expect_nothing();
    assert_eq!(t.driver.stack.memory_used(), 0);
}

/// After a crash it is not known what the guest expects: a reset by what it has acknowledged may be out of
/// date, and it drops that. The next one has its own number.
#[test]
fn a_reset_with_a_number_out_of_date_is_followed_by_another() {
    let mut t = resumed();
    t.host_breaks(HostError::Reset);
    t.expect("RST|ACK seq=1 ack=1");
    t.host_closed(Some(Close::Reset));
    t.advance_ms(1);
    t.expect("ACK seq=0 ack=1");
    t.guest("ACK ack=1001");
    t.expect("RST seq=1001");
    t.expect_nothing();
    t.advance_ms(600);
    t.expect("ACK seq=0 ack=1");
    t.guest("RST seq=1");
    t.expect_nothing();
    t.expect_all_gone();
}

/// A host that takes little at a time: bytes wait in the stack, whose chunks outlive it.
#[test]
fn bytes_that_wait_for_the_host_are_not_lost() {
    let behind = Behind::Buffer(3000);
    let plan = Conversation { up: 40_000, down: 20_000, behind, ..Conversation::default() };
    let outcome = at_every_point(&plan);
    outcome.assert_whole("a slow host");
}

/// Requests and answers.
#[test]
fn conversations_of_requests_go_on() {
    let pace = Pace::Requests { request: 100, response: 300, every: Duration::from_millis(5) };
    let plan = Conversation { up: 2000, down: 6000, pace, ..Conversation::default() };
    let outcome = at_every_point(&plan);
    outcome.assert_whole("requests");
}

/// A second crash soon after the first: the record that the recovered stack writes is as good as the first,
/// and its chunks too.
#[test]
fn a_crash_during_recovery_is_exact() {
    let behind = Behind::Buffer(3000);
    let slow = Conversation { up: 20_000, down: 20_000, behind, ..Conversation::default() };
    let both = Conversation { up: 20_000, down: 30_000, ..Conversation::default() };
    for plan in [slow, both] {
        for again in [0, 1, 2, 4, 7] {
            let outcome = at_every_point_and_again(&plan, Some(again));
            outcome.assert_whole(&format!("again after {again}"));
        }
    }
}

/// A virtual machine has a MAC address of its own, which is learned from its frames: after a crash the first
/// frame to a guest that waits in silence goes there, not to the address that brodo would have given it. So
/// everything takes as long as with a guest that has that one.
#[test]
fn a_guest_with_a_mac_of_its_own_hears_of_a_crash() {
    let plan = Conversation { up: 100, down: 200_000, ..Conversation::default() };
    let ended = |mac, point| {
        let mut world = world_with(Config { guest_mac: Some(MacAddr(mac)), ..config() }, &plan);
        world.driver.crashes.as_mut().expect("a journal").at(point);
        world.run(Instant::from_ms(400_000));
        has_crashed(&world).then(|| world.ended(0).expect("delivered or reset"))
    };
    for point in 0.. {
        let Some(expected) = ended(GUEST_MAC, point) else {
            assert!(point > 10, "{point} crashes");
            break;
        };
        assert_eq!(ended([2, 0, 0, 0, 9, 9], point), Some(expected), "point {point}");
    }
}

/// The link of a virtual machine is down after a crash, until its monitor connects again: a probe that was
/// refused is repeated soon, and each connection has gone on or was reset soon after.
#[test]
fn a_link_that_is_down_after_a_crash_delays_little() {
    let plan = Conversation { up: 100, down: 200_000, ..Conversation::default() };
    let start = |point| {
        let mut world = world(&plan);
        world.driver.crashes.as_mut().expect("a journal").at(point);
        world
    };
    // Far more steps than a conversation has; without credit there may be no more events.
    let crashed_at = |world: &mut World| {
        let steps = (0..10_000).take_while(|_| {
            world.advance();
            !has_crashed(world)
        });
        (steps.count() < 10_000).then(|| world.now())
    };
    let mut count = 0;
    for point in 0.. {
        let Some(at) = crashed_at(&mut start(point)) else { break };
        let mut world = start(point);
        world.run_until(Instant::ZERO + (at - Instant::ZERO).saturating_sub(Duration::from_nanos(1)));
        world.driver.link.set_credit(Some(0));
        let Some(at) = crashed_at(&mut world) else { continue };
        if world.delivered(0).1 == 0 {
            // A handshake that is lost is the guest's own time-out.
            continue;
        }
        world.run_until(at + Duration::from_millis(30));
        world.driver.link.set_credit(None);
        world.run(Instant::from_ms(400_000));
        let took = world.ended(0).expect("delivered or reset") - at;
        assert!(took < Duration::from_millis(150), "point {point}: {took:?}");
        count += 1;
    }
    assert!(count > 10, "{count} crashes");
}
