//! Readiness for a service manager: the sd_notify protocol of systemd.
//!
//! A manager that starts brodo with `Type=notify` names a socket in `NOTIFY_SOCKET` and waits there for
//! `READY=1`, so that units ordered after brodo find the interface up. `STATUS` is the line that `systemctl
//! status` shows. `STOPPING=1` comes before the end, which may take as long as a capture or a flow log needs
//! to be written.
//!
//! The variable stays in the environment of a command of `brodo run`: the manager decides by `NotifyAccess`
//! whether messages of other processes than brodo count. A brodo in the background sends none: the
//! manager that its caller talks to, podman for example, waits for the caller's readiness ([`silence`]).

use crate::log;
use sd_notify::NotifyState;
use std::sync::atomic::{AtomicBool, Ordering};

static SILENT: AtomicBool = AtomicBool::new(false);

/// Sends no message from now on.
pub(crate) fn silence() {
    SILENT.store(true, Ordering::Relaxed);
}

/// The interface is up; `status` is one line for people.
pub(crate) fn ready(status: &str) {
    send(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// The end has begun.
pub(crate) fn stopping() {
    send(&[NotifyState::Stopping]);
}

/// A message; nothing without a manager.
fn send(states: &[NotifyState<'_>]) {
    if SILENT.load(Ordering::Relaxed) {
        return;
    }
    if let Err(error) = sd_notify::notify(states) {
        log::info("the service manager cannot be notified", &[("error", error.to_string().into())]);
    }
}
