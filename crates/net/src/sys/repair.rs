//! Socket options of TCP_REPAIR, and the filter that lets nothing reach a socket.
//!
//! rustix has none of these, and their values are C structures. Those of `linux/tcp.h` are arrays of 32-bit
//! numbers here, which have the same layout.

use super::check;
use rustix::io::Result;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The five numbers of `struct tcp_repair_window`: `snd_wl1`, `snd_wnd`, `max_window`, `rcv_wnd`, `rcv_wup`.
/// Later kernels take a longer form too.
pub(crate) type RepairWindow = [u32; 5];
/// `struct tcp_repair_opt`: kind of the option, value.
pub(crate) type RepairOption = [u32; 2];

/// setsockopt of IPPROTO_TCP with numbers.
fn set(fd: BorrowedFd<'_>, name: c_int, value: &[u32]) -> Result<()> {
    // SAFETY: the kernel reads as many bytes at the address as the slice has. No option of this level that is
    // used here has a pointer in its value.
    let status = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_TCP,
            name,
            value.as_ptr().cast(),
            size_of_val(value) as libc::socklen_t,
        )
    };
    check(status as isize).map(drop)
}

/// getsockopt of IPPROTO_TCP, of as many numbers as there is room for; the rest stays as it is.
fn get(fd: BorrowedFd<'_>, name: c_int, value: &mut [u32]) -> Result<()> {
    let mut len = size_of_val(value) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, which the slice has, and every bit pattern is a number.
    let status = unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, name, value.as_mut_ptr().cast(), &raw mut len)
    };
    check(status as isize).map(drop)
}

/// TCP_QUEUE_SEQ: sets the sequence number of the queue that TCP_REPAIR_QUEUE has chosen.
pub(crate) fn set_queue_sequence(fd: BorrowedFd<'_>, number: u32) -> Result<()> {
    set(fd, libc::TCP_QUEUE_SEQ, &[number])
}

/// TCP_QUEUE_SEQ: the sequence number behind the last byte of the chosen queue.
pub(crate) fn queue_sequence(fd: BorrowedFd<'_>) -> Result<u32> {
    let mut number = [0];
    get(fd, libc::TCP_QUEUE_SEQ, &mut number).map(|()| number[0])
}

/// TCP_REPAIR_OPTIONS: options of the handshake.
pub(crate) fn set_repair_options(fd: BorrowedFd<'_>, options: &[RepairOption]) -> Result<()> {
    set(fd, libc::TCP_REPAIR_OPTIONS, options.as_flattened())
}

/// TCP_REPAIR_WINDOW: windows of both directions.
pub(crate) fn set_repair_window(fd: BorrowedFd<'_>, window: &RepairWindow) -> Result<()> {
    set(fd, libc::TCP_REPAIR_WINDOW, window)
}

/// TCP_REPAIR_WINDOW of a socket in repair mode.
pub(crate) fn repair_window(fd: BorrowedFd<'_>) -> Result<RepairWindow> {
    let mut window = RepairWindow::default();
    get(fd, libc::TCP_REPAIR_WINDOW, &mut window).map(|()| window)
}

/// SO_ATTACH_FILTER with a program that refuses every packet: from now on the socket receives nothing.
pub(crate) fn refuse_packets(fd: BorrowedFd<'_>) -> Result<()> {
    // BPF_RET | BPF_K with 0: none of its bytes is kept.
    let mut program = [libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0 }];
    let value = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the kernel reads the structure and the program that it points to, which both live through the
    // call, and keeps a copy.
    let status = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    check(status as isize).map(drop)
}
