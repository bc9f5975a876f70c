//! `brodo attach`: an interface in an existing namespace, served until the namespace is gone, in the
//! foreground or as a daemon ([`crate::daemon`]); or a TAP that brodo was started with, by its descriptor.

use crate::args::Attach;
use crate::daemon::{Begun, Daemon};
use crate::engine::launch::GuestSide;
use crate::failure::Failure;
use crate::log;
use crate::option_values::BulkOption;
use crate::resume::Process;
use crate::resume::descriptor::{self, Keep};
use crate::resume::state::{SavedGuest, State};
use crate::run_as::RunAs;
use crate::serve::{Guest, Preparation, Purpose, Renounced, Service, inherited};
use crate::systemd;
use crate::unmet;
use brodo_netns::broker_process;
use brodo_netns::namespace::{FileIdentity, Target, TargetEnd, Watch, attach as make_interface};
use brodo_netns::process::Signals;
use brodo_netns::promotion;
use rustix::fd::AsFd;
use std::ffi::OsString;

/// Serves the target until its end, or until a signal. `line` is brodo's own command line.
pub(crate) fn attach(options: &Attach, line: Vec<OsString>) -> Result<u8, Failure> {
    check(options).map_err(Failure::Usage)?;
    options.run_as.map_or(Ok(()), RunAs::check)?;
    let kept: Vec<_> = options.exit_fd.into_iter().chain(options.tap_fd).collect();
    let daemon = match options.daemon.then(|| Daemon::begin(&options.network, &kept)).transpose()? {
        Some(Begun::Parent { status }) => return Ok(status),
        Some(Begun::Child(daemon)) => {
            systemd::silence();
            Some(daemon)
        }
        None => None,
    };
    let exit = options.exit_fd.map(|number| inherited("--exit-fd", number)).transpose()?;
    let tap = options.tap_fd.map(|number| inherited("--tap-fd", number)).transpose()?;
    let preparation = match daemon {
        Some(_) => Preparation::without_pid_file(&options.network, line),
        None => Preparation::new(&options.network, line),
    };
    let preparation = preparation?.becoming(options.run_as);
    let target = match (&options.netns, options.pid) {
        (Some(path), _) => Some(Target::path(path, options.userns.as_deref())?),
        (None, Some(pid)) => Some(Target::process(pid)?),
        (None, None) => None,
    };
    let signals = Signals::block()?;
    let side = match (tap, &target) {
        (Some(tap), _) => GuestSide::Interface { taps: vec![tap], watch: None },
        (None, Some(target)) => {
            let made = make_interface(&preparation.settings.plan, target)?;
            log::info("entered the target's namespace and left it again", &[]);
            made.into()
        }
        (None, None) => return Err(Failure::Usage("attach needs a PID, --netns PATH or --tap-fd N".into())),
    };
    let broker = target.as_ref().map(|target| {
        preparation.broker(|confinement| broker_process::inside(target, systemd::bond(), confinement))
    });
    let broker = broker.transpose()?.flatten();
    let promotion = target.as_ref().filter(|_| side.is_made()).map(|target| {
        preparation.promotion(|place, confinement| promotion::inside(target, place, confinement))
    });
    let watch = match target {
        Some(target) => target.watch(signals),
        None => Watch::resume(TargetEnd::Unknown, signals),
    };
    let watch = watch.outliving(options.outlive_target).ending_with(exit);
    let watch = if options.network.sandbox { watch.holding_directory()? } else { watch };
    let service = preparation.serve(side, broker, promotion.unwrap_or_default(), purpose(options))?;
    let mut service = service.with_store().following(is_followed(options))?;
    for descriptor in watch.descriptors() {
        service.watch(descriptor)?;
    }
    daemon.as_ref().map_or(Ok(()), Daemon::ready)?;
    service.announce()?;
    if let Some(daemon) = daemon {
        daemon.announced();
    }
    serve(service, watch)
}

/// Options that a TAP which exists already, or one without a namespace that brodo knows, leaves no meaning.
fn check(options: &Attach) -> Result<(), String> {
    if options.tap_fd.is_none() {
        return Ok(());
    }
    unmet::interface(&options.network, "--tap-fd is one that is there already")?;
    if options.network.workers.is_some_and(|workers| workers > 1) {
        return Err("--workers: the descriptor of --tap-fd is one queue, for one worker".to_owned());
    }
    if options.network.bulk == BulkOption::Kernel {
        return Err(
            "--bulk kernel needs an interface that brodo makes, and --tap-fd is one that is there".into()
        );
    }
    if options.pid.is_none() && options.netns.is_none() {
        return unmet::namespace(&options.network, "name its process too, or its path by --netns");
    }
    Ok(())
}

/// Goes on with a target that another program has attached to, in this process or in one that was killed.
pub(crate) fn resume(options: &Attach, state: &State, watch: Watch, process: Process) -> Result<u8, Failure> {
    let watch = watch.outliving(options.outlive_target);
    let renounced = match process {
        Process::Same => Renounced::default(),
        Process::New => Renounced { sandbox: options.network.sandbox, run_as: options.run_as },
    };
    let watch = if renounced.sandbox { watch.holding_directory()? } else { watch };
    if options.daemon {
        systemd::silence();
    }
    let service = Service::resume(state, &options.network, purpose(options), renounced)?;
    let mut service = service.with_store().following(is_followed(options))?;
    for descriptor in watch.descriptors() {
        service.watch(descriptor)?;
    }
    descriptor::close_rest();
    service.announce()?;
    serve(service, watch)
}

fn serve(mut service: Service, mut watch: Watch) -> Result<u8, Failure> {
    // A deleted interface ends it too: nothing is left to serve.
    service.run(&mut watch)?;
    log::info("the target is gone, or brodo was asked to end", &[]);
    Ok(service.end(0))
}

impl Guest for Watch {
    type End = ();

    fn check(&mut self) -> Result<Option<()>, Failure> {
        Ok(self.ended()?.then_some(()))
    }

    fn signals(&self) -> &Signals {
        self.signals()
    }

    fn save<'a>(&'a self, kept: &mut Keep<'a>) -> SavedGuest {
        let signals = kept.note(self.signals().as_fd());
        let exit = self.exit().map(|exit| kept.note(exit));
        match self.target() {
            TargetEnd::Process(process) => {
                SavedGuest::Process { process: kept.note(process.as_fd()), signals, exit }
            }
            TargetEnd::Unknown => SavedGuest::Tap { signals, exit },
            TargetEnd::Path { path, identity: FileIdentity { device, inode }, timer, deletions } => {
                let (path, timer) = (path.clone(), kept.note(timer.as_fd()));
                let deletions = deletions.as_ref().map(|notices| kept.note(notices.as_fd()));
                SavedGuest::Path { path, device: *device, inode: *inode, timer, deletions, signals, exit }
            }
        }
    }

    fn child(&self) -> Option<i32> {
        None
    }
}

/// Whether its starter may move it to another control group: podman does.
fn is_followed(options: &Attach) -> bool {
    options.daemon || options.netns.is_some()
}

fn purpose(options: &Attach) -> Purpose {
    let target = match (&options.netns, options.pid) {
        (Some(path), _) => path.display().to_string(),
        (None, Some(pid)) => format!("process {pid}"),
        (None, None) => format!("descriptor {}", options.tap_fd.unwrap_or_default()),
    };
    Purpose { command: "attach", target }
}
