//! The threads that serve one guest: one worker each, the first on the thread that calls.
//!
//! The first worker alone watches the caller's descriptors (signals, the command). The end of one worker ends
//! all, for any reason: the caller's word, an interface that is gone, an error, a panic. With one worker
//! there is no further thread.
//!
//! What several workers do alone and what together:
//!
//! | | |
//! |---|---|
//! | connections, datagram flows, timers, sockets, sequence numbers | each its own, see [`brodo_net::workers`] |
//! | memory for payload | one budget |
//! | number of flows | divided: a guest that aims at one worker gets that one's part |
//! | the guest's MAC address | learned by each from the first frame it gets, before it answers |
//! | ARP, neighbour discovery, DHCP, echo to brodo | stateless: the worker that gets the request answers |
//! | router advertisements | sent at intervals by the worker that got a solicitation; twice as many do no harm |
//! | the host's network and resolvers | one watch; each worker acts on a change at its next turn |
//! | DNS queries, their cache, names learnt | each its own; the cache's memory is divided |
//! | capture | one file |
//! | forwarded ports, and flows that begin there | the first worker's; others hand it frames of such flows |
//! | notices to the user | published once |
//! | counters | each its own, added up at the end |

use crate::event_bus::EventBus;
use crate::failure::{Failure, plain};
use brodo_control::event::Level;
use brodo_link::{FailedCall, GuestLink};
use brodo_net::driver::{Wake, Worker};
use brodo_net::workers::Workers;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Notice at the first ping to another host.
const PING_FORBIDDEN: &str = "ping to other hosts does not work because the host lets no group of this user open \
    ping sockets (socket: Permission denied); `sysctl -w net.ipv4.ping_group_range='0 2147483647'` on the host allows \
    it; everything else works";

/// Notices to the user while the network is served.
#[derive(Debug)]
pub(crate) struct Notices {
    bus: Arc<EventBus>,
    ping_noticed: AtomicBool,
}

impl Notices {
    pub(crate) fn new(bus: Arc<EventBus>) -> Self {
        Self { bus, ping_noticed: AtomicBool::new(false) }
    }

    /// The capture has ended because of an error.
    pub(crate) fn capture_failed(&self, error: &io::Error) {
        self.bus.notify(Level::Warn, &format!("the capture ended early: write: {}", plain(error)));
    }

    /// Publishes the notice of a wake-up.
    fn publish(&self, wake: &Wake) {
        match wake {
            Wake::CaptureFailed(error) => self.capture_failed(error),
            Wake::PingForbidden if !self.ping_noticed.swap(true, Ordering::Relaxed) => {
                self.bus.notify(Level::Warn, PING_FORBIDDEN);
            }
            Wake::Notice(sentence) => self.bus.notify(Level::Info, sentence),
            _ => {}
        }
    }
}

/// Stops all workers when one ends, however that comes.
struct StopOnDrop<'a>(&'a Workers);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Ends the wait of visitors, however the workers end.
struct CloseOnDrop<'a>(&'a Workers);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Serves until `check` breaks, which is asked whenever a descriptor that the first worker watches is
/// readable, or until the guest's interface is gone (`None`). The loops have joined `workers`.
pub(crate) fn run<L: GuestLink + Send, T>(
    loops: &mut [Worker<L>],
    workers: &Arc<Workers>,
    notices: &Notices,
    mut check: impl FnMut() -> Result<ControlFlow<T>, Failure>,
) -> Result<Option<T>, Failure> {
    let Some((first, others)) = loops.split_first_mut() else { return Ok(None) };
    let _close = CloseOnDrop(workers);
    if others.is_empty() {
        return serve(first, notices, check);
    }
    thread::scope(|scope| {
        let stop = StopOnDrop(workers);
        let mut threads = Vec::with_capacity(others.len());
        for (number, worker) in (2..).zip(others) {
            let body = move || {
                let _stop = StopOnDrop(workers);
                serve(worker, notices, || Ok(ControlFlow::<()>::Continue(()))).map(|_| ())
            };
            let spawned = thread::Builder::new().name(format!("worker {number}")).spawn_scoped(scope, body);
            threads.push(spawned.map_err(Failure::io("start a worker: clone"))?);
        }
        let result = serve(first, notices, &mut check);
        drop(stop);
        for thread in threads {
            match thread.join() {
                // What another worker failed of is why this one was stopped.
                Ok(ended) if matches!(result, Ok(None)) => ended?,
                Ok(_) => {}
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        result
    })
}

/// Runs one worker until it is to end.
fn serve<L: GuestLink, T>(
    worker: &mut Worker<L>,
    notices: &Notices,
    mut check: impl FnMut() -> Result<ControlFlow<T>, Failure>,
) -> Result<Option<T>, Failure> {
    loop {
        let wake = worker.run().map_err(|FailedCall { call, error }| {
            Failure::Io(format!("serve the network interface: {call}"), error)
        })?;
        match wake {
            Wake::Extra(_) => {
                if let ControlFlow::Break(value) = check()? {
                    return Ok(Some(value));
                }
            }
            Wake::GuestGone | Wake::Stopped => return Ok(None),
            notice @ (Wake::CaptureFailed(_) | Wake::PingForbidden | Wake::Notice(_)) => {
                notices.publish(&notice);
            }
        }
    }
}

#[cfg(test)]
mod tests;
