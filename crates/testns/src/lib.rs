//! Tests in network (and user) namespaces of their own, without privileges where the system allows that.
//!
//! A user namespace can only be entered by a process with one thread, which a test binary is not. So the test
//! starts its own binary as a child for this one test, which enters fresh namespaces before it runs.

use std::os::unix::process::CommandExt;
use std::process::Command;

const INSIDE: &str = "BRODO_TEST_INSIDE";

/// Runs `body` in fresh namespaces with `lo` up; `test` is the path of the calling test as libtest names it.
///
/// Where namespaces are impossible the test prints the reason and passes, except under `CI=true`, where it
/// fails.
pub fn in_namespace(test: &str, body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        ip("link set lo up");
        return body();
    }
    let binary = std::env::current_exe().expect("own binary");
    let mut child = Command::new(&binary);
    child.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(INSIDE, "1");
    // SAFETY: between fork and exec only system calls are made (unshare, open, write, close): no allocation,
    // no lock.
    unsafe { child.pre_exec(enter) };
    let output = match child.output() {
        Ok(output) => output,
        Err(e) => return skip(test, &format!("no namespaces here: {e}")),
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{test} failed in its namespace:\n{text}\n{errors}");
    assert!(text.contains("1 passed"), "no test is called {test}:\n{text}\n{errors}");
}

/// As [`in_namespace`], for a test that makes a TAP.
pub fn in_namespace_with_tun(test: &str, body: impl FnOnce()) {
    use rustix::fs::{Mode, OFlags, open};
    match open("/dev/net/tun", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        Ok(_) => in_namespace(test, body),
        Err(e) => skip(test, &format!("no /dev/net/tun for us: {e}")),
    }
}

/// Prints that a test was not run, and why; under `CI=true` that is a failure.
fn skip(test: &str, why: &str) {
    assert!(std::env::var_os("CI").is_none_or(|v| v != "true"), "{test}: {why}");
    eprintln!("*** SKIPPED {test}: {why}");
}

/// Enters fresh namespaces: user and network, or network alone for a root that may not have user namespaces.
fn enter() -> std::io::Result<()> {
    let uid = rustix::process::getuid().as_raw();
    let gid = rustix::process::getgid().as_raw();
    // SAFETY: a child after fork has one thread and shares nothing with the parent that these flags would
    // split.
    let both = unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET) };
    if both == 0 {
        // A process may map its own id to root's when it has given up setgroups.
        map("/proc/self/setgroups\0", "deny")?;
        map("/proc/self/uid_map\0", Line::new(uid).as_str())?;
        return map("/proc/self/gid_map\0", Line::new(gid).as_str());
    }
    // SAFETY: takes flags only, as the first unshare.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}

/// `0 ID 1` without an allocation.
struct Line {
    text: [u8; 16],
    len: usize,
}

impl Line {
    fn new(id: u32) -> Self {
        use std::io::Write;
        let mut text = [0; 16];
        let mut rest = &mut text[..];
        write!(rest, "0 {id} 1").expect("fits: a number has at most ten digits");
        let len = 16 - rest.len();
        Self { text, len }
    }

    fn as_str(&self) -> &str {
        std::str::from_utf8(&self.text[..self.len]).expect("ASCII")
    }
}

fn map(path: &str, content: &str) -> std::io::Result<()> {
    let path = std::ffi::CStr::from_bytes_with_nul(path.as_bytes()).expect("ends with NUL");
    let fd = rustix::fs::open(path, rustix::fs::OFlags::WRONLY, rustix::fs::Mode::empty())?;
    rustix::io::write(&fd, content.as_bytes())?;
    Ok(())
}

/// Runs `ip` with the given words.
pub fn ip(words: &str) {
    let status = Command::new("ip").args(words.split_whitespace()).status().expect("iproute2 is installed");
    assert!(status.success(), "ip {words}");
}
