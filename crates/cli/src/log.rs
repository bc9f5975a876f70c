//! The log on standard error: text for people or JSON lines for programs; by default warnings and the error
//! that ends brodo.
//!
//! | level | option | content |
//! |---|---|---|
//! | error | `-q` | the reason for which brodo ends |
//! | warn | | conditions that the user should know of: a capture that failed, pings that the host forbids |
//! | info | `-v` | set-up steps, interfaces made, listening addresses; at the end the counters |
//! | debug | `-vv` | details of these |
//!
//! Each level includes those above it, and may be changed while brodo runs, from any thread. As text, a line
//! is `brodo: MESSAGE: KEY VALUE, KEY VALUE`; as JSON, an object with `time` (RFC 3339, UTC), `level`,
//! `message` and `fields`. Control characters are escaped in both, so that text of a guest's choice cannot
//! act on a terminal.
//!
//! Rate limit: a guest may cause warnings, so warnings and all levels below are bounded, [`BURST`] lines at
//! once and [`PER_SECOND`] later. Lines are left out too while standard error cannot be written without
//! waiting (a pipe that is not read): the worker that logs has frames to carry. The next line is preceded by
//! the number of lines left out. Errors and the report come once each and are never left out.
//!
//! While the network is served, warnings pass through the event bus ([`crate::event_bus`]), which publishes
//! them to clients of the control socket too.
//!
//! *File* (`--log-file`). Lines go there instead, as text behind their time, once the options are read; the
//! error that ends brodo goes to both. Those of a brodo in the background have no other place.
//!
//! *System's log* (`--syslog`). Lines go to /dev/log too ([`syslog`]).
//!
//! Libraries weighed: `log` and `tracing` have no rate limit and no check for a stalled reader, and their
//! formatting layers would still be this file; brodo's other crates report by return values and do not log.

mod syslog;

use crate::escape::{self, printable};
use crate::rotated::{Records, Rotated};
use crate::timestamp::Timestamp;
pub(crate) use brodo_control::event::Level;
use brodo_core::rate::Bucket;
use brodo_core::time;
use clap::ValueEnum;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Map, Value};
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use syslog::Syslog;

/// Burst of the rate limit, in lines.
const BURST: u32 = 64;
/// Predecessors of the log's file that stay.
const FILES_KEPT: u32 = 1;
/// Lines per second after that.
const PER_SECOND: u32 = 10;

static LEVEL: AtomicU8 = AtomicU8::new(Level::Warn as u8);
static FORMAT: AtomicU8 = AtomicU8::new(Format::Text as u8);
static GATE: Mutex<Gate> = Mutex::new(Gate::new());
static FILE: Mutex<Option<Rotated>> = Mutex::new(None);
/// A copy of its descriptor if it is a pipe.
static PIPE: OnceLock<OwnedFd> = OnceLock::new();
static SYSLOG: Mutex<Option<Syslog>> = Mutex::new(None);

/// The level of `-q` and `-v`, `-vv`.
pub(crate) fn asked(quiet: bool, verbose: u8) -> Level {
    match (quiet, verbose) {
        (true, _) => Level::Error,
        (false, 0) => Level::Warn,
        (false, 1) => Level::Info,
        (false, _) => Level::Debug,
    }
}

/// Format of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
#[repr(u8)]
pub(crate) enum Format {
    /// Lines for people
    #[default]
    Text,
    /// One JSON object per line
    Json,
}

/// Keys and values of a line.
pub(crate) type Fields<'a> = &'a [(&'a str, Value)];

/// Sets the format of lines.
pub(crate) fn set_format(format: Format) {
    FORMAT.store(format as u8, Ordering::Relaxed);
}

/// Has lines go to a file instead of standard error.
fn set_file(file: Rotated) {
    if let Some(pipe) = file.pipe() {
        // It is set once in a process.
        let _ = PIPE.set(pipe);
    }
    *FILE.lock().unwrap_or_else(PoisonError::into_inner) = Some(file);
    let fields = [("version", env!("CARGO_PKG_VERSION").into()), ("pid", std::process::id().into())];
    write(Level::Info, &line(format(), SystemTime::now(), Level::Info, "logging to a file", &fields));
}

/// Whether lines are JSON.
pub(crate) fn is_json() -> bool {
    format() == Format::Json
}

fn format() -> Format {
    if FORMAT.load(Ordering::Relaxed) == Format::Json as u8 { Format::Json } else { Format::Text }
}

/// Sets the level.
pub(crate) fn set_level(level: Level) {
    LEVEL.store(level as u8, Ordering::Relaxed);
}

/// The file of `--log-file`, opened before the working directory changes.
///
/// # Errors
/// It cannot be opened.
pub(crate) fn open_file(path: &Path, len_max: u64) -> io::Result<()> {
    let path = std::path::absolute(path)?;
    Rotated::open(&path, len_max, FILES_KEPT).map(set_file)
}

/// The same of a program before ([`Rotated::reopen`]).
pub(crate) fn reopen_file(path: &Path, len_max: u64, pipe: Option<OwnedFd>) -> io::Result<()> {
    let path = std::path::absolute(path)?;
    Rotated::reopen(&path, len_max, FILES_KEPT, pipe).map(set_file)
}

/// The same, emptied, with a first line `NAME VERSION: PATH (PID)`, as callers of pasta look for.
///
/// # Errors
/// It cannot be opened.
pub(crate) fn open_new_file(path: &Path, len_max: u64) -> io::Result<()> {
    let mut file = Rotated::open_new(&std::path::absolute(path)?, len_max, FILES_KEPT)?;
    let program = std::env::args_os().next().map(PathBuf::from).unwrap_or_default();
    let name = program.file_name().unwrap_or_default();
    let program = std::env::current_exe().unwrap_or_else(|_| program.clone());
    let (version, pid) = (env!("CARGO_PKG_VERSION"), std::process::id());
    let line = format!("{} {version}: {} ({pid})", name.display(), program.display());
    file.write(format!("{}\n", printable(&line)).as_bytes(), Records::default())?;
    set_file(file);
    Ok(())
}

/// Has lines go to the system's log too.
pub(crate) fn open_syslog() {
    *SYSLOG.lock().unwrap_or_else(PoisonError::into_inner) = Syslog::open().ok();
}

/// Absolute path of the log's file, if it has one.
pub(crate) fn file_path() -> Option<PathBuf> {
    FILE.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|file| file.path().to_owned())
}

/// The descriptor of the log's file if that is a pipe ([`Rotated::pipe`]): the same each time.
pub(crate) fn pipe() -> Option<BorrowedFd<'static>> {
    PIPE.get().map(AsFd::as_fd)
}

/// The current level.
pub(crate) fn level() -> Level {
    Level::ALL[usize::from(LEVEL.load(Ordering::Relaxed)).min(Level::ALL.len() - 1)]
}

/// Logs the error that ends brodo.
pub(crate) fn error(message: &str) {
    finding(message, &[]);
}

/// Logs a finding that decides the exit status, as an error.
pub(crate) fn finding(message: &str, fields: Fields<'_>) {
    let text = line(format(), SystemTime::now(), Level::Error, message, fields);
    write_syslog(Level::Error, &text);
    write_file(&text);
    write_stderr(&text);
}

/// Logs a warning.
pub(crate) fn warn(message: &str, fields: Fields<'_>) {
    say(Level::Warn, message, fields);
}

/// Logs a step.
pub(crate) fn info(message: &str, fields: Fields<'_>) {
    say(Level::Info, message, fields);
}

/// Logs a detail.
pub(crate) fn debug(message: &str, fields: Fields<'_>) {
    say(Level::Debug, message, fields);
}

/// Logs the counters at the end, at level info: as text one line for each, as JSON one line for all.
pub(crate) fn report(
    message: &str,
    lines: impl FnOnce() -> String,
    fields: impl FnOnce() -> Map<String, Value>,
) {
    if level() < Level::Info {
        return;
    }
    match format() {
        Format::Text => write(Level::Info, &lines()),
        Format::Json => write(Level::Info, &object(SystemTime::now(), Level::Info, message, fields())),
    }
}

/// Logs a line that the command line asks for, whatever the level.
pub(crate) fn always(message: &str, fields: Fields<'_>) {
    write(Level::Info, &line(format(), SystemTime::now(), Level::Info, message, fields));
}

/// Logs a line of a level.
pub(crate) fn say(level: Level, message: &str, fields: Fields<'_>) {
    if level > self::level() {
        return;
    }
    // Held during the write, so that lines stay whole and the count of suppressed ones precedes the next.
    let mut gate = GATE.lock().unwrap_or_else(PoisonError::into_inner);
    if !gate.admits(Instant::now()) || !is_read() {
        gate.left_out += 1;
        return;
    }
    let now = SystemTime::now();
    match std::mem::take(&mut gate.left_out) {
        0 => {}
        count => {
            let message = "messages were left out because there were too many";
            let text = line(format(), now, Level::Warn, message, &[("count", count.into())]);
            write(Level::Warn, &text);
        }
    }
    write(level, &line(format(), now, level, message, fields));
}

/// The rate limit.
struct Gate {
    /// The bucket, and the zero of its clock.
    bucket: Option<(Instant, Bucket)>,
    left_out: u64,
}

impl Gate {
    const fn new() -> Self {
        Self { bucket: None, left_out: 0 }
    }

    fn admits(&mut self, now: Instant) -> bool {
        let interval = time::Duration::from_millis(1000 / u64::from(PER_SECOND));
        let (start, bucket) = self.bucket.get_or_insert_with(|| (now, Bucket::new(interval, BURST)));
        let passed = now.saturating_duration_since(*start).as_nanos();
        bucket.take(time::Instant::from_ns(u64::try_from(passed).unwrap_or(u64::MAX)))
    }
}

/// Whether a line can be written without waiting for a reader.
fn is_read() -> bool {
    if FILE.lock().unwrap_or_else(PoisonError::into_inner).is_some() {
        return true;
    }
    let stderr = io::stderr();
    let ready = poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], Some(&Timespec::default()));
    // A descriptor that cannot be polled never blocks.
    ready.is_ok_and(|count| count > 0)
}

/// Writes lines of a level to the system's log, if that was asked for, and to the file, or to standard error
/// without one.
fn write(level: Level, text: &str) {
    write_syslog(level, text);
    if !write_file(text) {
        write_stderr(text);
    }
}

fn write_syslog(level: Level, text: &str) {
    if let Some(syslog) = SYSLOG.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
        syslog.write(level, text);
    }
}

/// Writes lines to the file, as text behind the time; whether there is one. A full disk loses them.
fn write_file(text: &str) -> bool {
    let mut file = FILE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(file) = file.as_mut() else { return false };
    for line in text.lines() {
        let line = match format() {
            Format::Json => format!("{line}\n"),
            Format::Text => format!("{} {line}\n", rfc3339(SystemTime::now())),
        };
        let _ = file.write(line.as_bytes(), Records::default());
    }
    let _ = file.flush();
    true
}

/// Writes to standard error, whose reader may be gone.
fn write_stderr(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}

/// One line with its end.
fn line(format: Format, now: SystemTime, level: Level, message: &str, fields: Fields<'_>) -> String {
    if format == Format::Json {
        let fields = fields.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
        return object(now, level, message, fields);
    }
    let mut text = format!("brodo: {}", printable(message));
    for (number, (key, value)) in fields.iter().enumerate() {
        let between = if number == 0 { ": " } else { ", " };
        let _ = write!(text, "{between}{key} {}", printable(&plain(value)));
    }
    text + "\n"
}

/// The line as JSON.
fn object(now: SystemTime, level: Level, message: &str, fields: Map<String, Value>) -> String {
    // Written by hand for a readable order of the keys.
    let message = Value::from(message);
    let (time, level, fields) = (rfc3339(now), level.name(), Value::from(fields));
    let head = format!("{{\"time\":\"{time}\",\"level\":\"{level}\",");
    escape::json(format!("{head}\"message\":{message},\"fields\":{fields}}}")) + "\n"
}

/// A value as text for people: lists separated by blanks.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(values) if values.is_empty() => "none".to_owned(),
        Value::Array(values) => values.iter().map(plain).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    }
}

/// The time in UTC.
fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)).to_string()
}

#[cfg(test)]
mod tests;
