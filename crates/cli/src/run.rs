//! `brodo run`: a command in namespaces of its own.
//!
//! Every check precedes the first change, and every step that can fail precedes the start of the command: it
//! waits in its namespace until brodo serves its interface.

use crate::args::Run;
use crate::failure::Failure;
use crate::log;
use crate::serve::{Preparation, Purpose};
use brodo_netns::broker_process;
use brodo_netns::namespace::{Identity, Session, fresh};
use brodo_netns::process::{Child, Signals};
use brodo_netns::setup::resolv_conf;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::ffi::OsString;

/// Runs the command; the result is its exit status.
pub(crate) fn run(options: &Run) -> Result<u8, Failure> {
    let preparation = Preparation::new(&options.network)?;
    let settings = &preparation.settings;
    let session = Session {
        command: if options.command.is_empty() { vec![shell()] } else { options.command.clone() },
        identity: if options.keep_user { Identity::Keep } else { Identity::Root },
        resolv_conf: resolv_conf(&settings.dns, &settings.stack.search),
    };
    let (made, mut child) = fresh(&settings.plan, &session, Signals::block()?)?;
    log::info("made namespaces for the command", &[]);
    let broker = preparation.broker(|| broker_process::beside(&child))?;
    let words: Vec<_> = session.command.iter().map(|word| word.to_string_lossy()).collect();
    let words = words.join(" ");
    let mut service = preparation.serve(made, broker, Purpose { command: "run", target: words.clone() })?;
    service.watch(child.as_fd())?;
    child.start()?;
    service.announce();
    log::info("started the command", &[("command", words.into())]);

    let served = service.run(|| Ok(child.handle()?))?;
    let Some(status) = served else {
        // A deleted interface is the command's right, and it may have other things to do.
        log::info("the command has deleted its network interface, and has no network any more", &[]);
        return wait_for(&mut child);
    };
    service.leave_interface();
    log::info("the command has ended", &[("status", status.into())]);
    Ok(status)
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

/// The user's shell.
fn shell() -> OsString {
    std::env::var_os("SHELL").filter(|shell| !shell.is_empty()).unwrap_or_else(|| "/bin/sh".into())
}
