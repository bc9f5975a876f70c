//! Descriptor store of a service manager: the state of `brodo attach` for the brodo that is started after it
//! was killed.
//!
//! systemd keeps descriptors for a service with `FileDescriptorStoreMax=` and passes them on when it starts
//! the service again. There lie the same descriptors and the same [`State`] as pass on in an upgrade in place
//! ([`crate::resume`]): the descriptors under their numbers, `fd-22`, the state in a sealed memfd, `state-3`
//! for the third. Keeper, engine, broker and promotion agent outlive brodo ([`Bond::Conversation`]) because
//! their conversations do: they go on serving, and the next brodo goes on with the conversations. When the
//! manager drops the store, because the service was stopped or has failed too often, they end.
//!
//! *Order.* New descriptors, then the state that names them, then the removal of all that this state does not
//! name. After its start a brodo that goes on empties the store and fills it anew, under its own numbers. One
//! that is killed in between leaves no state, and the next begins from the beginning.
//!
//! *A state that cannot be used* is discarded, and this brodo ends with a failure, so that the manager starts
//! another from the beginning: the interface of the old one is there until the manager has closed its queues.
//!
//! *Conversations.* The one that was killed may have sent or received a part of a line. The next begins with
//! empty lines, and skips all replies up to those to them (`warden/client.rs`).
//!
//! [`Bond::Conversation`]: brodo_sandbox::Bond::Conversation

use crate::failure::{Failure, plain};
use crate::log;
use crate::resume::descriptor::{self, Keep};
use crate::resume::state::State;
use crate::{resume, systemd};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::collections::BTreeMap;
use std::io;

const DESCRIPTOR: &str = "fd-";
const STATE: &str = "state-";

/// A file that a number stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    fn of(descriptor: BorrowedFd<'_>) -> io::Result<Self> {
        let stat = rustix::fs::fstat(descriptor)?;
        Ok(Self { device: stat.st_dev, inode: stat.st_ino })
    }
}

/// Descriptors of this process that the manager keeps.
#[derive(Debug, Default)]
pub(crate) struct Store {
    /// By number.
    descriptors: BTreeMap<i32, Identity>,
    /// Number of the last state, and its text.
    state: Option<(u64, serde_json::Value)>,
    failed: bool,
}

impl Store {
    /// A store, if the manager has one for this service.
    pub(crate) fn of_manager() -> Option<Self> {
        (systemd::bond() == brodo_sandbox::Bond::Conversation).then(Self::default)
    }

    /// Has the manager keep this state, unless it does. A failure is said once; everything else goes on.
    pub(crate) fn keep(&mut self, state: &State, kept: &Keep<'_>) {
        if self.failed {
            return;
        }
        if let Err(error) = self.try_keep(state, kept) {
            self.failed = true;
            let why = plain(&error);
            log::warn("the service manager cannot keep descriptors", &[("error", why.into())]);
        }
    }

    fn try_keep(&mut self, state: &State, kept: &Keep<'_>) -> io::Result<()> {
        let text = comparable(state)?;
        let mut present = BTreeMap::new();
        for descriptor in kept.descriptors() {
            present.insert(descriptor.as_raw_fd(), (Identity::of(*descriptor)?, *descriptor));
        }
        let same = |number: &i32, identity| self.descriptors.get(number) == Some(identity);
        let new: Vec<_> = present.iter().filter(|(number, (it, _))| !same(number, it)).collect();
        if new.is_empty() && self.state.as_ref().is_some_and(|(_, last)| *last == text) {
            return Ok(());
        }
        if present.len() + 2 > systemd::store_size() {
            let wanted = present.len() + 2;
            return Err(io::Error::other(format!("FileDescriptorStoreMax= must be {wanted} at least")));
        }
        for &(number, (identity, descriptor)) in &new {
            if self.descriptors.insert(*number, *identity).is_some() {
                systemd::discard(&format!("{DESCRIPTOR}{number}"))?;
            }
            systemd::keep(&format!("{DESCRIPTOR}{number}"), *descriptor)?;
        }
        let last = self.state.as_ref().map(|(number, _)| *number);
        let number = last.unwrap_or(0) + 1;
        systemd::keep(&format!("{STATE}{number}"), resume::written(state)?.as_fd())?;
        self.state = Some((number, text));
        if let Some(last) = last {
            systemd::discard(&format!("{STATE}{last}"))?;
        }
        let gone: Vec<i32> =
            self.descriptors.keys().filter(|it| !present.contains_key(it)).copied().collect();
        for number in gone {
            self.descriptors.remove(&number);
            systemd::discard(&format!("{DESCRIPTOR}{number}"))?;
        }
        Ok(())
    }

    /// Has the manager close everything: brodo ends.
    pub(crate) fn empty(&mut self) {
        let states = self.state.take().map(|(number, _)| format!("{STATE}{number}"));
        let descriptors = std::mem::take(&mut self.descriptors).into_keys();
        discard_all(states.into_iter().chain(descriptors.map(|number| format!("{DESCRIPTOR}{number}"))));
    }
}

/// A state without what changes all the time, and is of no use to another process.
fn comparable(state: &State) -> io::Result<serde_json::Value> {
    let mut state = serde_json::to_value(state)?;
    for changing in ["/engine/last_id", "/engine/requests/pending", "/engine/records/pending"] {
        if let Some(value) = state.pointer_mut(changing) {
            *value = serde_json::Value::Null;
        }
    }
    Ok(state)
}

fn discard_all(names: impl Iterator<Item = String>) {
    for name in names {
        // Without the manager there is no store.
        let _ = systemd::discard(&name);
    }
}

/// The state that the brodo before has left with the manager, if there is one. It is in the store no more.
///
/// # Errors
/// It cannot be used.
pub(crate) fn take() -> Result<Option<State>, Failure> {
    let kept = systemd::kept();
    let numbered = |name: &str, prefix| name.strip_prefix(prefix)?.parse::<u64>().ok();
    if !kept.iter().any(|(name, _)| numbered(name, STATE).is_some()) {
        return Ok(None);
    }
    discard_all(kept.iter().map(|(name, _)| name.clone()));
    let (mut descriptors, mut last) = (BTreeMap::new(), None::<(u64, OwnedFd)>);
    for (name, descriptor) in kept {
        if let Some(number) = numbered(&name, STATE) {
            if last.as_ref().is_none_or(|(last, _)| *last < number) {
                last = Some((number, descriptor));
            }
        } else if let Some(number) = numbered(&name, DESCRIPTOR) {
            descriptors.insert(number as i32, descriptor);
        }
    }
    descriptor::take_from(descriptors);
    last.map(|(_, memory)| resume::read_from(memory)).transpose()
}
