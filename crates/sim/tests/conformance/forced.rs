//! Promotion forced: at every point of a world one connection begins to become a kernel socket's, and at
//! every point of its time away it is taken back. Each stream is delivered to its last byte and its end, or
//! reset if one of its ends has reset.

use super::points;
use super::world::EAGER;
use brodo_core::config::{Bulk, Config};
use brodo_core::link::LinkCaps;
use brodo_core::time::{Duration, Instant};
use brodo_sim::driver::SimDriver;
use brodo_sim::net::{Delay, Departure, Loss, Node, Path};
use brodo_sim::packet::{self, ParsedFrame, flags};
use brodo_sim::promotions::Forced;
use brodo_sim::rng::Rng;
use brodo_sim::world::{Behind, Conversation, Ending, Pace, World};
use std::fmt::Debug;

const ENDINGS: [Ending; 7] = [
    Ending::Each,
    Ending::GuestFirst,
    Ending::HostFirst,
    Ending::GuestLeaves,
    Ending::HostLeaves,
    Ending::GuestResets,
    Ending::HostResets,
];

/// Bytes up and down; in the last ones a stream ends long before the other.
const DIRECTIONS: [(u64, u64); 4] = [(16_000, 0), (0, 16_000), (16_000, 8000), (8000, 16_000)];

/// Steps of the agent: a socket that is there before the next burst, one that is not, and one that is there
/// after several.
const STEPS: [u64; 3] = [1, 8, 40];

/// One conversation, and the link that it has.
#[derive(Debug, Clone)]
struct Plan {
    conversation: Conversation,
    credit: Option<usize>,
    loss_per_mille: u32,
    /// SYN and SYN-ACK come once more, so long after the first.
    late_syn: Option<Duration>,
}

/// Repeats SYNs so long after them.
struct Late(Duration);

impl Node for Late {
    fn pass(&mut self, at: Instant, frame: Vec<u8>, out: &mut Vec<Departure>) {
        if matches!(packet::parse(&frame), Ok(ParsedFrame::Tcp(segment)) if segment.has(flags::SYN)) {
            out.push((at + self.0, frame.clone()));
        }
        out.push((at, frame));
    }
}

impl Plan {
    /// Bursts with pauses, in which a connection becomes quiet, over a link without faults.
    fn new((up, down): (u64, u64), ending: Ending) -> Self {
        let pace = Pace::Bursts { bytes: 2000, every: Duration::from_millis(4) };
        let conversation = Conversation { up, down, pace, ending, ..Conversation::default() };
        Self { conversation, credit: None, loss_per_mille: 0, late_syn: None }
    }

    /// A world in which the promotion begins at `point`.
    fn world(&self, point: u64, steps: u64) -> World {
        let mut config = Config { mtu: 1500, bulk: Bulk::Kernel, bulk_bounds: EAGER, ..Config::default() };
        // Windows that bursts use up.
        config.tcp_rx.initial = 4 << 10;
        let wire = |seed| {
            let loss = Loss { per_mille: self.loss_per_mille, rng: Rng::new(seed) };
            let mut nodes: Vec<Box<dyn Node>> =
                vec![Box::new(Delay(Duration::from_micros(50))), Box::new(loss)];
            if let Some(after) = self.late_syn {
                nodes.push(Box::new(Late(after)));
            }
            Path::new(nodes)
        };
        let caps = LinkCaps { checksum: true, tso: true, uso: true, packet_max: None };
        let mut world = World::new(config, caps, 1, wire(1), wire(2));
        world.credit_per_tick = self.credit;
        let SimDriver { handovers, promotions, host, .. } = &mut world.driver;
        // One would end what is being made quiet.
        handovers.switch_off();
        promotions.force(host, point, steps);
        world.add(self.conversation.clone());
        world
    }
}

/// Sums over worlds, each with a promotion or a return at another point.
#[derive(Debug, Default)]
struct Outcome {
    /// Worlds in which it came to that.
    begun: u64,
    /// Kernel sockets made, and flows that came back from them.
    made: u64,
    returned: u64,
    /// Worlds in which the guest's window was closed at the seed, and the kernel socket's later.
    guest_windows_closed: u64,
    windows_closed: u64,
    /// Worlds in which the peer's FIN, and its reset, came while the socket was made.
    peer_ends: u64,
    peer_resets: u64,
    /// Flags of the guest's segments that came while the socket was made.
    flags: u8,
}

impl Outcome {
    fn add(&mut self, plan: &Plan, world: &World) {
        let Conversation { up, down, ending, .. } = plan.conversation;
        let delivered = world.delivered(0);
        let whole = match ending {
            Ending::GuestResets | Ending::HostResets => delivered,
            Ending::GuestLeaves => (up, delivered.1),
            Ending::HostLeaves => (delivered.0, down),
            _ => (up, down),
        };
        assert_eq!(delivered, whole, "{plan:?}");
        let counters = world.driver.stack.counters();
        assert_eq!((counters.promotions_broken, world.driver.stack.promoted()), (0, 0), "{plan:?}");
        let (done, met) = (world.driver.promotions.done(), world.driver.promotions.met());
        self.begun += counters.promotions_tried;
        self.made += done.made;
        self.returned += done.returned;
        self.guest_windows_closed += u64::from(met.guest_windows_closed > 0);
        self.windows_closed += u64::from(met.windows_closed > 0);
        self.peer_ends += u64::from(met.peer_ends > 0);
        self.peer_resets += u64::from(met.peer_resets > 0);
        self.flags |= met.flags;
    }

    /// Worlds of a plan, each with the promotion at another point, for a socket that takes so many steps.
    fn promote(&mut self, plan: &Plan, steps: u64) {
        let has_begun = |world: &World| world.driver.stack.counters().promotions_tried > 0;
        for world in points::each(|point| plan.world(point, steps), has_begun) {
            self.add(plan, &world);
        }
    }

    /// Worlds of a plan, each with the return at another point of the promotion that begins at the fourth.
    fn take_back(&mut self, plan: &Plan, cause: Forced) {
        let make = |point| {
            let mut world = plan.world(3, 2);
            world.driver.promotions.force_return(point, cause);
            world
        };
        for world in points::each(make, |world| !world.driver.promotions.awaits_return()) {
            self.add(plan, &world);
        }
    }

    /// Checks that each promotion came as far as a socket, and that most flows came back from it.
    fn assert_returned(&self, plan: impl Debug) {
        let most = self.made == self.begun && 3 * self.returned > 2 * self.made;
        assert!(self.begun > 50 && most, "{plan:?}: {self:?}");
    }

    /// Checks that most promotions came as far as a socket, and that what ends the connection came while one
    /// was made.
    fn assert_made(&self, ending: Ending) {
        assert!(self.begun > 25 && 3 * self.made > 2 * self.begun, "{ending:?}: {self:?}");
        let has = |flag| self.flags & flag > 0;
        let has_ended = match ending {
            Ending::Each => has(flags::FIN) && self.peer_ends > 0,
            Ending::GuestFirst | Ending::GuestLeaves => has(flags::FIN),
            Ending::HostFirst => self.peer_ends > 0,
            Ending::GuestResets => has(flags::RST),
            Ending::HostLeaves | Ending::HostResets => self.peer_resets > 0,
            Ending::Refused => false,
        };
        assert!(has_ended, "{ending:?}: {self:?}");
    }
}

#[test]
fn a_promotion_begins_at_every_point() {
    for ending in ENDINGS {
        let mut outcome = Outcome::default();
        for (direction, steps) in DIRECTIONS.into_iter().flat_map(|to| STEPS.map(|steps| (to, steps))) {
            outcome.promote(&Plan::new(direction, ending), steps);
        }
        outcome.assert_made(ending);
    }
}

/// The last segment of the stack and the first of the kernel socket come late.
#[test]
fn a_promotion_begins_at_every_point_with_little_credit() {
    for ending in ENDINGS {
        let mut outcome = Outcome::default();
        for direction in [(16_000, 16_000), (0, 16_000)] {
            let plan = Plan { credit: Some(1), ..Plan::new(direction, ending) };
            for steps in STEPS {
                outcome.promote(&plan, steps);
            }
        }
        outcome.assert_made(ending);
    }
}

/// Any segment may be lost. Without resets: one that is lost leaves the other side waiting, as on any
/// network.
#[test]
fn a_promotion_begins_at_every_point_with_losses() {
    for ending in [Ending::Each, Ending::GuestFirst, Ending::HostFirst] {
        let mut outcome = Outcome::default();
        let plan = Plan { loss_per_mille: 50, ..Plan::new((16_000, 16_000), ending) };
        for steps in STEPS {
            outcome.promote(&plan, steps);
        }
        outcome.assert_made(ending);
    }
}

/// FIN and reset behind a closed window of the guest's, which reads seldom.
#[test]
fn the_guest_s_window_is_closed() {
    let (mut promoted, mut back) = (Outcome::default(), Outcome::default());
    for ending in ENDINGS {
        let mut plan = Plan::new((16_000, 16_000), ending);
        plan.conversation.guest_dwells = Duration::from_millis(12);
        plan.conversation.guest_buffer = 2920;
        promoted.promote(&plan, 8);
        back.take_back(&plan, Forced::Recall);
    }
    assert!(promoted.begun > 100 && 3 * promoted.made > 2 * promoted.begun, "{promoted:?}");
    assert!(5 * promoted.guest_windows_closed > promoted.made, "{promoted:?}");
    back.assert_returned("all");
}

/// FIN and reset of the guest's behind a closed window of the kernel socket, whose peer reads seldom.
#[test]
fn the_kernel_s_window_is_closed() {
    let (mut promoted, mut back) = (Outcome::default(), Outcome::default());
    for ending in [Ending::GuestFirst, Ending::GuestResets, Ending::HostResets] {
        let mut plan = Plan::new((160_000, 8000), ending);
        // More at a time than the buffer of the kernel socket has room for.
        plan.conversation.pace = Pace::Bursts { bytes: 80_000, every: Duration::from_millis(30) };
        plan.conversation.peer_dwells = Duration::from_millis(4);
        plan.conversation.behind = Behind::Buffer(6000);
        promoted.promote(&plan, 8);
        back.take_back(&plan, Forced::Recall);
    }
    assert!(promoted.begun > 100 && 3 * promoted.made > 2 * promoted.begun, "{promoted:?}");
    assert!(2 * promoted.windows_closed > promoted.made, "{promoted:?}");
    assert!(2 * back.windows_closed > back.made, "{back:?}");
    back.assert_returned("all");
}

/// Taken back by the driver, or because the steering is lost.
#[test]
fn a_return_begins_at_every_point() {
    for ending in ENDINGS {
        let mut outcome = Outcome::default();
        outcome.take_back(&Plan::new((16_000, 8000), ending), Forced::Recall);
        outcome.take_back(&Plan::new((10_000, 20_000), ending), Forced::Recall);
        outcome.take_back(&Plan::new((12_000, 12_000), ending), Forced::Astray);
        outcome.assert_returned(ending);
    }
}

/// The guest's SYN comes once more: before the seed, while the socket is made, to the socket, and after the
/// return.
#[test]
fn a_syn_that_is_late_changes_nothing() {
    for ending in ENDINGS {
        let mut outcome = Outcome::default();
        for (late, back) in (0..30).flat_map(|n| [(n, None), (n, Some(30))]) {
            let late_syn = Some(Duration::from_micros(700 * late));
            let plan = Plan { late_syn, ..Plan::new((16_000, 16_000), ending) };
            let mut world = plan.world(2, 8);
            if let Some(point) = back {
                world.driver.promotions.force_return(point, Forced::Recall);
            }
            world.run(Instant::from_ms(400_000));
            outcome.add(&plan, &world);
        }
        assert!(outcome.made == 60 && outcome.returned == 30, "{ending:?}: {outcome:?}");
        assert!(outcome.flags & flags::SYN > 0, "{ending:?}: {outcome:?}");
    }
}
