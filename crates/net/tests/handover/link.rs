//! A channel link that several networks hold, as processes hold duplicates of a TAP's descriptor.

use brodo_core::link::{Link, LinkCaps, NoCredit, TxFrame};
use brodo_link::batch::Batch;
use brodo_link::poller::Poller;
use brodo_link::{CreditWait, EventFlags, FailedCall, GuestLink, LinkReady, Taken};
use brodo_net::channel::ChannelLink;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Clone)]
pub(crate) struct SharedLink(Arc<Mutex<ChannelLink>>);

impl SharedLink {
    pub(crate) fn new(link: ChannelLink) -> Self {
        Self(Arc::new(Mutex::new(link)))
    }

    fn link(&self) -> MutexGuard<'_, ChannelLink> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Link for SharedLink {
    fn caps(&self) -> LinkCaps {
        self.link().caps()
    }

    fn send(&mut self, frame: &TxFrame<'_>) -> Result<(), NoCredit> {
        self.link().send(frame)
    }
}

impl GuestLink for SharedLink {
    fn register(&mut self, poller: Poller<'_>) -> io::Result<()> {
        self.link().register(poller)
    }

    fn ready(&mut self, key: u32, events: EventFlags) -> LinkReady {
        self.link().ready(key, events)
    }

    fn take(&mut self, batch: &mut Batch<'_>) -> Result<Taken, FailedCall> {
        self.link().take(batch)
    }

    fn credit_wait(&self) -> Option<CreditWait> {
        self.link().credit_wait()
    }

    fn await_credit(&mut self, poller: Poller<'_>, awaited: bool) -> io::Result<()> {
        self.link().await_credit(poller, awaited)
    }

    fn forget_refusal(&mut self) {
        self.link().forget_refusal();
    }

    fn gone(&self) -> bool {
        self.link().gone()
    }
}
