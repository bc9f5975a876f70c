//! Payload memory: the budget shared by all workers, this worker's chunks of it, and the flows parked for
//! memory.

pub mod budget;
pub mod chunk;
pub(crate) mod parked;
pub mod payload;

use budget::{Budget, Need};
use chunk::Pool;
use parked::ParkedFlows;
use std::sync::Arc;

/// The payload memory of one worker.
#[derive(Debug)]
pub(crate) struct Memory {
    /// Chunks of this worker, free and in use.
    pub(crate) pool: Pool,
    /// TCP flows parked until there is memory to read from their host socket.
    pub(crate) reads: ParkedFlows,
    /// TCP flows parked until there is memory to open their window.
    pub(crate) windows: ParkedFlows,
}

impl Memory {
    /// Memory of worker number `worker`, which shares `budget` with the others.
    pub(crate) fn new(budget: Arc<Budget>, worker: u32) -> Self {
        Self {
            reads: ParkedFlows::new(budget.clone(), Need::Read, worker),
            windows: ParkedFlows::new(budget.clone(), Need::Window, worker),
            pool: Pool::new(budget),
        }
    }

    /// Flows parked for this need.
    pub(crate) fn parked(&mut self, need: Need) -> &mut ParkedFlows {
        match need {
            Need::Read => &mut self.reads,
            Need::Window => &mut self.windows,
        }
    }
}
