//! The program that takes the place of another brodo in its process: from the state to a guest in service.
//!
//! The other half of [`crate::resume`]: `run` and `attach` go on where those of the program before have
//! stopped, with their guest and their settings.

use crate::args::{Attach, Command, Run, Vm};
use crate::failure::Failure;
use crate::host::command_line;
use crate::resume::Process;
use crate::resume::descriptor::{Descriptor, taken};
use crate::resume::state::{SavedGuest, State};
use crate::{attach, log, run, vm};
use brodo_netns::namespace::{FileIdentity, TargetEnd, Watch};
use brodo_netns::process::{self, Child, Signals};
use rustix::process::Pid;
use std::io::{self, ErrorKind};
use std::mem::ManuallyDrop;

/// Goes on with the work of another process, which was killed ([`crate::store`]); the exit status.
pub(crate) fn go_on_elsewhere(state: &State) -> Result<u8, Failure> {
    // That of the state is read, which reports the signals of the process that reads it.
    let _blocked = ManuallyDrop::new(Signals::block()?);
    process::block_file_size_signal()?;
    go_on_in(Process::New, state)
}

/// Goes on with the work of the program that was this process before; the exit status.
pub(crate) fn go_on(state: &State) -> Result<u8, Failure> {
    go_on_in(Process::Same, state)
}

fn go_on_in(process: Process, state: &State) -> Result<u8, Failure> {
    // The kernel names a process after the file that was executed, here a number.
    let _ = rustix::thread::set_name(c"brodo");
    let command = command_line(&state.origin)?;
    if let Command::Run(Run { network, .. })
    | Command::Attach(Attach { network, .. })
    | Command::Vm(Vm { network, .. }) = &command
    {
        log::set_format(network.log);
        if network.syslog {
            log::open_syslog();
        }
        if let Some(path) = &state.log_file {
            // Without it the network goes on.
            let _ = log::reopen_file(path, network.log_file_size(), taken(state.pipes.log_file));
        }
    }
    let failed = |error: io::Error| Failure::Io("go on with the work of another brodo: fcntl".into(), error);
    let watch = |end, signals: &Descriptor, exit: &Option<Descriptor>| {
        let signals = signals.take().map_err(failed)?;
        let exit = exit.as_ref().map(|exit| exit.take()).transpose().map_err(failed)?;
        Ok::<_, Failure>(Watch::resume(end, Signals::resume(signals)).ending_with(exit))
    };
    match (&command, &state.guest) {
        (Command::Run(options), SavedGuest::Command { pid, handoff, signals }) => {
            let pid = Some(*pid).filter(|&pid| pid > 0).and_then(Pid::from_raw);
            let pid = pid.ok_or_else(|| failed(ErrorKind::InvalidData.into()))?;
            let (handoff, signals) = (handoff.take().map_err(failed)?, signals.take().map_err(failed)?);
            run::resume(options, state, Child::resume(pid, handoff, Signals::resume(signals)))
        }
        (Command::Attach(options), SavedGuest::Process { process: target, signals, exit }) => {
            let end = TargetEnd::Process(target.take().map_err(failed)?);
            attach::resume(options, state, watch(end, signals, exit)?, process)
        }
        (
            Command::Attach(options),
            SavedGuest::Path { path, device, inode, timer, deletions, signals, exit },
        ) => {
            let identity = FileIdentity { device: *device, inode: *inode };
            let end = TargetEnd::Path {
                path: path.clone(),
                identity,
                timer: timer.take().map_err(failed)?,
                deletions: deletions.as_ref().map(|it| it.take()).transpose().map_err(failed)?,
            };
            attach::resume(options, state, watch(end, signals, exit)?, process)
        }
        (Command::Attach(options), SavedGuest::Tap { signals, exit }) => {
            attach::resume(options, state, watch(TargetEnd::Unknown, signals, exit)?, process)
        }
        (Command::Vm(options), SavedGuest::Monitor(saved)) => vm::resume(options, state, saved),
        _ => Err(Failure::Usage("the state of the other brodo is not that of a network".to_owned())),
    }
}
