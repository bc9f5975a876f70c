//! Samples of an instance at intervals; after its end, of the next one that matches the same option.
//!
//! An instance goes on at the same path after an upgrade in place, so that path is dialled before another
//! instance is looked for: of several running ones no option may say which.
//!
//! One sample is five calls: status, counters, all flows page by page, the last refusals of the policy, and
//! the flow in the detail view. They are not of the same instant; a flow may end between two of them.

use super::Input;
use super::model::Sample;
use crate::clients;
use brodo_control::client::{Client, ClientError};
use brodo_control::flow::FlowRef;
use brodo_control::instance::{self, Which};
use brodo_control::method::{GetCounters, GetFlow, GetFlows, GetStatus};
use brodo_control::policy::{ExplainPolicy, Refusals};
use rustix::time::{ClockId, clock_gettime};
use std::path::PathBuf;
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
    /// Control socket of the instance that was watched last.
    path: PathBuf,
    client: Option<Client>,
    started: Instant,
}

impl Watcher {
    /// Watches the instance of `client`, whose socket lies at `path`, and after its end the next one that
    /// `which` selects.
    pub(super) fn new(client: Client, path: PathBuf, which: Option<Which>) -> Self {
        Self { which, path, client: Some(client), started: Instant::now() }
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
        let Some(client) = self.client.take() else {
            let client = self.dial()?;
            return self.ask(client, flow).map_err(|error| error.to_string());
        };
        let pid = client.hello().map(|hello| hello.pid);
        let asked = match self.ask(client, flow) {
            // An upgrade in place closes all connections, and the program after it listens at the same path.
            Err(ClientError::Closed) => Client::connect(&self.path).and_then(|client| self.ask(client, flow)),
            asked => asked,
        };
        asked.map_err(|error| match pid {
            Some(pid) if clients::has_ended(&error) => format!("brodo {pid} has ended"),
            _ => error.to_string(),
        })
    }

    /// Asks for a sample, and keeps a client that can be asked again.
    fn ask(&mut self, mut client: Client, flow: Option<FlowRef>) -> Result<Sample, ClientError> {
        let asked = ask(&mut client, self.started, flow);
        if matches!(asked, Ok(_) | Err(ClientError::Refused(_))) {
            self.client = Some(client);
        }
        asked
    }

    /// Connects to the same instance, or if that has ended to the next one.
    fn dial(&mut self) -> Result<Client, String> {
        match Client::connect(&self.path) {
            Err(error) if clients::has_ended(&error) => {}
            dialled => return dialled.map_err(|error| format!("{}: {error}", self.path.display())),
        }
        self.path = instance::find(self.which.as_ref()).map_err(|error| error.to_string())?.path;
        Client::connect(&self.path).map_err(|error| format!("{}: {error}", self.path.display()))
    }
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
    //! Pauses after expensive samples, and connections that end.

    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;
    use std::thread;

    const HELLO: &str = r#"{"jsonrpc":"2.0","id":1,"result":{"program":"brodo","version":"1","protocol":1,"pid":7,"methods":[]}}"#;
    const LATER: &str = r#"{"jsonrpc":"2.0","id":2,"error":{"code":4,"message":"later"}}"#;

    /// Serves so many connections, one after the other: each has these replies, and ends at the next request.
    fn serve(listener: UnixListener, connections: Vec<Vec<&'static str>>) -> thread::JoinHandle<()> {
        thread::spawn(move || {
            for replies in connections {
                let (mut stream, _) = listener.accept().expect("a client");
                let mut requests = BufReader::new(stream.try_clone().expect("a descriptor"));
                for reply in replies {
                    requests.read_line(&mut String::new()).expect("a request");
                    writeln!(stream, "{reply}").expect("a reader");
                }
                requests.read_line(&mut String::new()).expect("a request");
            }
        })
    }

    #[test]
    fn the_same_socket_is_asked_again_before_another_instance_is_looked_for() {
        let path = std::env::temp_dir().join(format!("brodo-watch-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).expect("a socket");
        // As in two upgrades, with a request that is refused between them; then it ends.
        let server = serve(listener, vec![vec![HELLO], vec![HELLO, LATER], vec![HELLO, LATER]]);
        let client = Client::connect(&path).expect("a server");
        let gone = path.with_extension("gone");
        let mut watcher = Watcher::new(client, path.clone(), Some(Which::Path(gone.clone())));
        let mut error = || watcher.sample(None).expect_err("no server has a sample");
        assert_eq!([error(), error()], ["later", "later"]);
        assert_eq!(error(), "brodo 7 has ended");
        server.join().expect("no panic");
        std::fs::remove_file(&path).expect("its socket");
        let error = error();
        assert!(error.starts_with(&gone.display().to_string()), "the next one: {error}");
    }

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
