//! The socket broker's process: forked, moved into the guest's namespaces, confined.
//!
//! ```text
//! brodo                                   broker
//!                        <-- Go or Failed --    joined, confined
//! ```
//!
//! then the conversation of [`brodo_net::socket_broker`]. A child forked before any thread joins the guest's
//! user and network namespaces (not its mounts and processes) and gives up every right.
//!
//! *Privileges.* It holds the pair and nothing else, has no capability in any namespace, and the guest's root
//! can neither trace it nor read its memory (it is not dumpable, and its memory belongs to the host's user
//! namespace). The rest is a list of some ten system calls
//! ([`system_calls`]).
//!
//! *Its life.* It ends when brodo's end of the pair is closed, and the kernel kills it when brodo ends in any
//! other way, unless it is to outlive brodo ([`Bond::Conversation`]). As a member of the guest's namespaces
//! it keeps nothing alive: `attach` ends when the target does, as without it. Every signal is blocked, so
//! that keys typed at the terminal do not reach it.
//!
//! System calls: socketpair, fork, setns, prctl, capset, `close_range`, seccomp; those of
//! [`brodo_net::socket_broker`].

pub mod system_calls;

use crate::handoff::Message;
use crate::namespace::{self, Target};
use crate::process::{self, Child, forget_words, raw};
use crate::setup::{SetupError, Step};
use brodo_net::socket_broker::{SocketBroker, serve};
use brodo_sandbox::{Bond, Confinement};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use rustix::thread::{CapabilitySet, CapabilitySets};
use std::io::IoSlice;

/// A broker in the namespaces of a command of [`namespace::fresh`]. Only before there are threads.
pub fn beside(child: &Child, confinement: Confinement) -> Result<SocketBroker, SetupError> {
    inside(&Target::process(child.pid().as_raw_pid())?, Bond::Life, confinement)
}

/// A broker in an existing namespace. Only before there are threads.
pub fn inside(target: &Target, bond: Bond, confinement: Confinement) -> Result<SocketBroker, SetupError> {
    let brodo = rustix::process::getpid();
    let (pid, handoff) = namespace::fork(|handoff| {
        target.enter()?;
        // Not earlier: the kernel forgets it when a process changes its credentials.
        if bond == Bond::Life {
            process::die_with_parent(brodo)?;
        }
        let fail = |errno| SetupError::new(Step::Confine, errno, "");
        let channel = confine(handoff.as_fd(), confinement).map_err(fail)?;
        serve(channel);
        Ok(())
    })?;
    let channel = namespace::served_channel(pid, handoff)?;
    SocketBroker::new(pid, channel).map_err(|errno| SetupError::new(Step::Channel, errno, ""))
}

/// In the broker: gives up everything but the channel.
fn confine(channel: BorrowedFd<'_>, confinement: Confinement) -> Result<OwnedFd, Errno> {
    raw::block_all()?;
    let channel = channel.try_clone_to_owned().map_err(|_| Errno::MFILE)?;
    let [channel] = raw::close_all_but([channel])?;
    // Otherwise it would hold the mount that brodo was started in.
    let _ = rustix::process::chdir("/");
    let _ = rustix::thread::set_name(c"brodo-broker");
    forget_words()?;
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    rustix::thread::set_no_new_privs(true)?;
    let none = CapabilitySet::empty();
    rustix::thread::set_capabilities(
        None,
        CapabilitySets { effective: none, permitted: none, inheritable: none },
    )?;
    process::allow_only(confinement, &system_calls::listed())?;
    let mut control = SendAncillaryBuffer::default();
    let go = IoSlice::new(&[Message::GO]);
    sendmsg(&channel, &[go], &mut control, SendFlags::NOSIGNAL)?;
    Ok(channel)
}
