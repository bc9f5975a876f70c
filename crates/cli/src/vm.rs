//! `brodo vm`: the network of a virtual machine, by a socket of its monitor (QEMU, libkrun, UML).
//!
//! No namespace and no interface are made: the guest's kernel is the machine's own, and gets its addresses by
//! DHCP and router advertisements. The engine serves the socket: frames on it ([`brodo_link::socket`]), or
//! vhost-user, by which frames go through the machine's memory ([`brodo_link::vhost_user`]). It cannot open a
//! path, so a thread of the warden finds the monitor and passes connections on ([`connector`]).

mod connector;
mod monitor;
mod sender;

use crate::args::{NetworkOptions, Vm};
use crate::conversation::connections;
use crate::daemon::{Begun, Daemon};
use crate::engine::launch::{GuestSide, MonitorProtocol};
use crate::failure::Failure;
use crate::log;
use crate::option_values::MonitorSocket;
use crate::resume::descriptor::Keep;
use crate::resume::state::{SavedGuest, SavedMonitor, State};
use crate::run_as::RunAs;
use crate::serve::{Guest, Preparation, Promotion, Purpose, Renounced, Service, inherited};
use crate::standard_output::print;
use crate::systemd;
use crate::unmet;
use brodo_netns::namespace::{TargetEnd, Watch};
use brodo_netns::process::Signals;
use connector::Connector;
use monitor::Monitor;
use rustix::fd::{AsFd, OwnedFd};
use std::ffi::OsString;
use std::os::fd::RawFd;
use std::sync::Arc;

/// Answer to `--print-capabilities`, in the form that QEMU's conventions for back-end programs have.
pub(crate) const CAPABILITIES: &str = "{\n  \"type\": \"net\"\n}\n";

/// Serves the machine until a signal, or until its monitor is gone with `--one-off`. `line` is brodo's own
/// command line.
pub(crate) fn vm(options: &Vm, line: Vec<OsString>) -> Result<u8, Failure> {
    if options.print_capabilities {
        return print(CAPABILITIES).map(|_| 0);
    }
    check(&options.network).and_then(|()| check_workers(options)).map_err(Failure::Usage)?;
    options.run_as.map_or(Ok(()), RunAs::check)?;
    let (place, _) = options.monitor();
    let kept: Vec<RawFd> = place.descriptor().into_iter().chain(options.exit_fd).collect();
    let daemon = options.daemon.then(|| Daemon::begin(&options.network, &kept));
    let daemon = match daemon.transpose()? {
        Some(Begun::Parent { status }) => return Ok(status),
        Some(Begun::Child(daemon)) => {
            systemd::silence();
            Some(daemon)
        }
        None => None,
    };
    // An inherited socket comes before brodo opens descriptors of its own, so that a wrong number is noticed.
    let connected = place.descriptor().map(|_| Monitor::open(options)).transpose()?;
    let exit = options.exit_fd.map(|number| inherited("--exit-fd", number)).transpose()?;
    let preparation = match daemon {
        Some(_) => Preparation::without_pid_file(&options.network, line),
        None => Preparation::new(&options.network, line),
    };
    let preparation = preparation?.keeping(place.folder()).becoming(options.run_as);
    let monitor = connected.map_or_else(|| Monitor::open(options), Ok)?;
    let watch = Watch::resume(TargetEnd::Unknown, Signals::block()?).ending_with(exit);
    let (ours, theirs) =
        connections::channel().map_err(Failure::io("pass connections on: socketpair, setsockopt"))?;
    let (protocol, workers) = (options.protocol(), options.workers());
    let side = GuestSide::Monitor { channel: theirs, protocol, workers };
    let service = preparation.serve(side, None, Promotion::default(), purpose(options, &monitor))?;
    let mut service = service.following(options.daemon)?;
    let machine = Machine::new(monitor, ours, watch)?;
    machine.watched(&mut service)?;
    daemon.as_ref().map_or(Ok(()), Daemon::ready)?;
    service.announce()?;
    if let Some(daemon) = daemon {
        daemon.announced();
    }
    serve(service, machine)
}

/// Goes on with a machine that another program of this process has served.
pub(crate) fn resume(options: &Vm, state: &State, saved: &SavedMonitor) -> Result<u8, Failure> {
    let failed = || Failure::io("go on with the work of another brodo: fcntl");
    if options.daemon {
        systemd::silence();
    }
    let monitor = Monitor::resume(options, saved).map_err(failed())?;
    let signals = Signals::resume(saved.signals.take().map_err(failed())?);
    let exit = saved.exit.as_ref().map(|exit| exit.take().map_err(failed())).transpose()?;
    let watch = Watch::resume(TargetEnd::Unknown, signals).ending_with(exit);
    let purpose = purpose(options, &monitor);
    let machine = Machine::new(monitor, saved.channel.take().map_err(failed())?, watch)?;
    let service = Service::resume(state, &options.network, purpose, Renounced::default())?;
    let mut service = service.following(options.daemon)?;
    machine.watched(&mut service)?;
    serve(service, machine)
}

fn serve(mut service: Service, mut machine: Machine) -> Result<u8, Failure> {
    service.run(&mut machine)?;
    log::info("the virtual machine is gone, or brodo was asked to end", &[]);
    Ok(service.end(0))
}

/// Options that need an interface of brodo's or a namespace of the guest's.
fn check(options: &NetworkOptions) -> Result<(), String> {
    unmet::interface(options, "a virtual machine has its own")?;
    unmet::namespace(options, "a virtual machine has none")
}

/// Several workers need as many queue pairs, and queue pairs vhost-user.
fn check_workers(options: &Vm) -> Result<(), String> {
    let workers = options.workers();
    match options.protocol() {
        MonitorProtocol::Frames(_) if options.queues.is_some() => {
            Err("--queues is for --vhost-user: a socket has no queues".to_owned())
        }
        MonitorProtocol::Frames(_) | MonitorProtocol::AsSpoken { .. } if workers > 1 => Err(format!(
            "--workers {workers}: a socket is served by one worker, because it keeps one order; --vhost-user by several"
        )),
        MonitorProtocol::VhostUser { queues, .. } if workers > queues => {
            Err(format!("--workers {workers}: each serves a queue pair at least, and --queues is {queues}"))
        }
        _ => Ok(()),
    }
}

/// The machine as the service sees it.
struct Machine {
    monitor: Arc<Monitor>,
    /// The connector's end of the way to the engine.
    channel: Arc<OwnedFd>,
    /// Signals, and the descriptor of `--exit-fd`.
    watch: Watch,
}

impl Machine {
    /// Starts the thread that finds the monitor.
    fn new(monitor: Monitor, channel: OwnedFd, watch: Watch) -> Result<Self, Failure> {
        let (monitor, channel) = (Arc::new(monitor), Arc::new(channel));
        Connector::start(monitor.clone(), channel.clone())
            .map_err(Failure::io("wait for the virtual machine: clone"))?;
        Ok(Self { monitor, channel, watch })
    }

    /// Has the service look at the descriptors that end it.
    fn watched(&self, service: &mut Service) -> Result<(), Failure> {
        self.watch.descriptors().try_for_each(|descriptor| service.watch(descriptor))
    }
}

impl Guest for Machine {
    type End = ();

    fn check(&mut self) -> Result<Option<()>, Failure> {
        Ok(self.watch.ended()?.then_some(()))
    }

    fn signals(&self) -> &Signals {
        self.watch.signals()
    }

    fn save<'a>(&'a self, kept: &mut Keep<'a>) -> SavedGuest {
        SavedGuest::Monitor(SavedMonitor {
            socket: self.monitor.save(kept),
            spent: self.monitor.is_spent(),
            channel: kept.note(self.channel.as_fd()),
            signals: kept.note(self.watch.signals().as_fd()),
            exit: self.watch.exit().map(|exit| kept.note(exit)),
        })
    }

    fn child(&self) -> Option<i32> {
        None
    }
}

impl Drop for Machine {
    /// The thread may still wait for a monitor, which must not find the socket any more.
    fn drop(&mut self) {
        self.monitor.remove_file();
    }
}

fn purpose(options: &Vm, monitor: &Monitor) -> Purpose {
    let target = match (options.monitor().0, monitor.path()) {
        (MonitorSocket::Passt { .. }, Some(path)) => path.display().to_string(),
        (place, _) => place.to_string(),
    };
    Purpose { command: "vm", target }
}

#[cfg(test)]
mod tests {
    use super::*;
    use brodo_link::socket::Framing;
    use clap::Parser;

    fn options(words: &[&str]) -> Vm {
        let line = ["brodo", "vm"].iter().chain(words);
        match crate::args::Cli::try_parse_from(line).expect("a command line").command {
            crate::args::Command::Vm(options) => options,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn options_of_interfaces_and_namespaces_are_refused_by_name() {
        for (words, part) in [
            (&["--ifname", "eth1"][..], "--ifname is for an interface"),
            (&["--no-configure"], "--no-configure is for an interface"),
            (&["-T", "7000"], "-T needs the guest's network namespace"),
            (&["-t", "auto"], "-t auto needs"),
            (&["--bulk", "kernel"], "--bulk kernel needs"),
        ] {
            let refused = check(&options(&[&["--socket", "s"], words].concat()).network).expect_err(part);
            assert!(refused.starts_with(part), "{refused}");
        }
        for words in [&["-t", "8080:80"][..], &["-T", "none"], &["--workers", "1"], &["--copy-host"]] {
            assert_eq!(check(&options(&[&["--socket", "s"], words].concat()).network), Ok(()));
        }
    }

    #[test]
    fn several_workers_need_as_many_queue_pairs() {
        for (words, refused) in [
            (&["--socket", "s", "--workers", "2"][..], Some("--workers 2: a socket")),
            (&["--vhost-user", "s", "--workers", "3", "--queues", "2"], Some("--workers 3: each serves")),
            (&["--vhost-user", "s", "--workers", "3", "--queues", "3"], None),
            (&["--vhost-user", "s", "--workers", "20"], None),
            (&["--socket", "s", "--workers", "1"], None),
            (&["--socket", "s", "--queues", "2"], None),
            (&["--dgram", "s", "--queues", "2"], Some("--queues is for --vhost-user")),
        ] {
            let result = check_workers(&options(words));
            assert_eq!(result.is_err(), refused.is_some(), "{words:?}: {result:?}");
            assert!(result.err().unwrap_or_default().starts_with(refused.unwrap_or_default()));
        }
        assert_eq!(options(&["--vhost-user", "s"]).queues(), 8);
    }

    #[test]
    fn the_option_of_the_socket_gives_the_protocol() {
        for (word, protocol) in [
            ("--socket", MonitorProtocol::AsSpoken { queues: 8 }),
            ("--dgram", MonitorProtocol::Frames(Framing::Packet)),
            ("--seqpacket", MonitorProtocol::Frames(Framing::Packet)),
            ("--vhost-user", MonitorProtocol::VhostUser { queues: 8, plain: false }),
            ("--socket-path", MonitorProtocol::VhostUser { queues: 8, plain: false }),
        ] {
            let options = options(&[word, "fd:7"]);
            assert_eq!((options.protocol(), options.monitor().0.descriptor()), (protocol, Some(7)));
        }
        let options = options(&["--fd", "7"]);
        let protocol = MonitorProtocol::VhostUser { queues: 8, plain: false };
        assert_eq!((options.protocol(), options.monitor().0.descriptor()), (protocol, Some(7)));
    }
}
