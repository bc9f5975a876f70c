//! A source of one connection that outlives the links of crashed processes, for tests: it keeps a link's
//! state as the warden does.

use super::{Arrival, Connections, KeptLink};
use crate::SavedLink;
use rustix::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

/// A source that outlives the links of crashed processes. Clones are the same source.
#[derive(Clone)]
pub(crate) struct Outliving {
    first: Arc<Mutex<Option<OwnedFd>>>,
    kept: Arc<Mutex<Option<KeptLink>>>,
}

impl Outliving {
    /// A source of this connection.
    pub(crate) fn of(socket: OwnedFd) -> Self {
        Self { first: Arc::new(Mutex::new(Some(socket))), kept: Arc::default() }
    }

    /// State kept for the next link, to be looked at or changed.
    pub(crate) fn kept(&self) -> MutexGuard<'_, Option<KeptLink>> {
        self.kept.lock().expect("no panic")
    }

    pub(crate) fn keeps(&self) -> bool {
        self.kept().is_some()
    }
}

impl Connections for Outliving {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn request(&mut self) {}

    fn take(&mut self) -> Arrival {
        let kept = self.kept().as_ref().map(|KeptLink { bytes, descriptors }| {
            let descriptors = descriptors.iter().map(|fd| fd.try_clone().expect("dup")).collect();
            Arrival::Kept(KeptLink { bytes: bytes.clone(), descriptors })
        });
        let first = || self.first.lock().expect("no panic").take().map(Arrival::Connected);
        kept.or_else(first).unwrap_or(Arrival::Pending)
    }

    fn keep(&mut self, state: &SavedLink<'_>) {
        let descriptors = state.descriptors.iter().map(|fd| fd.try_clone_to_owned().expect("dup")).collect();
        *self.kept() = Some(KeptLink { bytes: state.bytes.clone(), descriptors });
    }

    fn forget(&mut self) -> bool {
        *self.kept() = None;
        true
    }
}
