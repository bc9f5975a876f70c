//! Client commands: queries to running instances over their control sockets; tables for people, JSON for
//! programs.

pub(crate) mod args;
mod policy;
mod show;
mod table;
mod upgrade;

pub(crate) use policy::{learned as learned_policy, policy};
pub(crate) use upgrade::upgrade;

use crate::escape;
use crate::failure::Failure;
use crate::log;
use crate::standard_output::{print, printed};
use args::{
    BulkOptions, CaptureCommand, CaptureOptions, EventsOptions, FlowsOptions, ForwardAdd, ForwardCommand,
    ForwardOptions, InstanceOptions, Sort, StatusOptions,
};
use brodo_control::client::{Client, ClientError, REPLY_TIMEOUT};
use brodo_control::event::Topic;
use brodo_control::flow::{Flow, Protocol};
use brodo_control::instance::{self, FindError, Instance, Which};
use brodo_control::method::{
    AddForward, GetCounters, GetFlow, GetFlows, GetStatus, ListForwards, RemoveForward, SetBulk, Side,
    StartCapture, Status, StopCapture,
};
use brodo_control::rpc::code;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use serde::Serialize;
use std::cmp::Reverse;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Longest wait for a reply of one of several instances: one that is stopped hides none of the others.
const PATIENCE: Duration = Duration::from_secs(2);

/// Time for which an instance may have no place for one that had a subscription, and the pause between two
/// attempts.
const BUSY_PATIENCE: Duration = Duration::from_secs(10);
const BUSY_PAUSE: Duration = Duration::from_millis(100);

/// A value as a line of JSON, for terminals too.
fn json(value: &impl Serialize) -> String {
    // Infallible: our own types have string keys.
    escape::json(serde_json::to_string(value).unwrap_or_default()) + "\n"
}

fn refused(error: &ClientError) -> Failure {
    Failure::Remote(error.to_string())
}

/// The time, in nanoseconds since 1970.
fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Connects to a socket.
pub(crate) fn connect(path: &Path) -> Result<Client, Failure> {
    connect_within(path, REPLY_TIMEOUT)
}

/// Connects to a socket, with so much time for each reply.
fn connect_within(path: &Path, patience: Duration) -> Result<Client, Failure> {
    Client::connect_within(path, patience).map_err(|error| match error {
        ClientError::Io(_) | ClientError::Closed | ClientError::TimedOut => {
            Failure::Remote(format!("cannot reach brodo at {}: connect: {error}", path.display()))
        }
        other => refused(&other),
    })
}

/// A client of the selected instance.
pub(crate) fn client(which: Option<&Which>) -> Result<Client, Failure> {
    connect(&path_of(which)?)
}

/// The control socket of the selected instance.
pub(crate) fn path_of(which: Option<&Which>) -> Result<PathBuf, Failure> {
    instance::find(which).map(|found| found.path).map_err(|error| {
        let choice = match &error {
            FindError::Several(instances) => several(instances),
            _ => error.to_string(),
        };
        Failure::Remote(choice)
    })
}

/// The error of a choice among several instances: each of them, with what it serves.
fn several(instances: &[Instance]) -> String {
    let named = |instance: &Instance| {
        let what = match status_of(&instance.path) {
            Ok(status) => format!("{} {}", status.command, escape::printable(&status.target)),
            Err(error) => error.to_string(),
        };
        format!("{} ({what})", instance.pid)
    };
    let named = instances.iter().map(named).collect::<Vec<_>>().join(", ");
    format!("several brodos are running: choose one with --instance: {named}")
}

/// `brodo status`: one instance, or all.
pub(crate) fn status(options: &StatusOptions) -> Result<u8, Failure> {
    let StatusOptions { instance, json: wants_json } = options;
    let mut client = match instance::find(instance.as_ref()) {
        Ok(found) => connect(&found.path)?,
        Err(FindError::Several(found)) => return all(&found, *wants_json),
        Err(error) => return Err(Failure::Remote(error.to_string())),
    };
    let status = client.call(&GetStatus {}).map_err(|e| refused(&e))?;
    print(&if *wants_json { json(&status) } else { show::status(&status) })?;
    Ok(0)
}

/// An instance without a status.
#[derive(Debug, Serialize)]
struct Silent {
    pid: u32,
    error: String,
}

/// The states of several instances. One that gives none is named, and makes the status 1.
fn all(instances: &[Instance], wants_json: bool) -> Result<u8, Failure> {
    let mut all_answer = true;
    for Instance { pid, path } in instances {
        let text = match status_of(path) {
            Ok(status) if wants_json => json(&status),
            Ok(status) => show::status(&status),
            Err(error) if has_ended(&error) => continue,
            Err(error) => {
                all_answer = false;
                let error = match error {
                    ClientError::TimedOut => "does not answer".to_owned(),
                    other => other.to_string(),
                };
                if wants_json {
                    json(&Silent { pid: *pid, error })
                } else {
                    format!("brodo {pid}: {}\n", escape::printable(&error))
                }
            }
        };
        if !print(&text)? {
            break;
        }
    }
    Ok(u8::from(!all_answer))
}

/// The state of one of several instances.
fn status_of(path: &Path) -> Result<Status, ClientError> {
    Client::connect_within(path, PATIENCE).and_then(|mut client| client.call(&GetStatus {}))
}

/// Whether an error is that of an instance that ended after it was found: it is not running.
pub(crate) fn has_ended(error: &ClientError) -> bool {
    let ended = [ErrorKind::ConnectionRefused, ErrorKind::NotFound];
    match error {
        ClientError::Closed => true,
        ClientError::Io(error) => ended.contains(&error.kind()),
        _ => false,
    }
}

/// `brodo flows`: all flows, or one.
pub(crate) fn flows(options: &FlowsOptions) -> Result<u8, Failure> {
    let mut client = client(options.instance.instance.as_ref())?;
    let wants_json = options.instance.json;
    if let Some(id) = options.id {
        let detail = client.call(&GetFlow { id }).map_err(|e| refused(&e))?;
        print(&if wants_json { json(&detail) } else { show::flow(&detail) })?;
        return Ok(0);
    }
    let FlowsOptions { protocol, carrier, address, port, .. } = *options;
    let wanted = GetFlows { protocol, carrier, address, port, ..GetFlows::default() };
    let mut flows = client.flows(&wanted).map_err(|e| refused(&e))?;
    sort(&mut flows, options.sort);
    if wants_json {
        // A line at a time: all lines together are larger than the flows.
        printed(|out| flows.iter().try_for_each(|flow| out.write_all(json(flow).as_bytes())))?;
    } else {
        print(&show::flows(&flows, table::terminal_width()))?;
    }
    Ok(0)
}

fn sort(flows: &mut [Flow], by: Sort) {
    match by {
        Sort::Age => flows.sort_by_key(|flow| Reverse(flow.age_us)),
        Sort::Idle => flows.sort_by_key(|flow| flow.idle_us),
        Sort::Bytes => {
            flows.sort_by_key(|flow| Reverse(flow.from_guest.bytes.saturating_add(flow.to_guest.bytes)));
        }
        Sort::Out => flows.sort_by_key(|flow| Reverse(flow.from_guest.bytes)),
        Sort::In => flows.sort_by_key(|flow| Reverse(flow.to_guest.bytes)),
        Sort::Rtt => flows.sort_by_key(|flow| Reverse(flow.remote_rtt_us.or(flow.rtt_us))),
        Sort::Remote => flows.sort_by_key(|flow| flow.remote),
    }
}

/// `brodo counters`.
pub(crate) fn counters(options: &InstanceOptions) -> Result<u8, Failure> {
    let counters = client(options.instance.as_ref())?.call(&GetCounters {}).map_err(|e| refused(&e))?;
    print(&if options.json { json(&counters) } else { show::counters(&counters) })?;
    Ok(0)
}

/// `brodo events`, until the instance has ended or standard output has no reader. After an upgrade in place
/// it goes on with the program that listens at the same path.
pub(crate) fn events(options: &EventsOptions) -> Result<u8, Failure> {
    let path = path_of(options.instance.instance.as_ref())?;
    let topics = if options.topics.is_empty() { &Topic::ALL[..] } else { &options.topics };
    let mut client = connect(&path)?;
    client.subscribe(topics).map_err(|e| refused(&e))?;
    let mut lines = show::EventLines::default();
    loop {
        match client.next_event(Some(Duration::ZERO)) {
            Ok(Some(event)) => {
                if !print(&if options.instance.json { json(&event) } else { lines.line(&event, unix_ns()) })?
                {
                    return Ok(0);
                }
            }
            Ok(None) => {
                if !wait_while_read(&client)? {
                    return Ok(0);
                }
            }
            Err(ClientError::Closed) => {
                let Some(next) = again(&path, topics)? else { return Ok(0) };
                client = next;
                log::warn("connected again, as after an upgrade: events may be missing here", &[]);
            }
            Err(error) => return Err(refused(&error)),
        }
    }
}

/// A new subscription at the same path; `None` if no program listens there any more.
///
/// # Errors
/// One does, and cannot be subscribed to.
fn again(path: &Path, topics: &[Topic]) -> Result<Option<Client>, Failure> {
    let subscribed = || {
        let mut client = Client::connect(path)?;
        client.subscribe(topics)?;
        Ok(client)
    };
    let started_at = Instant::now();
    loop {
        let error = match subscribed() {
            Ok(client) => return Ok(Some(client)),
            Err(error) => error,
        };
        match &error {
            ClientError::Io(error)
                if matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound) =>
            {
                return Ok(None);
            }
            // All clients come again at once, and it may be ending while they do.
            ClientError::Refused(refusal) if refusal.code == code::BUSY => {}
            ClientError::Closed => {}
            _ => return Err(refused(&error)),
        }
        if started_at.elapsed() >= BUSY_PATIENCE {
            return Err(refused(&error));
        }
        thread::sleep(BUSY_PAUSE);
    }
}

/// Waits for a message of the instance; false if standard output has no reader any more: its pipe is closed,
/// its terminal hung up.
fn wait_while_read(client: &Client) -> Result<bool, Failure> {
    let stdout = io::stdout();
    // Standard output: only events reported without request, POLLERR of a pipe, POLLHUP of a terminal.
    let mut fds = [PollFd::new(client, PollFlags::IN), PollFd::new(&stdout, PollFlags::empty())];
    match poll(&mut fds, None) {
        Ok(_) | Err(Errno::INTR) => Ok(fds[1].revents().is_empty()),
        Err(errno) => Err(Failure::Io("wait for events: poll".into(), errno.into())),
    }
}

/// `brodo forward`.
pub(crate) fn forward(options: &ForwardOptions) -> Result<u8, Failure> {
    let mut client = client(options.instance.instance.as_ref())?;
    let forwards = match &options.what {
        None | Some(ForwardCommand::List) => client.call(&ListForwards {}).map(|all| all.forwards),
        Some(ForwardCommand::Add(wanted)) => client.call(&to_add(wanted)).map(|forward| vec![forward]),
        Some(ForwardCommand::Remove { id }) => {
            client.call(&RemoveForward { id: *id }).map(|forward| vec![forward])
        }
    };
    let forwards = forwards.map_err(|e| refused(&e))?;
    let text = if options.instance.json {
        forwards.iter().map(json).collect()
    } else {
        show::forwards(&forwards, table::terminal_width())
    };
    print(&text)?;
    Ok(0)
}

/// At least one of the options is given, by clap's rule.
fn to_add(wanted: &ForwardAdd) -> AddForward {
    let ForwardAdd { tcp, udp, tcp_guest, udp_guest } = wanted;
    let given = [
        (Side::Host, Protocol::Tcp, tcp),
        (Side::Host, Protocol::Udp, udp),
        (Side::Guest, Protocol::Tcp, tcp_guest),
        (Side::Guest, Protocol::Udp, udp_guest),
    ];
    let given = given.into_iter().find_map(|(side, protocol, spec)| Some((side, protocol, spec.clone()?)));
    let (side, protocol, spec) = given.unwrap_or((Side::Host, Protocol::Tcp, "none".to_owned()));
    AddForward { side, protocol, spec }
}

/// `brodo bulk`.
pub(crate) fn bulk(options: &BulkOptions) -> Result<u8, Failure> {
    let mut client = client(options.instance.instance.as_ref())?;
    let wanted = SetBulk { carrier: options.carrier.map(Into::into) };
    let bulk = client.call(&wanted).map_err(|e| refused(&e))?;
    print(&if options.instance.json { json(&bulk) } else { show::bulk(&bulk) + "\n" })?;
    Ok(0)
}

/// `brodo capture`.
pub(crate) fn capture(options: &CaptureOptions) -> Result<u8, Failure> {
    let mut client = client(options.instance.instance.as_ref())?;
    let status = match &options.what {
        None | Some(CaptureCommand::Status) => client.call(&GetStatus {}).map(|status| status.capture),
        Some(CaptureCommand::Stop) => client.call(&StopCapture {}).map(Some),
        Some(CaptureCommand::Start { file, filter }) => {
            // The instance may have another working directory.
            let file = std::path::absolute(file)
                .map_err(Failure::io(format!("find the place of {}: getcwd", file.display())))?;
            let filter = (!filter.is_empty()).then(|| filter.join(" "));
            client.call(&StartCapture { file, filter }).map(Some)
        }
    };
    let status = status.map_err(|e| refused(&e))?;
    print(&if options.instance.json { json(&status) } else { show::capture(status.as_ref()) })?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use brodo_control::event::Topic;
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;

    /// A server that answers the first request of each connection with one of these, and is gone then.
    fn answering(path: &Path, answers: Vec<String>) -> thread::JoinHandle<()> {
        let listener = UnixListener::bind(path).unwrap();
        thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                BufReader::new(stream.try_clone().unwrap()).read_line(&mut String::new()).unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
            }
        })
    }

    #[test]
    fn a_subscription_ends_with_its_instance_alone() {
        let path = std::env::temp_dir().join(format!("brodo-again-{}", std::process::id()));
        assert!(matches!(again(&path, &Topic::ALL), Ok(None)), "no socket");
        let busy = r#"{"jsonrpc":"2.0","id":1,"error":{"code":4,"message":"too many clients"}}"#;
        let other = r#"{"program":"brodo","version":"9","protocol":99,"pid":1,"methods":[]}"#;
        let other = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{other}}}"#);
        let server = answering(&path, vec![format!("{busy}\n"), format!("{other}\n")]);
        let failure = again(&path, &Topic::ALL).expect_err("another protocol");
        assert!(matches!(&failure, Failure::Remote(text) if text.contains("protocol 99")), "{failure:?}");
        server.join().unwrap();
        assert!(matches!(again(&path, &Topic::ALL), Ok(None)), "no listener");
        std::fs::remove_file(&path).unwrap();
    }
}
