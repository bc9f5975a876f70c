//! Connections to the monitor, found by a thread of the warden and passed to the engine; and the state of a
//! link, kept for the next engine ([`crate::conversation::connections`]).
//!
//! The engine requests each connection that it wants: the first, and the next after a loss. The thread takes
//! a request from the channel only after the connection has gone the other way, so that it outlives the
//! thread when another program takes the warden's place. When there is no further connection, the channel is
//! shut down, by which the engine knows.
//!
//! *Superseded requests.* The channel outlives engines: the request of one that has ended without an answer
//! is still in it when the next one sends its own. Only the last has an answer. Another one would wait for a
//! second monitor, with the first one connected and states of its link not read.
//!
//! *After a crash* the next engine's request is answered by what the last one has had kept, if the monitor
//! has not closed that connection. It stays kept until an engine has another one kept or this one forgotten,
//! so a crash that comes soon again does not cost the connection. An engine that cannot go on with it has it
//! forgotten, and so does one that begins without flows: a state by which engines crash is gone with the
//! third of them (`warden/restarts.rs`).
//!
//! *Datagrams.* No event reports that a monitor which sends datagrams is gone, so while there is one the
//! thread looks for its end every [`LOOK`].
//!
//! *Trust.* A state is the engine's, and is not looked into here: its bounds are those of a message.

use super::monitor::Monitor;
use crate::conversation::connections::{FORGET, KEEP, LOST, MESSAGE_MAX, REQUEST};
use brodo_net::fd_passing::{self, DESCRIPTORS_MAX};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{Errno, ioctl_fionread, retry_on_intr};
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, shutdown};
use rustix::time::Timespec;
use std::io;
use std::sync::Arc;
use std::thread;

/// Time between two looks for a monitor's end.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };

/// The thread's state.
pub(super) struct Connector {
    monitor: Arc<Monitor>,
    channel: Arc<OwnedFd>,
    kept: Option<Kept>,
}

/// A message of the engine's with the state of its link.
struct Kept {
    message: Vec<u8>,
    /// The connection first.
    descriptors: Vec<OwnedFd>,
}

impl Kept {
    /// Whether the monitor has not closed the connection.
    fn goes_on(&self) -> bool {
        let Some(connection) = self.descriptors.first() else { return false };
        let mut polled = [PollFd::new(connection, PollFlags::RDHUP)];
        retry_on_intr(|| poll(&mut polled, Some(&Timespec::default()))) == Ok(0)
    }
}

impl Connector {
    /// Starts the thread, which ends with the channel or the process.
    ///
    /// # Errors
    /// No thread can be made.
    pub(super) fn start(monitor: Arc<Monitor>, channel: Arc<OwnedFd>) -> io::Result<()> {
        let connector = Self { monitor, channel, kept: None };
        thread::Builder::new().name("connector".into()).spawn(move || connector.run()).map(drop)
    }

    fn run(mut self) {
        // If it was another program's, an engine serves.
        let _ = self.send(&[LOST], &[]);
        while self.serve().is_ok() {}
        // The engine has ended, or is to see the end: a request that is left unread would make a reset of it.
        let _ = shutdown(&*self.channel, Shutdown::Both);
        while recv(&*self.channel, &mut [0; 1][..], RecvFlags::DONTWAIT).is_ok_and(|(_, length)| length > 0) {
        }
    }

    /// Waits for a message, and does what it demands.
    ///
    /// # Errors
    /// There is no further connection, or the channel has ended.
    fn serve(&mut self) -> Result<(), Errno> {
        while self.monitor.ends_unseen() {
            let mut polled = [PollFd::new(&*self.channel, PollFlags::IN)];
            if retry_on_intr(|| poll(&mut polled, Some(&LOOK)))? > 0 {
                break;
            }
            self.monitor.look();
        }
        if self.peek()? == REQUEST {
            self.connect()?;
        }
        self.receive()
    }

    /// Waits for a message, which is left where it is; its kind, or 0 at the end of the channel.
    fn peek(&self) -> Result<u8, Errno> {
        let mut kind = [0; 1];
        retry_on_intr(|| recv(&*self.channel, &mut kind[..], RecvFlags::PEEK))?;
        Ok(kind[0])
    }

    /// Takes all messages but the last one, and waits until that is a request.
    fn supersede(&mut self) -> Result<(), Errno> {
        // Of a socket with message boundaries it is the length of all messages (unix_inq_len), and a request
        // is a single byte.
        while self.peek()? != REQUEST || ioctl_fionread(&*self.channel)? > 1 {
            self.receive()?;
        }
        Ok(())
    }

    /// Takes a message, and keeps or forgets a state if it says so.
    fn receive(&mut self) -> Result<(), Errno> {
        let mut message = vec![0; MESSAGE_MAX];
        let received =
            fd_passing::receive(&*self.channel, &mut message, DESCRIPTORS_MAX, RecvFlags::empty())?;
        message.truncate(received.length);
        match message.first() {
            Some(&REQUEST) => {}
            Some(&KEEP) => self.kept = Some(Kept { message, descriptors: received.descriptors }),
            Some(&FORGET) => self.kept = None,
            _ => return Err(Errno::PROTO),
        }
        Ok(())
    }

    /// Passes a connection on: the one that is kept, or the next one.
    fn connect(&mut self) -> Result<(), Errno> {
        self.supersede()?;
        self.kept.take_if(|kept| !kept.goes_on());
        if let Some(Kept { message, descriptors }) = &self.kept {
            return self.send(message, descriptors);
        }
        let connection = self.monitor.next().ok_or(Errno::NOTCONN)?;
        // Engines may have come and gone meanwhile.
        self.supersede()?;
        self.send(&[REQUEST], &[connection])
    }

    fn send(&self, message: &[u8], descriptors: &[OwnedFd]) -> Result<(), Errno> {
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        fd_passing::send(&*self.channel, message, &descriptors, SendFlags::empty()).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::connections::channel;
    use crate::conversation::lines::pair;
    use rustix::net::{SocketType, send};

    /// The engine's end of a thread whose monitor has one connection, and the monitor's end of that.
    fn bed() -> (OwnedFd, OwnedFd) {
        let (ours, monitor) = pair(SocketType::STREAM).expect("a pair");
        let (warden, engine) = channel().expect("a pair");
        let monitor_of = Arc::new(Monitor::connected(ours));
        Connector::start(monitor_of, Arc::new(warden)).expect("a thread");
        assert_eq!(answer(&engine).expect("said at the start").0, [LOST]);
        (engine, monitor)
    }

    /// The next message to the engine.
    fn answer(engine: &OwnedFd) -> Option<(Vec<u8>, Vec<OwnedFd>)> {
        let mut message = vec![0; MESSAGE_MAX];
        let received =
            fd_passing::receive(engine, &mut message, DESCRIPTORS_MAX, RecvFlags::empty()).expect("answered");
        message.truncate(received.length);
        (received.length > 0).then_some((message, received.descriptors))
    }

    fn ask(engine: &OwnedFd) -> Option<(Vec<u8>, Vec<OwnedFd>)> {
        send(engine, &[REQUEST], SendFlags::empty()).expect("room");
        answer(engine)
    }

    /// An engine that has its connection kept with a state.
    fn kept() -> (OwnedFd, OwnedFd) {
        let (engine, monitor) = bed();
        let (kind, descriptors) = ask(&engine).expect("a connection");
        assert_eq!((kind, descriptors.len()), (vec![REQUEST], 1));
        fd_passing::send(&engine, &[KEEP, 7], &[descriptors[0].as_fd()], SendFlags::empty()).expect("room");
        (engine, monitor)
    }

    #[test]
    fn a_kept_connection_is_there_for_each_engine_until_it_is_forgotten() {
        let (engine, monitor) = kept();
        for _ in 0..3 {
            let (state, descriptors) = ask(&engine).expect("kept");
            assert_eq!((&state[..], descriptors.len()), (&[KEEP, 7][..], 1));
            send(&descriptors[0], b"x", SendFlags::empty()).expect("room");
            assert_eq!(recv(&monitor, &mut [0; 8][..], RecvFlags::empty()).map(|(len, _)| len), Ok(1));
        }
        send(&engine, &[FORGET], SendFlags::empty()).expect("room");
        assert!(ask(&engine).is_none(), "there is no other connection");
    }

    #[test]
    fn a_kept_connection_ends_with_its_monitor() {
        let (engine, monitor) = kept();
        assert!(ask(&engine).is_some());
        drop(monitor);
        assert!(ask(&engine).is_none());
    }

    /// Two engines have requested the monitor's first connection, of which the first ended before it came.
    #[test]
    fn several_requests_for_one_connection_have_one_answer() {
        let (ours, _monitor) = pair(SocketType::STREAM).expect("a pair");
        let (warden, engine) = channel().expect("a pair");
        for kind in [REQUEST, FORGET, REQUEST] {
            send(&engine, &[kind], SendFlags::empty()).expect("room");
        }
        Connector::start(Arc::new(Monitor::connected(ours)), Arc::new(warden)).expect("a thread");
        assert_eq!(answer(&engine).expect("said at the start").0, [LOST]);
        let (kind, descriptors) = answer(&engine).expect("a connection");
        assert_eq!((kind, descriptors.len()), (vec![REQUEST], 1));
        fd_passing::send(&engine, &[KEEP, 7], &[descriptors[0].as_fd()], SendFlags::empty()).expect("room");
        let (state, descriptors) = ask(&engine).expect("the channel has not ended");
        assert_eq!((&state[..], descriptors.len()), (&[KEEP, 7][..], 1));
    }
}
