//! Review of open flows after a change of the policy: all workers', a part at a time, and to its end.
//!
//! A worker that stands still for a while (its link's driver hangs, its machine is suspended) leaves its part
//! open: the warden learns that, the other workers' flows are judged meanwhile, and the answering thread
//! tries again until none is left. To judge a flow twice changes nothing.

use super::ask::{FLOWS_PER_COMMAND, ask};
use brodo_control::rpc::Error;
use brodo_net::command::Command;
use brodo_net::workers::Workers;

/// Flows that are still to be judged.
#[derive(Debug, Default)]
pub(super) struct Review {
    /// Workers, and the first slot of each that was not looked at.
    left: Vec<(u32, u32)>,
}

impl Review {
    /// Of all flows.
    pub(super) fn of_all(workers: &Workers) -> Self {
        Self { left: (0..workers.workers()).map(|worker| (worker, 0)).collect() }
    }

    /// Whether flows are left.
    pub(super) fn is_pending(&self) -> bool {
        !self.left.is_empty()
    }

    /// Has all flows judged that are left.
    ///
    /// # Errors
    /// A worker does not reply: its flows are left.
    pub(super) fn go_on(&mut self, workers: &Workers) -> Result<(), Error> {
        self.judge(|worker, from| {
            ask(workers, worker, |reply| Command::Review { from, most: FLOWS_PER_COMMAND, reply })
        })
    }

    /// The same, with the slot to go on from by `part`.
    fn judge(&mut self, part: impl Fn(u32, u32) -> Result<Option<u32>, Error>) -> Result<(), Error> {
        let mut result = Ok(());
        self.left.retain_mut(|(worker, from)| {
            loop {
                match part(*worker, *from) {
                    Ok(Some(next)) => *from = next,
                    Ok(None) => return false,
                    Err(error) => {
                        result = Err(error);
                        return true;
                    }
                }
            }
        });
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use brodo_control::rpc::code;
    use std::cell::RefCell;

    #[test]
    fn a_worker_that_stands_still_keeps_its_part_and_no_others() {
        let mut review = Review { left: vec![(0, 0), (1, 0), (2, 0)] };
        let judged = RefCell::new(Vec::new());
        let part = |stands_still: bool| {
            let judged = &judged;
            move |worker, from| {
                if stands_still && (worker, from) == (1, 256) {
                    return Err(Error::new(code::BUSY, "late"));
                }
                judged.borrow_mut().push((worker, from));
                Ok(Some(from + 256).filter(|&next| next < 512))
            }
        };
        assert!(review.judge(part(true)).is_err() && review.is_pending());
        assert_eq!(judged.take(), [(0, 0), (0, 256), (1, 0), (2, 0), (2, 256)]);
        assert!(review.judge(part(false)).is_ok() && !review.is_pending());
        assert_eq!(judged.take(), [(1, 256)]);
    }
}
