//! Listening sockets for the engine: it may not bind, so the warden does, one request at a time.
//!
//! A request is a message of JSON, the reply another with the descriptor. The warden checks that one of the
//! forwards in force can lead to the requested place.

use crate::conversation::lines;
use crate::conversation::listen::{Listen, Listening, MESSAGE_MAX, Refused};
use brodo_net::fd_passing;
use brodo_net::forward::{ForwardError, ListenSpec, Opener};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::net::SocketAddr;
use std::time::Duration;

/// Longest wait for the warden.
const PATIENCE: Duration = Duration::from_secs(10);

/// Opens listening sockets by way of the warden.
pub(super) fn opener(warden: OwnedFd) -> Opener {
    Box::new(move |place| {
        let fail = |refused: Refused| ForwardError::Socket {
            direction: place.direction,
            transport: place.transport,
            at: SocketAddr::new(place.address, place.port),
            interface: place.interface.clone(),
            call: refused.call.into(),
            errno: Errno::from_raw_os_error(refused.errno),
        };
        let lost = |errno: Errno| Refused { call: "sendmsg".to_owned(), errno: errno.raw_os_error() };
        match ask(&warden, place) {
            Ok((Listening { failure: None }, Some(socket))) => Ok(socket),
            Ok((Listening { failure: Some(refused) }, _)) => Err(fail(refused)),
            Ok((Listening { failure: None }, None)) => Err(fail(lost(Errno::MFILE))),
            Err(errno) => Err(fail(lost(errno))),
        }
    })
}

fn ask(warden: &OwnedFd, place: &ListenSpec) -> Result<(Listening, Option<OwnedFd>), Errno> {
    let request = serde_json::to_vec(&Listen::from(place)).unwrap_or_default();
    lines::send(warden.as_fd(), &request, None, PATIENCE).map_err(|_| Errno::PIPE)?;
    let patience = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    match poll(&mut [PollFd::new(warden, PollFlags::IN)], Some(&patience)) {
        Ok(0) => return Err(Errno::TIMEDOUT),
        Ok(_) | Err(Errno::INTR) => {}
        Err(errno) => return Err(errno),
    }
    let mut bytes = [0; MESSAGE_MAX];
    let received = fd_passing::receive(warden, &mut bytes, 1, RecvFlags::empty())?;
    let reply = serde_json::from_slice(&bytes[..received.length]).map_err(|_| Errno::BADMSG)?;
    Ok((reply, received.descriptors.into_iter().next()))
}
