//! Descriptor passing: messages with descriptors beside them (`SCM_RIGHTS`, unix(7)), both directions.
//!
//! Every conversation of this system in which descriptors change hands is a Unix socket and these two
//! functions: set-up of a namespace, the socket broker, starts of the engine, its requests and its listening
//! sockets. The receiver bounds both parts. A longer message is an error, not its beginning. Descriptors
//! beyond the limit are closed: by the kernel, which installs no more than the buffer for control messages
//! has room for, and the one or two that its alignment lets through by [`receive`]. Fewer may come than were
//! sent, because the kernel omits those that the receiver's RLIMIT_NOFILE forbids: the caller, who knows the
//! expected number, checks it. Received descriptors are close-on-exec, and closed if they are not used.
//!
//! On a stream the descriptors of a call arrive with its first byte; bytes behind them may be received by the
//! next call, bytes before them never by the same.
//!
//! *Descriptors that are not wanted.* A process that was taken over can send a socket with SO_LINGER whose
//! peer reads nothing: the last process that closes it sleeps until its bytes are acknowledged, for as long
//! as SO_LINGER says. That is the receiver, whether it takes the descriptor, has no room for it, or closes
//! the conversation. So an end to which no descriptors are to come refuses them ([`refuse`]), if the kernel
//! can.
//!
//! Calls that a signal interrupts are made again. System calls: sendmsg, recvmsg, setsockopt `SO_PASSRIGHTS`.

use crate::sys;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;

/// Most descriptors of a message: as many as the kernel takes (`SCM_MAX_FD`).
pub const DESCRIPTORS_MAX: usize = 253;

const CONTROL_SIZE: usize = rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX));

/// A received message, whose bytes are in the caller's buffer.
#[derive(Debug)]
pub struct Received {
    /// Number of bytes; 0 at the end of the conversation.
    pub length: usize,
    /// Descriptors, in the sender's order.
    pub descriptors: Vec<OwnedFd>,
}

/// Sends a message with descriptors, without SIGPIPE; on a stream perhaps only its beginning, with all
/// descriptors. Returns the number of bytes sent.
///
/// # Errors
/// `TOOMANYREFS`: more than [`DESCRIPTORS_MAX`] descriptors. The kernel's refusal otherwise.
pub fn send(
    socket: impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); CONTROL_SIZE];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fits = descriptors.len() <= DESCRIPTORS_MAX
        && (descriptors.is_empty() || control.push(SendAncillaryMessage::ScmRights(descriptors)));
    if !fits {
        return Err(Errno::TOOMANYREFS);
    }
    let flags = flags | SendFlags::NOSIGNAL;
    retry_on_intr(|| sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, flags))
}

/// Refuses descriptors to this end of a pair of Unix sockets: a message with them fails with `PERM` at the
/// other end.
///
/// # Errors
/// `NOPROTOOPT` before Linux 6.16.
pub fn refuse(socket: impl AsFd) -> Result<(), Errno> {
    sys::refuse_descriptors(socket.as_fd())
}

/// Receives a message of at most `bytes.len()` bytes with at most `descriptors_max` descriptors.
///
/// # Errors
/// `MSGSIZE`: a longer message; it is lost, its descriptors are closed. The kernel's refusal otherwise.
pub fn receive(
    socket: impl AsFd,
    bytes: &mut [u8],
    descriptors_max: usize,
    flags: RecvFlags,
) -> Result<Received, Errno> {
    debug_assert!(descriptors_max <= DESCRIPTORS_MAX, "room for {DESCRIPTORS_MAX}");
    let mut space = [MaybeUninit::uninit(); CONTROL_SIZE];
    let room = rustix::cmsg_space!(ScmRights(descriptors_max)).min(CONTROL_SIZE);
    let mut control = RecvAncillaryBuffer::new(&mut space[..room]);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let received = retry_on_intr(|| recvmsg(&socket, &mut [IoSliceMut::new(bytes)], &mut control, flags))?;
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    let mut descriptors: Vec<OwnedFd> = rights.flatten().collect();
    descriptors.truncate(descriptors_max);
    if received.flags.contains(ReturnFlags::TRUNC) {
        return Err(Errno::MSGSIZE);
    }
    Ok(Received { length: received.bytes, descriptors })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("pair")
    }

    /// Inodes tell which descriptors have come; numbers do not.
    fn inode(fd: impl AsFd) -> u64 {
        rustix::fs::fstat(fd).expect("an open descriptor").st_ino
    }

    #[test]
    fn a_message_within_its_bounds_arrives_whole_and_in_order() {
        let (ours, theirs) = pair();
        let passed: Vec<OwnedFd> = (0..DESCRIPTORS_MAX).map(|_| pair().0).collect();
        let borrowed: Vec<_> = passed.iter().map(AsFd::as_fd).collect();
        for count in [0, 1, 2, 5, DESCRIPTORS_MAX] {
            assert_eq!(send(&ours, b"four", &borrowed[..count], SendFlags::empty()), Ok(4));
            let mut bytes = [0; 4];
            let received = receive(&theirs, &mut bytes, count, RecvFlags::empty()).expect("a message");
            assert_eq!((received.length, &bytes), (4, b"four"));
            let inodes: Vec<_> = received.descriptors.iter().map(inode).collect();
            assert_eq!(inodes, borrowed[..count].iter().map(inode).collect::<Vec<_>>());
        }
        drop(ours);
        let end = receive(&theirs, &mut [0; 4], 1, RecvFlags::empty()).expect("the end");
        assert_eq!((end.length, end.descriptors.len()), (0, 0));
    }

    #[test]
    fn an_end_that_refuses_descriptors_gets_bytes_alone() {
        let (ours, theirs) = pair();
        if refuse(&ours) == Err(Errno::NOPROTOOPT) {
            return;
        }
        assert_eq!(send(&theirs, b"x", &[theirs.as_fd()], SendFlags::empty()), Err(Errno::PERM));
        assert_eq!(send(&theirs, b"x", &[], SendFlags::empty()), Ok(1));
        assert_eq!(send(&ours, b"x", &[ours.as_fd()], SendFlags::empty()), Ok(1), "the other direction");
    }

    #[test]
    fn neither_bytes_nor_descriptors_come_beyond_their_bounds() {
        let (ours, theirs) = pair();
        let many: Vec<_> = (0..=DESCRIPTORS_MAX).map(|_| ours.as_fd()).collect();
        assert_eq!(send(&ours, b"x", &many, SendFlags::empty()), Err(Errno::TOOMANYREFS));
        for limit in 0..8 {
            send(&ours, b"x", &many[..8], SendFlags::empty()).expect("room");
            let received = receive(&theirs, &mut [0; 4], limit, RecvFlags::empty()).expect("a message");
            assert_eq!(received.descriptors.len(), limit);
        }
        send(&ours, b"longer", &many[..1], SendFlags::empty()).expect("room");
        let longer = receive(&theirs, &mut [0; 4], 1, RecvFlags::empty());
        assert_eq!(longer.map(|received| received.length), Err(Errno::MSGSIZE));
        let empty = receive(&theirs, &mut [0; 4], 1, RecvFlags::DONTWAIT);
        assert_eq!(empty.map(|received| received.length), Err(Errno::AGAIN));
    }
}
