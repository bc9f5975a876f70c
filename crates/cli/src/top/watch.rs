//! Samples of an instance at intervals; after its end, of the next one that matches the same option.
//!
//! One sample is five calls: status, counters, all flows page by page, the last refusals of the policy, and
//! the flow in the detail view. They are not of the same instant; a flow may end between two of them.

use super::Input;
use super::model::Sample;
use brodo_control::client::{Client, ClientError};
use brodo_control::flow::FlowRef;
use brodo_control::instance::{self, Which};
use brodo_control::method::{GetCounters, GetFlow, GetFlows, GetStatus};
use brodo_control::policy::{ExplainPolicy, Refusals};
use rustix::time::{ClockId, clock_gettime};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

/// Least pause in multiples of the last sample's processor time: a hundredth of a processor.
const PAUSE_PER_COST: u32 = 100;
/// Refusals in a sample: as many as the lines of a large terminal.
const REFUSALS_MAX: usize = 100;
/// Longest pause, unless a longer one was requested.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// The result of one interval.
#[derive(Debug)]
pub(super) struct Update {
    /// The sample, or the error.
    pub(super) sample: Result<Box<Sample>, String>,
    /// Pause until the next, if longer than requested.
    pub(super) stretched: Option<Duration>,
}

/// The watching thread: one instance after the other.
#[derive(Debug)]
pub(super) struct Watcher {
    which: Option<Which>,
    client: Option<Client>,
    started: Instant,
}

impl Watcher {
    /// Watches the instance of `client`, and after its end the next one that `which` selects.
    pub(super) fn new(client: Client, which: Option<Which>) -> Self {
        Self { which, client: Some(client), started: Instant::now() }
    }

    /// Puts an update into `queue` at every interval, until it has no reader. `selected` yields the flow for
    /// the detail view from then on.
    pub(super) fn run(
        mut self,
        interval: Duration,
        selected: &Receiver<Option<FlowRef>>,
        queue: &Sender<Input>,
    ) {
        let mut flow = None;
        let mut spent = cpu_time();
        loop {
            let sample = self.sample(flow).map(Box::new);
            // Cost since the previous sample: its picture, and this sample.
            let before = std::mem::replace(&mut spent, cpu_time());
            let pause = pause(interval, spent.saturating_sub(before));
            let stretched = Some(pause).filter(|pause| *pause > interval);
            if queue.send(Input::Update(Update { sample, stretched })).is_err() {
                return;
            }
            let until = Instant::now() + pause;
            loop {
                match selected.recv_timeout(until.saturating_duration_since(Instant::now())) {
                    Ok(wanted) => {
                        flow = wanted;
                        if wanted.is_some() {
                            break;
                        }
                    }
                    Err(RecvTimeoutError::Timeout) => break,
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        }
    }

    /// Takes one sample.
    fn sample(&mut self, flow: Option<FlowRef>) -> Result<Sample, String> {
        let mut client = match self.client.take() {
            Some(client) => client,
            None => dial(self.which.as_ref())?,
        };
        let pid = client.hello().map(|hello| hello.pid);
        match ask(&mut client, self.started, flow) {
            Ok(sample) => {
                self.client = Some(client);
                Ok(sample)
            }
            Err(ClientError::Closed) => match pid {
                Some(pid) => Err(format!("brodo {pid} has ended")),
                None => Err("it has ended".to_owned()),
            },
            Err(error @ ClientError::Refused(_)) => {
                self.client = Some(client);
                Err(error.to_string())
            }
            Err(error) => Err(error.to_string()),
        }
    }
}

fn dial(which: Option<&Which>) -> Result<Client, String> {
    let found = instance::find(which).map_err(|error| error.to_string())?;
    Client::connect(&found.path).map_err(|error| format!("{}: {error}", found.path.display()))
}

fn ask(client: &mut Client, started: Instant, flow: Option<FlowRef>) -> Result<Sample, ClientError> {
    let status = client.call(&GetStatus {})?;
    let counters = client.call(&GetCounters {})?;
    let at = started.elapsed();
    let flows = client.flows(&GetFlows::default())?;
    let refusals = match client.call(&ExplainPolicy { last: Some(REFUSALS_MAX) }) {
        Ok(Refusals { refusals, .. }) => refusals,
        // Of a version that does not know the request.
        Err(ClientError::Refused(_)) => Vec::new(),
        Err(error) => return Err(error),
    };
    let detail = flow.map(|id| client.call(&GetFlow { id }));
    let detail = match detail {
        Some(Ok(detail)) => Some(detail),
        // Ended: it is not among the flows either.
        Some(Err(ClientError::Refused(_))) | None => None,
        Some(Err(error)) => return Err(error),
    };
    Ok(Sample { at, status, counters, flows, refusals, detail })
}

/// Pause after a sample, from its cost in processor time, the previous picture included.
fn pause(interval: Duration, cost: Duration) -> Duration {
    interval.max((cost * PAUSE_PER_COST).min(PAUSE_MAX))
}

/// Processor time of this process.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    //! Pauses after expensive samples.

    use super::*;

    #[test]
    fn cheap_samples_keep_the_interval_and_costly_ones_take_a_hundredth_at_most() {
        let ms = Duration::from_millis;
        for (interval, cost, expected) in
            [(1000, 1, 1000), (1000, 10, 1000), (1000, 30, 3000), (1000, 500, 10_000), (60_000, 500, 60_000)]
        {
            assert_eq!(pause(ms(interval), ms(cost)), ms(expected));
        }
    }
}
