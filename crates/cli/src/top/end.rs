//! The end of `brodo top` from outside: SIGTERM, SIGHUP, SIGINT, and a terminal that has gone away (its
//! window closed, its connection lost).
//!
//! A thread of its own waits for both: the main thread may be inside a write to a terminal that takes nothing
//! (stopped by Ctrl-S, or a suspended terminal program), and the thread that reads keys cannot tell an end of
//! file from silence. It asks the main thread to end; if that has not happened after [`GRACE`] it gives the
//! terminal its modes back and ends the process itself.
//!
//! Kernel behaviour relied upon: poll reports POLLHUP on a terminal's descriptor, without being asked for it,
//! as soon as the other side of a pseudo-terminal is closed or the line is hung up (tty_poll in drivers/tty),
//! also if the process ignores or never gets SIGHUP.

use super::Input;
use ratatui::crossterm::terminal::disable_raw_mode;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::pipe;
use std::io;
use std::os::unix::net::UnixStream;
use std::process;
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

/// Time for the main thread to end, after which this thread ends the process.
const GRACE: Duration = Duration::from_millis(500);

/// Signals as a descriptor.
#[derive(Debug)]
pub(super) struct Watch(UnixStream);

impl Watch {
    /// Catches the signals from now on.
    ///
    /// # Errors
    /// sigaction or socketpair failed.
    pub(super) fn new() -> io::Result<Self> {
        let (signalled, handler) = UnixStream::pair()?;
        for signal in [SIGTERM, SIGHUP, SIGINT] {
            pipe::register(signal, handler.try_clone()?)?;
        }
        Ok(Self(signalled))
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// clone failed.
    pub(super) fn start(self, queue: Sender<Input>) -> io::Result<()> {
        let body = move || {
            self.wait();
            // An error: the main thread has ended already.
            let _ = queue.send(Input::End);
            thread::sleep(GRACE);
            let _ = disable_raw_mode();
            process::exit(0);
        };
        thread::Builder::new().name("end".into()).spawn(body).map(drop)
    }

    fn wait(&self) {
        let stdin = io::stdin();
        loop {
            // Terminal: only events reported without request, POLLHUP and POLLERR.
            let mut fds = [PollFd::new(&self.0, PollFlags::IN), PollFd::new(&stdin, PollFlags::empty())];
            match poll(&mut fds, None) {
                Err(Errno::INTR) => {}
                _ => return,
            }
        }
    }
}

/// Whether the terminal has gone away.
pub(super) fn is_hung_up() -> bool {
    let stdin = io::stdin();
    poll(&mut [PollFd::new(&stdin, PollFlags::empty())], Some(&Timespec::default()))
        .is_ok_and(|ready| ready > 0)
}
