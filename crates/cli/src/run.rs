//! `brodo run`: a command in namespaces of its own.
//!
//! Every check precedes the first change, and every step that can fail precedes the start of the command: it
//! waits in its namespace until brodo serves its interface.

use crate::args::Run;
use crate::failure::Failure;
use crate::log;
use crate::option_values::Isolate;
use crate::pid_file;
use crate::resume::descriptor::Keep;
use crate::resume::state::{SavedGuest, State};
use crate::serve::{Guest, Preparation, Purpose, Renounced, Service};
use brodo_netns::broker_process;
use brodo_netns::namespace::{Identity, Isolation, Session, fresh, interface_of};
use brodo_netns::process::{Child, Signals};
use brodo_netns::promotion;
use brodo_netns::setup::resolv_conf;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::ffi::OsString;

/// Runs the command; the result is its exit status. `line` is brodo's own command line.
pub(crate) fn run(options: &Run, line: Vec<OsString>) -> Result<u8, Failure> {
    let preparation = Preparation::new(&options.network, line)?;
    let settings = &preparation.settings;
    let session = Session {
        command: command(options),
        identity: if options.keep_user { Identity::Keep } else { Identity::Root },
        // Without a DNS server of its own the guest keeps the host's.
        resolv_conf: (!settings.dns.is_empty()).then(|| resolv_conf(&settings.dns, &settings.stack.search)),
        isolation: options.isolate.map(|isolate| Isolation {
            processes: isolate == Isolate::All,
            host_name: options.hostname.clone(),
        }),
    };
    let child = fresh(&settings.plan, &session, Signals::block()?)?;
    // Meanwhile the child makes its interface; a failure there may be why there is no broker.
    let broker = preparation.broker(|confinement| broker_process::beside(&child, confinement));
    let (made, broker) = (interface_of(&child)?, broker?);
    log::info("made namespaces for the command", &[]);
    let promotion = preparation.promotion(|place, confinement| promotion::beside(&child, place, confinement));
    let mut service = preparation.serve(made, broker, promotion, purpose(options))?;
    service.watch(child.as_fd())?;
    // Before the command, which an error would kill in its midst.
    service.write_pid_file()?;
    or_without_pid_file(options, serve_from_start(service, child, options))
}

/// Removes the PID file after a failure.
fn or_without_pid_file(options: &Run, result: Result<u8, Failure>) -> Result<u8, Failure> {
    if result.is_err() {
        options.network.pid_file.as_deref().map(pid_file::remove);
    }
    result
}

/// Starts the command and serves it.
fn serve_from_start(mut service: Service, child: Child, options: &Run) -> Result<u8, Failure> {
    child.start()?;
    service.announce()?;
    log::info("started the command", &[("command", purpose(options).target.into())]);
    serve(service, child)
}

/// Goes on with a command that another program of this process has started.
pub(crate) fn resume(options: &Run, state: &State, child: Child) -> Result<u8, Failure> {
    let resumed = || {
        let mut service = Service::resume(state, &options.network, purpose(options), Renounced::default())?;
        service.watch(child.as_fd())?;
        serve(service, child)
    };
    or_without_pid_file(options, resumed())
}

fn serve(mut service: Service, mut child: Child) -> Result<u8, Failure> {
    let Some(status) = service.run(&mut child)? else {
        // A deleted interface is the command's right, and it may have other things to do.
        log::info("the command has deleted its network interface, and has no network any more", &[]);
        service.end_network();
        let status = wait_for(&mut child)?;
        return Ok(service.end(status));
    };
    service.leave_interface();
    log::info("the command has ended", &[("status", status.into())]);
    Ok(service.end(status))
}

impl Guest for Child {
    type End = u8;

    fn check(&mut self) -> Result<Option<u8>, Failure> {
        Ok(self.handle()?)
    }

    fn signals(&self) -> &Signals {
        self.signals()
    }

    fn save<'a>(&'a self, kept: &mut Keep<'a>) -> SavedGuest {
        let [handoff, signals] = self.descriptors().map(|descriptor| kept.note(descriptor));
        SavedGuest::Command { pid: self.pid().as_raw_pid(), handoff, signals }
    }

    fn child(&self) -> Option<i32> {
        Some(self.pid().as_raw_pid())
    }
}

/// Waits for the command without a network to serve.
fn wait_for(child: &mut Child) -> Result<u8, Failure> {
    loop {
        if let Some(status) = child.handle()? {
            return Ok(status);
        }
        match poll(&mut [PollFd::new(child, PollFlags::IN)], None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(Failure::Io("wait for the command: poll".into(), errno.into())),
        }
    }
}

/// The command, by default the user's shell.
fn command(options: &Run) -> Vec<OsString> {
    let shell = || std::env::var_os("SHELL").filter(|shell| !shell.is_empty());
    match options.command.as_slice() {
        [] => vec![shell().unwrap_or_else(|| "/bin/sh".into())],
        given => given.to_vec(),
    }
}

fn purpose(options: &Run) -> Purpose {
    let words: Vec<_> = command(options).iter().map(|word| word.to_string_lossy().into_owned()).collect();
    Purpose { command: "run", target: words.join(" ") }
}
