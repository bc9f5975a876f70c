//! `brodo attach`: an interface in an existing namespace, served until the namespace is gone.

use crate::args::Attach;
use crate::failure::Failure;
use crate::log;
use crate::resume::descriptor::Keep;
use crate::resume::state::{SavedGuest, State};
use crate::serve::{Guest, Preparation, Purpose, Service};
use brodo_netns::broker_process;
use brodo_netns::namespace::{FileIdentity, Target, TargetEnd, Watch, attach as make_interface};
use brodo_netns::process::Signals;
use rustix::fd::AsFd;
use std::ffi::OsString;

/// Serves the target until its end, or until a signal. `line` is brodo's own command line.
pub(crate) fn attach(options: &Attach, line: Vec<OsString>) -> Result<u8, Failure> {
    let preparation = Preparation::new(&options.network, line)?;
    let target = match (&options.netns, options.pid) {
        (Some(path), _) => Target::path(path, options.userns.as_deref())?,
        (None, Some(pid)) => Target::process(pid)?,
        (None, None) => return Err(Failure::Usage("attach needs a PID or --netns PATH".into())),
    };
    let signals = Signals::block()?;
    let made = make_interface(&preparation.settings.plan, &target)?;
    log::info("entered the target's namespace and left it again", &[]);
    let broker = preparation.broker(|| broker_process::inside(&target))?;
    let watch = target.watch(signals);
    let mut service = preparation.serve(made, broker, purpose(options))?;
    for descriptor in watch.descriptors() {
        service.watch(descriptor)?;
    }
    service.announce();
    serve(service, watch)
}

/// Goes on with a target that another program of this process has attached to.
pub(crate) fn resume(options: &Attach, state: &State, watch: Watch) -> Result<u8, Failure> {
    let mut service = Service::resume(state, &options.network, purpose(options))?;
    for descriptor in watch.descriptors() {
        service.watch(descriptor)?;
    }
    serve(service, watch)
}

fn serve(mut service: Service, mut watch: Watch) -> Result<u8, Failure> {
    // A deleted interface ends it too: nothing is left to serve.
    service.run(&mut watch)?;
    log::info("the target is gone, or brodo was asked to end", &[]);
    Ok(0)
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
        match self.target() {
            TargetEnd::Process(process) => {
                SavedGuest::Process { process: kept.note(process.as_fd()), signals }
            }
            TargetEnd::Path { path, identity: FileIdentity { device, inode }, timer } => {
                let (path, timer) = (path.clone(), kept.note(timer.as_fd()));
                SavedGuest::Path { path, device: *device, inode: *inode, timer, signals }
            }
        }
    }

    fn child(&self) -> Option<i32> {
        None
    }
}

fn purpose(options: &Attach) -> Purpose {
    let target = match (&options.netns, options.pid) {
        (Some(path), _) => path.display().to_string(),
        (None, pid) => format!("process {}", pid.unwrap_or_default()),
    };
    Purpose { command: "attach", target }
}
