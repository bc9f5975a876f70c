//! Requests to the agent and its answers: messages of one size each, with at most one descriptor.
//!
//! ```text
//! request   kind  number (8 bytes)  seed, or zeroes             descriptor of a socket, for most kinds
//! answer    kind  number            stage  errno (4 bytes)      descriptor if there is a new one
//! ```
//!
//! The number is the client's, and comes back with the answer; the kinds `Release`, `Adopt` and `Channel`
//! have none. That of answers to `Divert` and `Rejoin` is the agent's: datagrams that the queue has dropped
//! since it was made.
//!
//! *Flow control.* A request waits for room in the channel, as the caller sees fit ([`ask`] does not wait on
//! a channel that does not block). An answer does not: the agent must go on whatever a client does. A client
//! has no more than [`UNDER_WAY_MAX`] requests under way, and one that takes no answers loses its channel.

use super::{FLOWS_MAX, seed};
use crate::fd_passing;
use brodo_core::promotion::TcpSeed;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

/// Kinds of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Make = 1,
    Start,
    Freeze,
    Thaw,
    Release,
    /// A client goes on with a socket that another one had, which has ended.
    Adopt,
    /// The first client passes a further channel.
    Channel,
    /// Datagrams of the guest's go to the queue of their own, which is the descriptor of the answer; none if
    /// the client has it already.
    Divert,
    /// Datagrams of the guest's go to its interface again.
    Rejoin,
}

impl Kind {
    const ALL: [Self; 9] = [
        Self::Make,
        Self::Start,
        Self::Freeze,
        Self::Thaw,
        Self::Release,
        Self::Adopt,
        Self::Channel,
        Self::Divert,
        Self::Rejoin,
    ];

    /// Whether the agent answers such a request.
    pub(super) fn is_answered(self) -> bool {
        !matches!(self, Self::Release | Self::Adopt | Self::Channel)
    }

    fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// Step of a request that the agent or the kernel has refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Stage {
    /// The request itself: its seed, an address that is not the guest's, or a socket not made by the agent.
    Request,
    /// There are too many promoted flows.
    Number,
    /// The socket, its options and its addresses.
    Socket,
    /// Sequence numbers, windows, options of the handshake: TCP_REPAIR.
    Repair,
    /// The set of steered 4-tuples.
    Steering,
}

impl Stage {
    const ALL: [Self; 5] = [Self::Request, Self::Number, Self::Socket, Self::Repair, Self::Steering];

    /// The refusal of this step by an errno.
    pub(super) fn refusal(self, errno: Errno) -> Refused {
        Refused { stage: self, errno }
    }
}

/// A refused request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// The step.
    pub stage: Stage,
    /// The reason.
    pub errno: Errno,
}

/// A request as the agent receives it.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) kind: Kind,
    pub(super) number: u64,
    pub(super) seed: [u8; seed::LEN],
    pub(super) descriptor: Option<OwnedFd>,
}

/// An answer as the client receives it.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) kind: Kind,
    pub(super) number: u64,
    pub(super) result: Result<Option<OwnedFd>, Refused>,
}

/// Most requests of a client without an answer yet: a channel has room for as many answers. A flow has one or
/// two, for its start, or for its return and its end.
pub(super) const UNDER_WAY_MAX: usize = 2 * FLOWS_MAX;

const REQUEST_LEN: usize = 1 + 8 + seed::LEN;
const ANSWER_LEN: usize = 1 + 8 + 1 + 4;

/// A message of exactly `N` bytes, with its descriptor.
struct Received<const N: usize> {
    bytes: [u8; N],
    descriptor: Option<OwnedFd>,
}

/// Reads a message; `None` at the end of the conversation.
fn receive<const N: usize>(channel: BorrowedFd<'_>) -> Result<Option<Received<N>>, Errno> {
    let mut bytes = [0; N];
    let mut received = fd_passing::receive(channel, &mut bytes, 1, RecvFlags::empty())?;
    match received.length {
        0 => Ok(None),
        length if length == N => Ok(Some(Received { bytes, descriptor: received.descriptors.pop() })),
        _ => Err(Errno::BADMSG),
    }
}

/// Sends a request.
pub(super) fn ask(
    channel: BorrowedFd<'_>,
    kind: Kind,
    number: u64,
    seed: Option<&TcpSeed>,
    descriptor: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    let mut bytes = [0; REQUEST_LEN];
    bytes[0] = kind as u8;
    bytes[1..9].copy_from_slice(&number.to_ne_bytes());
    if let Some(seed) = seed {
        bytes[9..].copy_from_slice(&seed::encode(seed));
    }
    fd_passing::send(channel, &bytes, descriptor.as_slice(), SendFlags::empty()).map(drop)
}

impl Request {
    /// In the agent: the next request.
    pub(super) fn receive(channel: BorrowedFd<'_>) -> Result<Option<Self>, Errno> {
        let Some(Received { bytes, descriptor }) = receive::<REQUEST_LEN>(channel)? else { return Ok(None) };
        let kind = Kind::from_byte(bytes[0]).ok_or(Errno::BADMSG)?;
        let (mut number, mut seed) = ([0; 8], [0; seed::LEN]);
        number.copy_from_slice(&bytes[1..9]);
        seed.copy_from_slice(&bytes[9..]);
        Ok(Some(Self { kind, number: u64::from_ne_bytes(number), seed, descriptor }))
    }
}

impl Answer {
    /// In the agent: answers, without a wait.
    ///
    /// # Errors
    /// `AGAIN`: the client has not taken its answers before ([`UNDER_WAY_MAX`]).
    pub(super) fn send(&self, channel: BorrowedFd<'_>) -> Result<(), Errno> {
        let (stage, errno, descriptor) = match &self.result {
            Ok(descriptor) => (0, 0, descriptor.as_ref()),
            Err(Refused { stage, errno }) => (*stage as u8, errno.raw_os_error(), None),
        };
        let mut bytes = [0; ANSWER_LEN];
        bytes[0] = self.kind as u8;
        bytes[1..9].copy_from_slice(&self.number.to_ne_bytes());
        bytes[9] = stage;
        bytes[10..].copy_from_slice(&errno.to_ne_bytes());
        let descriptor = descriptor.map(AsFd::as_fd);
        fd_passing::send(channel, &bytes, descriptor.as_slice(), SendFlags::DONTWAIT).map(drop)
    }

    /// The next answer; `None` at the end of the conversation.
    pub(super) fn receive(channel: BorrowedFd<'_>) -> Result<Option<Self>, Errno> {
        let Some(Received { bytes, descriptor }) = receive::<ANSWER_LEN>(channel)? else { return Ok(None) };
        let kind = Kind::from_byte(bytes[0]).ok_or(Errno::BADMSG)?;
        let (mut number, mut errno) = ([0; 8], [0; 4]);
        number.copy_from_slice(&bytes[1..9]);
        errno.copy_from_slice(&bytes[10..]);
        let result = match i32::from_ne_bytes(errno) {
            0 => Ok(descriptor),
            errno if errno > 0 => {
                let stage = *Stage::ALL.get(usize::from(bytes[9])).ok_or(Errno::BADMSG)?;
                Err(stage.refusal(Errno::from_raw_os_error(errno)))
            }
            _ => return Err(Errno::BADMSG),
        };
        Ok(Some(Self { kind, number: u64::from_ne_bytes(number), result }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    #[test]
    fn a_channel_has_room_for_the_answers_to_all_requests_under_way_and_refuses_more() {
        let (client, agent) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("pair");
        let answer = |number| {
            // Answers with a descriptor are the largest.
            let result = Ok(Some(client.try_clone().expect("a copy")));
            Answer { kind: Kind::Make, number, result }.send(agent.as_fd())
        };
        for number in 0..UNDER_WAY_MAX as u64 {
            assert_eq!(answer(number), Ok(()), "{number}");
        }
        let refused = (0..1 << 20).find_map(|number| answer(number).err());
        assert_eq!(refused, Some(Errno::AGAIN));
    }
}
