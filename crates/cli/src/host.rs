//! `brodo engine-host`: in an upgrade, the new program as the warden's child, which makes the keeper of its
//! own engines.
//!
//! The warden cannot fork it: the code is to be the new program's. So it starts that program with its state
//! ([`crate::resume`]), as the warden itself will be started later, and a socket as standard input. The
//! program derives its settings from the state, makes the keeper as a child of the *warden's*
//! (`CLONE_PARENT`: the warden waits for it, and takes it along when it ends), says so and ends. The keeper
//! goes on with the socket, and waits for the first start as any keeper does ([`crate::engine::launch`]).
//!
//! It is a rehearsal too. A program that cannot read the state, or cannot make an engine, fails here, beside
//! a brodo that serves; the warden's execve comes after.

use crate::args::{Cli, Command, NetworkOptions};
use crate::config::{HostFacts, Settings};
use crate::conversation::host::Hosted;
use crate::engine::launch::{self, Attached, GuestSide, Launch};
use crate::failure::Failure;
use crate::option_values::Confine;
use crate::policy_file::PolicyFiles;
use crate::resume::state::{SavedOrigin, State};
use crate::systemd;
use brodo_core::config::Config;
use brodo_link::tap::interface_name as interface_name_of;
use brodo_net::clock::Clock;
use brodo_net::ephemeral_ports::ephemeral_ports;
use brodo_net::forward::Opening;
use brodo_net::processors;
use brodo_netns::process::{self, Signals};
use brodo_sandbox::{Confinement, Parent, spawn};
use clap::Parser;
use rustix::fd::OwnedFd;
use rustix::net::SendFlags;
use std::io::{self, ErrorKind};
use std::mem::ManuallyDrop;

/// The command line that a state came from, parsed.
///
/// # Errors
/// This version does not know an option, or gives it another meaning.
pub(crate) fn command_line(origin: &SavedOrigin) -> Result<Command, Failure> {
    let parsed = Cli::try_parse_from(&origin.words);
    let parsed = parsed.map_err(|error| Failure::Usage(crate::config_file::sentence(&error)))?;
    Ok(parsed.command.settled())
}

/// The settings that a state came from.
///
/// # Errors
/// This version does not accept them.
pub(crate) fn settings(origin: &SavedOrigin, options: &NetworkOptions) -> Result<Settings, Failure> {
    let host = HostFacts {
        ipv6: origin.ipv6,
        resolv_conf: origin.names.clone().into(),
        policy: PolicyFiles::of(origin.policy.clone())?,
        template: origin.template.clone(),
    };
    Settings::new(options, &host).map_err(Failure::Usage)
}

/// The descriptors of the way to the guest.
///
/// # Errors
/// One is missing.
pub(crate) fn attached(state: &State) -> io::Result<Attached> {
    let saved = &state.interface;
    let side = match &saved.channel {
        None if !saved.taps.is_empty() => {
            let taps = saved.taps.iter().map(|tap| tap.take()).collect::<Result<_, _>>()?;
            GuestSide::Interface { taps, watch: saved.watch.as_ref().map(|watch| watch.take()).transpose()? }
        }
        Some(channel) => match command_line(&state.origin) {
            Ok(Command::Vm(options)) => {
                let (protocol, workers) = (options.protocol(), options.workers());
                GuestSide::Monitor { channel: channel.take()?, protocol, workers }
            }
            _ => return Err(ErrorKind::InvalidData.into()),
        },
        None => return Err(ErrorKind::InvalidData.into()),
    };
    Ok(Attached { side, own_sockets: saved.own_sockets.clone() })
}

/// Name of the guest's interface, for people and captures, of a TAP that brodo was started with as its kernel
/// has it; that of a machine is the guest's own affair.
pub(crate) fn interface_name(settings: &Settings, side: &GuestSide) -> String {
    match side {
        GuestSide::Interface { watch: Some(_), .. } => settings.plan.interface.name.clone(),
        GuestSide::Interface { taps, watch: None } => {
            taps.first().and_then(interface_name_of).unwrap_or_else(|| "tap".to_owned())
        }
        GuestSide::Monitor { .. } => "vm".to_owned(),
    }
}

/// Engines with these settings.
pub(crate) fn launch_of(settings: &Settings, confine: Confine, clock: Clock, attached: Attached) -> Launch {
    let made = matches!(attached.side, GuestSide::Interface { watch: Some(_), .. });
    let self_configured = !(made && settings.plan.interface.configured);
    Launch {
        config: Config { self_configured, ..settings.stack.clone() },
        clock,
        busy_poll: settings.busy_poll,
        processors: processors(),
        local_peers: settings.local_peers,
        outbound: settings.outbound.clone(),
        follow: settings.follow,
        ephemeral_ports: ephemeral_ports(),
        interface: interface_name(settings, &attached.side),
        offload: settings.plan.offload,
        attached,
        confinement: confine.into(),
    }
}

/// Listening sockets with these settings.
pub(crate) fn opening_of(settings: &Settings, confine: Confine) -> Opening {
    let Confinement { stages, .. } = confine.into();
    Opening { freebind: settings.freebind, owner: brodo_sandbox::other_user(stages) }
}

/// Makes the keeper and reports it; the exit status.
pub(crate) fn host(state: Result<State, Failure>) -> u8 {
    let Ok(warden) = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3) else { return 1 };
    let made = state.and_then(|state| make_keeper(&state, &warden));
    let (keeper, failure) = match made {
        Ok(pid) => (Some(pid), None),
        Err(failure) => (None, Some(failure.to_string())),
    };
    let hosted = Hosted { version: env!("CARGO_PKG_VERSION").to_owned(), keeper, failure };
    // Infallible: string keys only.
    let text = serde_json::to_vec(&hosted).unwrap_or_default();
    // Without the warden there is no reader.
    u8::from(rustix::net::send(&warden, &text, SendFlags::NOSIGNAL).is_err())
}

fn make_keeper(state: &State, warden: &OwnedFd) -> Result<i32, Failure> {
    let failed = |call| Failure::io(format!("start an engine: {call}"));
    // Keys typed at the terminal are not meant for engines; what the warden blocks was unblocked here.
    let _blocked = ManuallyDrop::new(Signals::block()?);
    process::block_file_size_signal()?;
    let options = match command_line(&state.origin)? {
        Command::Run(run) => run.network,
        Command::Attach(attach) => attach.network,
        Command::Vm(vm) => vm.network,
        _ => return Err(Failure::Usage("the state is not that of a network".into())),
    };
    let settings = settings(&state.origin, &options)?;
    let attached = attached(state).map_err(failed("fcntl"))?;
    let launch = launch_of(&settings, options.confine, state.clock.into(), attached);
    let keeper = |report| launch::keep_engines(&launch, warden, report);
    let confined = spawn(launch.confinement.stages, Parent::OfCaller, systemd::bond(), keeper)
        .map_err(failed("clone"))?;
    Ok(confined.pid().as_raw_pid())
}
