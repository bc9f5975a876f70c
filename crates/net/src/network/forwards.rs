//! Forwards of a network that is built, recovered or restored.

use super::{Basis, Builder, NetworkError, guest};
use crate::forward::{ForwardError, Forwards, ForwardsMax};
use crate::sockets::Sockets;
use brodo_link::GuestLink;

/// Receiver of [`Builder::on_refused_forward`].
pub(super) type Receiver = Box<dyn FnMut(ForwardError) + Send>;

impl<L> Builder<L> {
    /// Receiver of forwards that cannot be put in force, which otherwise end [`Builder::build`]: for a
    /// network that goes on where another one was, and serves the guest without them rather than not at all.
    pub fn on_refused_forward(mut self, receiver: impl FnMut(ForwardError) + Send + 'static) -> Self {
        self.on_refused_forward = Some(Box::new(receiver));
        self
    }
}

impl<L: GuestLink> Builder<L> {
    /// The forwards of the first worker, none of which is in force yet.
    pub(super) fn no_forwards(&mut self, sockets: &Sockets, basis: &Basis) -> Result<Forwards, NetworkError> {
        let Basis { descriptors, ports, .. } = basis;
        let max = ForwardsMax {
            descriptors: usize::try_from(descriptors.limit).unwrap_or(usize::MAX),
            splices: descriptors.splices_max as usize,
        };
        let mut forwards =
            Forwards::new(guest(&self.config, self.local_peers), self.broker.take(), sockets, ports, max)
                .map_err(NetworkError::io("wait for ports: epoll_ctl"))?;
        if let Some(opener) = self.opener.take() {
            forwards.open_by(opener);
        }
        forwards.leave_out(&self.not_followed);
        Ok(forwards)
    }

    /// Puts the forwards in force that are not yet.
    pub(super) fn add_forwards(&mut self, forwards: &mut Forwards) -> Result<(), NetworkError> {
        for forward in std::mem::take(&mut self.forwards) {
            match (forwards.add(forward), &mut self.on_refused_forward) {
                (Ok(_), _) => {}
                (Err(error), Some(receiver)) => receiver(error),
                (Err(error), None) => return Err(NetworkError::Forward(error)),
            }
        }
        Ok(())
    }
}
