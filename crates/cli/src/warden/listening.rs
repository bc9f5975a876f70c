//! Listening sockets opened for the engine.
//!
//! The request is hostile. A socket is opened only where a forward that the user has asked for can lead, so
//! an engine that was taken over listens nowhere else; and every program of the user may bind those places
//! too.
//!
//! A predecessor that is about to end, such as that of a container which is started anew, may still have a
//! port. Until the time given for that a named port is tried again.

use super::desired::Desired;
use crate::conversation::lines;
use crate::conversation::listen::{Listen, Listening, MESSAGE_MAX, Refused};
use brodo_net::forward::{self, ForwardError, ListenSpec, Opening};
use brodo_net::socket_broker::SocketBroker;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Longest wait for room in the socket of the reply.
const PATIENCE: Duration = Duration::from_millis(100);

/// Time after the start in which a port in use may become free.
pub(super) const GRACE: Duration = Duration::from_millis(300);
/// Interval of tries.
const RETRY_EVERY: Duration = Duration::from_millis(10);

/// Answers to requests while the warden waits for an engine, from two threads: to the engine that is asked
/// for its state, and to the next.
#[derive(Debug)]
pub(super) struct ListenService {
    desired: Arc<Mutex<Desired>>,
    broker: Mutex<Option<SocketBroker>>,
    grace_until: Instant,
}

impl ListenService {
    /// A service with this state, which opens sockets inside the guest by way of `broker`.
    pub(super) fn new(
        desired: Arc<Mutex<Desired>>,
        broker: Option<SocketBroker>,
        grace_until: Instant,
    ) -> Self {
        Self { desired, broker: Mutex::new(broker), grace_until }
    }

    /// The broker, at the end.
    pub(super) fn into_broker(self) -> Option<SocketBroker> {
        self.broker.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers one request.
    ///
    /// # Errors
    /// As [`serve`].
    pub(super) fn serve(&self, engine: &OwnedFd) -> io::Result<()> {
        let desired = self.desired.lock().unwrap_or_else(PoisonError::into_inner);
        let mut broker = self.broker.lock().unwrap_or_else(PoisonError::into_inner);
        serve(engine, &desired, broker.as_mut(), self.grace_until)
    }
}

/// Whether a conversation is over with this result of an answer.
pub(super) fn is_over(served: &io::Result<()>) -> bool {
    let goes_on = |error: &io::Error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted);
    served.as_ref().is_err_and(|error| !goes_on(error))
}

/// Answers one request.
///
/// # Errors
/// The engine has ended, or does not keep to the conversation.
pub(super) fn serve(
    engine: &OwnedFd,
    desired: &Desired,
    broker: Option<&mut SocketBroker>,
    grace_until: Instant,
) -> io::Result<()> {
    let mut bytes = [0; MESSAGE_MAX];
    let (count, _) = rustix::net::recv(engine, &mut bytes[..], RecvFlags::DONTWAIT)?;
    let request: Listen = serde_json::from_slice(bytes.get(..count).unwrap_or_default())?;
    let place = ListenSpec::from(request);
    let mut leading = desired.forwards.iter().filter(|forward| forward.may_listen(&place)).peekable();
    let opened = if leading.peek().is_some() {
        let named = leading.any(|forward| !forward.spec.is_optional());
        let until = if named { grace_until } else { Instant::now() };
        open(&place, desired.opening, broker, until).map_err(refused)
    } else {
        Err(Refused { call: "bind".to_owned(), errno: Errno::ACCESS.raw_os_error() })
    };
    let (socket, failure) = match opened {
        Ok(socket) => (Some(socket), None),
        Err(refused) => (None, Some(refused)),
    };
    let reply = serde_json::to_vec(&Listening { failure })?;
    if reply.len() > MESSAGE_MAX {
        return Err(ErrorKind::InvalidData.into());
    }
    lines::send(engine.as_fd(), &reply, socket.as_ref().map(AsFd::as_fd), PATIENCE)
}

/// Opens a socket; one in use is tried again until a time.
fn open(
    place: &ListenSpec,
    opening: Opening,
    mut broker: Option<&mut SocketBroker>,
    until: Instant,
) -> Result<OwnedFd, ForwardError> {
    loop {
        match forward::open(place, opening, broker.as_deref_mut()) {
            Err(ForwardError::Socket { errno: Errno::ADDRINUSE, .. }) if Instant::now() < until => {
                std::thread::sleep(RETRY_EVERY);
            }
            other => return other,
        }
    }
}

fn refused(error: ForwardError) -> Refused {
    match error {
        ForwardError::Socket { call, errno, .. } => {
            Refused { call: call.into_owned(), errno: errno.raw_os_error() }
        }
        ForwardError::Invalid(_) => Refused { call: "bind".to_owned(), errno: Errno::INVAL.raw_os_error() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use brodo_net::forward::{Forward, ForwardDirection, PortSharing, Transport};
    use rustix::net::SocketType;
    use std::net::Ipv4Addr;

    fn place(port: u16) -> ListenSpec {
        let address = Ipv4Addr::LOCALHOST.into();
        ListenSpec {
            direction: ForwardDirection::In,
            transport: Transport::Tcp,
            address,
            port,
            interface: None,
            shared: PortSharing::None,
        }
    }

    /// The reply to a request, and the number of descriptors with it.
    fn ask(forwards: &[&str], request: &[u8]) -> io::Result<Listening> {
        let (engine, warden) = lines::pair(SocketType::SEQPACKET)?;
        lines::send(engine.as_fd(), request, None, PATIENCE)?;
        let forward = |spec: &&str| Forward {
            direction: ForwardDirection::In,
            transport: Transport::Tcp,
            spec: spec.parse().expect("a specification"),
        };
        let desired = Desired { forwards: forwards.iter().map(forward).collect(), ..Desired::default() };
        serve(&warden, &desired, None, Instant::now())?;
        let mut bytes = [0; MESSAGE_MAX];
        let (count, _) = rustix::net::recv(&engine, &mut bytes[..], RecvFlags::empty())?;
        Ok(serde_json::from_slice(&bytes[..count])?)
    }

    fn listen(place: &ListenSpec) -> Vec<u8> {
        serde_json::to_vec(&Listen::from(place)).expect("JSON")
    }

    #[test]
    fn a_socket_is_opened_where_a_forward_leads_and_nowhere_else() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
        let port = free.port();
        let named = format!("127.0.0.1/{port}");
        let other_port = format!("127.0.0.1/{}", port ^ 1);
        let excluded = format!("all,~{port}");
        let refused = |forwards: &[&str]| ask(forwards, &listen(&place(port))).expect("a reply").failure;
        assert!(refused(&[&named]).is_none());
        assert!(refused(&["auto"]).is_none() && refused(&["all"]).is_none());
        for forwards in [&[] as &[&str], &[&other_port], &[&excluded], &["127.0.0.2/auto"]] {
            let failure = refused(forwards).expect("refused");
            assert_eq!(failure.errno, Errno::ACCESS.raw_os_error(), "{forwards:?}");
        }
        let udp = ListenSpec { transport: Transport::Udp, ..place(port) };
        assert!(ask(&[&named], &listen(&udp)).expect("a reply").failure.is_some());
        let in_the_guest = ListenSpec { direction: ForwardDirection::Out, ..place(port) };
        assert!(ask(&[&named], &listen(&in_the_guest)).expect("a reply").failure.is_some());
    }

    #[test]
    fn the_reason_of_a_refusal_is_the_kernel_s() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = taken.local_addr().expect("bound").port();
        let failure = ask(&["auto"], &listen(&place(port))).expect("a reply").failure.expect("refused");
        assert_eq!((failure.call.as_str(), failure.errno), ("bind", Errno::ADDRINUSE.raw_os_error()));
    }

    #[test]
    fn a_request_that_is_none_ends_the_conversation() {
        for wrong in [b"garbage".as_slice(), b"{}", &[0xff; 64]] {
            assert!(ask(&["auto"], wrong).is_err(), "{wrong:?}");
        }
    }
}
