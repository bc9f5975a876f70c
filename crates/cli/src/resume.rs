//! State of a warden for the program that takes its place in the same process: an upgrade in place.
//!
//! execve(2) keeps the process: its number, its children (the command, the keeper, the broker), its
//! descriptors as far as they are not close-on-exec, its blocked and pending signals. All else is in a
//! [`State`], JSON in a sealed memfd whose number is in the variable [`VARIABLE`]; arguments stay those that
//! the user gave.
//!
//! *Settings are not saved, but the words they came from*: the command line with the options of the
//! configuration file, and the two facts about the host that they depend on. Options are the interface that
//! changes least from version to version, and both programs derive settings from them by the same way as at
//! the start. Files are not read again: the user may be in the middle of changing them.
//!
//! *Compatibility.* [`State::format`] changes when a later program cannot read the state of an earlier one;
//! new fields have a default. A state of format 1 is among the tests.
//!
//! *Descriptors* stand in the state by number ([`descriptor`]). They lose close-on-exec for the moment of an
//! execve, and get it back if that fails. The warden makes no other process at that time.

pub(crate) mod descriptor;
pub(crate) mod state;

use crate::failure::Failure;
use brodo_sandbox::replace;
use descriptor::Keep;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};
use state::State;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::FileExt;

/// Variable with the numbers of two descriptors: of the state, and of the program's own file, which a script
/// is read from.
pub(crate) const VARIABLE: &str = "BRODO_STATE";
/// The first argument of a program that is to start the keeper of new engines, beside the warden.
pub(crate) const HOST: &str = "engine-host";
/// Longest state, in bytes: more than all that an engine can have the warden keep in it (`--learn`,
/// `--policy-fail`) takes with its escapes.
const STATE_MAX: u64 = 128 << 20;
/// Seals of the memfd of a state: it is what was written.
const SEALS: SealFlags =
    SealFlags::SEAL.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::WRITE);

/// The process in which the work goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Process {
    /// That of the program before, without the rights that it had given up.
    Same,
    /// A new one, with all rights of its start.
    New,
}

/// A state as a descriptor.
pub(crate) fn written(state: &State) -> io::Result<OwnedFd> {
    let memory = memfd_create("brodo-state", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut file = File::from(memory);
    file.write_all(&serde_json::to_vec(state)?)?;
    fcntl_add_seals(&file, SEALS)?;
    Ok(file.into())
}

/// The state that the program was started with, by the variable's value.
///
/// # Errors
/// It is none, or one of a format that this version does not know.
pub(crate) fn read(numbers: &str) -> Result<State, Failure> {
    let failed = |error: io::Error| Failure::Io("go on with the work of another brodo: read".into(), error);
    let take = |number: Option<&str>| {
        let number = number.and_then(|number| number.parse().ok()).ok_or(ErrorKind::InvalidInput)?;
        descriptor::inherited(number)
    };
    let mut numbers = numbers.split(',');
    let memory = take(numbers.next()).map_err(failed)?;
    // Of no more use.
    drop(take(numbers.next()).map_err(failed)?);
    read_from(memory)
}

/// The state in a memfd.
///
/// # Errors
/// As [`read`].
pub(crate) fn read_from(memory: OwnedFd) -> Result<State, Failure> {
    let failed = |error: io::Error| Failure::Io("go on with the work of another brodo: read".into(), error);
    if !fcntl_get_seals(&memory).is_ok_and(|seals| seals.contains(SEALS)) {
        return Err(failed(io::Error::new(ErrorKind::InvalidData, "it is not sealed")));
    }
    let file = File::from(memory);
    let length = file.metadata().map_err(failed)?.len();
    if length > STATE_MAX {
        return Err(failed(ErrorKind::FileTooLarge.into()));
    }
    // From the beginning, wherever the offset is, which all holders of the descriptor share.
    let mut bytes = vec![0; length as usize];
    file.read_exact_at(&mut bytes, 0).map_err(failed)?;
    State::parse(&bytes).map_err(Failure::Engine)
}

/// Environment of a program that gets a state.
pub(crate) fn environment(state: &OwnedFd, program: &File) -> Vec<(OsString, OsString)> {
    let others = std::env::vars_os().filter(|(name, _)| name != VARIABLE);
    let numbers = format!("{},{}", state.as_raw_fd(), program.as_raw_fd());
    others.chain([(VARIABLE.into(), numbers.into())]).collect()
}

/// The path by which an open program is executed: the file that was examined, and no other that has taken
/// its name since.
pub(crate) fn path_of(program: &File) -> OsString {
    format!("/proc/self/fd/{}", program.as_raw_fd()).into()
}

/// Executes `program` in the place of this one. Returns only if that fails, and then nothing has changed.
pub(crate) fn execute(program: &File, state: &State, kept: &Keep<'_>) -> io::Error {
    let memory = match written(state) {
        Ok(memory) => memory,
        Err(error) => return error,
    };
    let also = [memory.as_fd(), program.as_fd()];
    let arguments: Vec<_> = std::env::args_os().collect();
    match kept.across_execve(&also, || replace(&path_of(program), &arguments, &environment(&memory, program)))
    {
        Ok(error) | Err(error) => error,
    }
}

#[cfg(test)]
mod tests;
