//! What brodo says on standard error: nothing unless asked to, as text for people or JSON lines for programs.
//!
//! This is the only place that writes there. There are four levels; each is said with those above it:
//!
//! | level | option | what |
//! |---|---|---|
//! | error | `-q` | why brodo ends |
//! | warn | | what the user should know and would not notice: a capture that failed, pings that the host forbids |
//! | info | `-v` | set-up steps, what was made, where it listens; at the end the counters |
//! | debug | `-vv` | details of these |
//!
//! The level may change while brodo runs, from any thread. As text, a line is `brodo: MESSAGE: KEY VALUE, KEY VALUE`; as JSON, an object
//! with `time` (RFC 3339, UTC), `level`, `message` and `fields`. Control characters are escaped in both, so that what a guest has
//! named cannot write to a terminal.
//!
//! A guest may cause warnings, so those and all below are bounded: [`BURST`] lines at once and [`PER_SECOND`] later. They are left out too when
//! nobody reads the other end of a pipe: the worker that has something to say has frames to carry. How many lines were left out is said with the
//! next one. Errors and the report come once each and are never left out.
//!
//! While the network is served, warnings come by way of the journal ([`crate::journal`]), which tells clients of the control socket too.

use crate::timestamp::Timestamp;
pub(crate) use brodo_control::event::Level;
use clap::ValueEnum;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Map, Value};
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Most lines at once, of those that are bounded.
const BURST: u32 = 64;
/// Lines per second after that.
const PER_SECOND: u32 = 10;

static LEVEL: AtomicU8 = AtomicU8::new(Level::Warn as u8);
static FORMAT: AtomicU8 = AtomicU8::new(Format::Text as u8);
static GATE: Mutex<Gate> = Mutex::new(Gate::new());

/// What `-q` and so many `-v` ask for.
pub(crate) fn asked(quiet: bool, verbose: u8) -> Level {
    match (quiet, verbose) {
        (true, _) => Level::Error,
        (false, 0) => Level::Warn,
        (false, 1) => Level::Info,
        (false, _) => Level::Debug,
    }
}

/// How it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
#[repr(u8)]
pub(crate) enum Format {
    /// Lines for people
    #[default]
    Text,
    /// One JSON object per line
    Json,
}

/// What goes with a message.
pub(crate) type Fields<'a> = &'a [(&'a str, Value)];

/// Sets how lines are written from now on.
pub(crate) fn set_format(format: Format) {
    FORMAT.store(format as u8, Ordering::Relaxed);
}

/// Whether programs read what is said.
pub(crate) fn is_json() -> bool {
    format() == Format::Json
}

fn format() -> Format {
    if FORMAT.load(Ordering::Relaxed) == Format::Json as u8 { Format::Json } else { Format::Text }
}

/// Sets how much is said from now on.
pub(crate) fn set_level(level: Level) {
    LEVEL.store(level as u8, Ordering::Relaxed);
}

/// How much is said now.
pub(crate) fn level() -> Level {
    Level::ALL[usize::from(LEVEL.load(Ordering::Relaxed)).min(Level::ALL.len() - 1)]
}

/// Says why brodo ends.
pub(crate) fn error(message: &str) {
    write(&line(format(), SystemTime::now(), Level::Error, message, &[]));
}

/// Says what the user should know.
pub(crate) fn warn(message: &str, fields: Fields<'_>) {
    say(Level::Warn, message, fields);
}

/// Says what is going on.
pub(crate) fn info(message: &str, fields: Fields<'_>) {
    say(Level::Info, message, fields);
}

/// Says it in detail.
pub(crate) fn debug(message: &str, fields: Fields<'_>) {
    say(Level::Debug, message, fields);
}

/// Says what was counted, once, if anything is said of that level: as text one line for each, as JSON one line for all.
pub(crate) fn report(
    message: &str,
    lines: impl FnOnce() -> String,
    fields: impl FnOnce() -> Map<String, Value>,
) {
    if level() < Level::Info {
        return;
    }
    match format() {
        Format::Text => write(&lines()),
        Format::Json => write(&object(SystemTime::now(), Level::Info, message, fields())),
    }
}

/// Says it, if anything of this level is said.
pub(crate) fn say(level: Level, message: &str, fields: Fields<'_>) {
    if level > self::level() {
        return;
    }
    // Held while it is written, so that lines stay whole and the count of those left out goes before the next.
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
            write(&line(format(), now, Level::Warn, message, &[("count", count.into())]));
        }
    }
    write(&line(format(), now, level, message, fields));
}

/// Lets so many pass.
struct Gate {
    tokens: u32,
    /// Since when tokens have been added up.
    at: Option<Instant>,
    left_out: u64,
}

impl Gate {
    const fn new() -> Self {
        Self { tokens: BURST, at: None, left_out: 0 }
    }

    fn admits(&mut self, now: Instant) -> bool {
        let passed = self.at.map_or(0, |at| now.saturating_duration_since(at).as_secs());
        if self.at.is_none() || passed > 0 {
            self.at = Some(now);
            let earned = u32::try_from(passed).unwrap_or(u32::MAX).saturating_mul(PER_SECOND);
            self.tokens = self.tokens.saturating_add(earned).min(BURST);
        }
        let admitted = self.tokens > 0;
        self.tokens = self.tokens.saturating_sub(1);
        admitted
    }
}

/// Whether a line can be written without waiting for a reader.
fn is_read() -> bool {
    let stderr = std::io::stderr();
    let ready = poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], Some(&Timespec::default()));
    // What cannot be polled does not wait.
    ready.is_ok_and(|count| count > 0)
}

/// Writes to standard error, of which the other end may be gone.
fn write(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
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

/// The same as JSON.
fn object(now: SystemTime, level: Level, message: &str, fields: Map<String, Value>) -> String {
    // Written by hand for the order of the keys, which is one to be read.
    let message = Value::from(message);
    let (time, level, fields) = (rfc3339(now), level.name(), Value::from(fields));
    format!("{{\"time\":\"{time}\",\"level\":\"{level}\",\"message\":{message},\"fields\":{fields}}}\n")
}

/// A value as a person would write it: lists with blanks between.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().map(plain).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    }
}

/// Without anything that a terminal or a reader of lines would take for more than a letter.
fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() })
        .collect()
}

/// The time in UTC.
fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)).to_string()
}

#[cfg(test)]
mod tests;
