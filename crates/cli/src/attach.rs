//! `brodo attach`: an interface in an existing namespace, served until the namespace is gone.

use crate::args::Attach;
use crate::failure::Failure;
use crate::log;
use crate::serve::{Preparation, Purpose};
use brodo_netns::broker_process;
use brodo_netns::namespace::{Target, attach as make_interface};
use brodo_netns::process::Signals;

/// Serves the target until its end, or until a signal.
pub(crate) fn attach(options: &Attach) -> Result<u8, Failure> {
    let preparation = Preparation::new(&options.network)?;
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
    let target = match (&options.netns, options.pid) {
        (Some(path), _) => path.display().to_string(),
        (None, pid) => format!("process {}", pid.unwrap_or_default()),
    };
    let mut service = preparation.serve(made, broker, Purpose { command: "attach", target })?;
    for descriptor in watch.descriptors() {
        service.watch(descriptor)?;
    }
    service.announce();
    // A deleted interface ends it too: nothing is left to serve.
    service.run(|| Ok(watch.ended()?.then_some(())))?;
    log::info("the target is gone, or brodo was asked to end", &[]);
    Ok(0)
}
