//! Chances of a promotion: everything that is not the kernel's TCP itself.

use crate::rng::Rng;

/// Draws of one driver.
#[derive(Debug)]
pub(super) struct Chance {
    rng: Rng,
    odds: Odds,
}

/// Chances in thousandths.
#[derive(Debug, Clone, Copy)]
struct Odds {
    /// Steps of the agent for a socket or a return, least and most.
    steps: (u64, u64),
    refused: u32,
    astray_at_once: u32,
    astray: u32,
    recalled: u32,
}

impl Chance {
    /// All that can happen.
    pub(super) fn new(rng: Rng) -> Self {
        let odds = Odds { steps: (1, 4), refused: 200, astray_at_once: 50, astray: 3, recalled: 20 };
        Self { rng, odds }
    }

    /// Nothing but sockets and returns that take so many steps.
    pub(super) fn none(steps: u64) -> Self {
        let odds = Odds { steps: (steps, steps), refused: 0, astray_at_once: 0, astray: 0, recalled: 0 };
        Self { rng: Rng::new(0), odds }
    }

    /// Independent draws with the same odds.
    pub(super) fn fork(&mut self) -> Self {
        Self { rng: self.rng.fork(), odds: self.odds }
    }

    /// Steps of the agent until the next socket or return.
    pub(super) fn steps(&mut self) -> u64 {
        let (least, most) = self.odds.steps;
        self.rng.range(least, most)
    }

    /// Whether a socket is refused.
    pub(super) fn refuses(&mut self) -> bool {
        self.rng.chance(self.odds.refused)
    }

    /// Whether the steering of a socket that is made fails from the beginning.
    pub(super) fn is_astray_at_once(&mut self) -> bool {
        self.rng.chance(self.odds.astray_at_once)
    }

    /// Whether the steering is lost now.
    pub(super) fn goes_astray(&mut self) -> bool {
        self.rng.chance(self.odds.astray)
    }

    /// Whether the driver wants a flow back now.
    pub(super) fn recalls(&mut self) -> bool {
        self.rng.chance(self.odds.recalled)
    }
}
