//! The system's log: datagrams to /dev/log, as journald, rsyslog and busybox read them.
//!
//! A line is `<PRIORITY>NAME[PID]: MESSAGE` with facility daemon (RFC 3164 section 4; local daemons add time
//! and host). Nothing waits: a daemon that is slow, restarts or is missing loses lines.

use super::Level;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

/// Socket of the system's log.
const PATH: &str = "/dev/log";
/// Facility of daemons.
const DAEMON: u8 = 3 << 3;
/// Longest message in bytes (RFC 3164 section 4.1 allows 1024 for all).
const MESSAGE_MAX: usize = 900;

/// A connection to the system's log.
#[derive(Debug)]
pub(super) struct Syslog {
    socket: UnixDatagram,
    name: String,
}

impl Syslog {
    /// Connects under the name of this program. A daemon that is not there may come later.
    ///
    /// # Errors
    /// There is no socket to be had.
    pub(super) fn open() -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        let program = std::env::args_os().next().unwrap_or_default();
        let name = Path::new(&program).file_name().unwrap_or_default().to_string_lossy();
        let syslog = Self { socket, name: super::printable(&name) };
        // By a folder of mounts that `--sandbox` leaves behind, so now.
        let _ = syslog.socket.connect(PATH);
        Ok(syslog)
    }

    /// Writes the lines of a text.
    pub(super) fn write(&self, level: Level, text: &str) {
        let (name, pid, priority) = (&self.name, std::process::id(), DAEMON | severity(level));
        for line in text.lines() {
            let line = line.strip_prefix("brodo: ").unwrap_or(line);
            let line = &line[..line.floor_char_boundary(MESSAGE_MAX)];
            let datagram = format!("<{priority}>{name}[{pid}]: {line}");
            // A daemon that was started anew has another socket at the same path.
            let gone = |error: &io::Error| error.kind() != io::ErrorKind::WouldBlock;
            if self.socket.send(datagram.as_bytes()).is_err_and(|error| gone(&error))
                && self.socket.connect(PATH).is_ok()
            {
                let _ = self.socket.send(datagram.as_bytes());
            }
        }
    }
}

/// Severity of a line (RFC 3164 section 4.1.1).
fn severity(level: Level) -> u8 {
    match level {
        Level::Error => 3,
        Level::Warn => 4,
        Level::Info => 6,
        Level::Debug => 7,
    }
}
