//! System calls that only an intruder makes, and that no library wraps.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// Makes a system call with these arguments, at most five.
///
/// For calls that write to no memory of this process: pointers among the arguments are to static or owned
/// buffers that outlive the call.
pub(crate) fn call<const N: usize>(number: i64, arguments: [i64; N]) -> io::Result<i64> {
    let all: [i64; 5] = std::array::from_fn(|index| arguments.get(index).copied().unwrap_or(0));
    // SAFETY: the calls of this test read at most the buffers that their arguments point to (see above); the
    // process ends directly afterwards.
    let result = unsafe { libc::syscall(number, all[0], all[1], all[2], all[3], all[4], 0i64) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A descriptor that a call has just opened.
pub(crate) fn owned(opened: i64) -> OwnedFd {
    // SAFETY: the caller has it from a call that opens one, and keeps no copy of the number.
    unsafe { OwnedFd::from_raw_fd(opened as i32) }
}
