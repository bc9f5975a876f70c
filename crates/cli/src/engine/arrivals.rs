//! Connections to a virtual machine's monitor, requested of the warden: the engine can neither listen at a
//! path nor connect to one ([`crate::vm`]). The warden also keeps what the next engine needs to go on with a
//! connection after a crash of this one.

use crate::conversation::connections::{FORGET, KEEP, LOST, MESSAGE_MAX, REQUEST};
use brodo_link::SavedLink;
use brodo_link::connections::{Arrival, Connections, KeptLink};
use brodo_net::fd_passing::{self, DESCRIPTORS_MAX};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

/// The engine's end of the channel to the warden's thread.
#[derive(Debug)]
pub(super) struct Arrivals {
    channel: OwnedFd,
    /// Before the first request: whether what an engine before has left is gone on with.
    goes_on: Option<bool>,
    /// The connection that an engine before has requested and not received.
    inherited: Option<OwnedFd>,
}

/// A message of the warden's.
struct Message {
    kind: u8,
    bytes: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

impl Arrivals {
    /// By this channel; `goes_on` for an engine that goes on with what the one before has left.
    pub(super) fn new(channel: OwnedFd, goes_on: bool) -> Self {
        Self { channel, goes_on: Some(goes_on), inherited: None }
    }

    /// Begins where the engine before has ended, whose messages may still be in the channel: a connection is
    /// taken or closed, and a state is asked for anew.
    fn begin(&mut self, goes_on: bool) {
        while let Ok(Message { kind, mut descriptors, .. }) = self.receive() {
            if goes_on && kind == REQUEST {
                self.inherited = descriptors.pop().or(self.inherited.take());
            }
        }
        if !goes_on {
            self.send(&[FORGET], &[]);
        }
    }

    fn send(&self, message: &[u8], descriptors: &[BorrowedFd<'_>]) -> bool {
        fd_passing::send(&self.channel, message, descriptors, SendFlags::empty()).is_ok()
    }

    /// The next message, or its absence for now or for ever.
    fn receive(&self) -> Result<Message, Arrival> {
        let mut bytes = vec![0; MESSAGE_MAX];
        match fd_passing::receive(&self.channel, &mut bytes, DESCRIPTORS_MAX, RecvFlags::DONTWAIT) {
            Ok(received) if received.length > 0 => {
                bytes.truncate(received.length);
                let kind = bytes.remove(0);
                Ok(Message { kind, bytes, descriptors: received.descriptors })
            }
            Err(Errno::AGAIN) => Err(Arrival::Pending),
            Ok(_) | Err(_) => Err(Arrival::Ended),
        }
    }
}

impl Connections for Arrivals {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.channel.as_fd())
    }

    fn request(&mut self) {
        // Errors here: the other end is shut down, which shows in `take`.
        if let Some(goes_on) = self.goes_on.take() {
            self.begin(goes_on);
        }
        // A request beside it would be for a further one.
        if self.inherited.is_none() {
            self.send(&[REQUEST], &[]);
        }
    }

    fn take(&mut self) -> Arrival {
        if let Some(connection) = self.inherited.take() {
            return Arrival::Connected(connection);
        }
        loop {
            match self.receive() {
                Ok(Message { kind: KEEP, bytes, descriptors }) => {
                    return Arrival::Kept(KeptLink { bytes, descriptors });
                }
                Ok(Message { kind: LOST, .. }) => {}
                Ok(Message { mut descriptors, .. }) => match descriptors.pop() {
                    Some(connection) => return Arrival::Connected(connection),
                    // Descriptors are short here: the connection is lost, and the next one is requested.
                    None => self.request(),
                },
                Err(arrival) => return arrival,
            }
        }
    }

    fn wants_state(&mut self) -> bool {
        self.receive().is_ok_and(|message| message.kind == LOST)
    }

    fn keep(&mut self, state: &SavedLink<'_>) {
        let message = [&[KEEP], state.bytes.as_slice()].concat();
        // A state that is too large, or that the warden does not take, is not kept: a crash then costs the
        // connection.
        if message.len() <= MESSAGE_MAX {
            self.send(&message, &state.descriptors);
        }
    }

    fn forget(&mut self) -> bool {
        self.send(&[FORGET], &[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::connections::channel;
    use crate::conversation::lines::pair;
    use rustix::net::SocketType;
    use std::thread;

    #[test]
    fn state_is_forgotten_when_the_warden_has_room_for_it_again() {
        let (warden, engine) = channel().expect("socketpair");
        while fd_passing::send(&engine, &[KEEP; 1024], &[], SendFlags::DONTWAIT).is_ok() {}
        let mut arrivals = Arrivals::new(engine, true);
        let link = thread::spawn(move || arrivals.forget());
        let mut message = [0; 1024];
        while fd_passing::receive(&warden, &mut message, 0, RecvFlags::empty()).is_ok_and(|m| m.length > 0) {}
        assert!(link.join().expect("no panic"));
    }

    /// The warden's end of a channel in which a connection waits for an engine that has ended, and the
    /// engine's end after it.
    fn answered_before(goes_on: bool) -> (OwnedFd, Arrivals) {
        let (warden, engine) = channel().expect("socketpair");
        let (socket, _monitor) = pair(SocketType::STREAM).expect("socketpair");
        for (message, descriptors) in [(LOST, vec![]), (REQUEST, vec![socket.as_fd()])] {
            fd_passing::send(&warden, &[message], &descriptors, SendFlags::empty()).expect("room");
        }
        (warden, Arrivals::new(engine, goes_on))
    }

    /// Kinds of the messages to the warden.
    fn said(warden: &OwnedFd) -> Vec<u8> {
        let mut kind = [0];
        let next = || fd_passing::receive(warden, &mut kind, 0, RecvFlags::DONTWAIT).ok().map(|_| kind[0]);
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn an_engine_that_goes_on_has_the_connection_that_was_sent_to_the_one_before() {
        let (warden, mut arrivals) = answered_before(true);
        arrivals.request();
        assert!(matches!(arrivals.take(), Arrival::Connected(_)));
        assert!(said(&warden).is_empty(), "a request would be for a further one");
        arrivals.request();
        assert!(matches!(arrivals.take(), Arrival::Pending));
        assert_eq!(said(&warden), [REQUEST]);
    }

    #[test]
    fn an_engine_that_begins_anew_has_nothing_of_the_one_before() {
        let (warden, mut arrivals) = answered_before(false);
        arrivals.request();
        assert!(matches!(arrivals.take(), Arrival::Pending));
        assert_eq!(said(&warden), [FORGET, REQUEST]);
    }
}
