//! The records of a hand-over, taken apart: what there is of each worker, and the conversions of values that
//! several records have.

use super::v1::{
    AddressV1, BeginV1, ClockV1, EndV1, ForwardsV1, LinkV1, RelaysV1, SocketsV1, SourceV1, SplicesV1,
    WorkerV1,
};
use super::{MAGIC, RestoreFailure, Tag};
use crate::clock::{Clock, Origin};
use crate::sys::addressed::Source;
use brodo_core::snapshot::{Record, Records};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

/// Records of one worker.
#[derive(Debug, Default)]
pub(crate) struct WorkerRecords<'a> {
    pub(crate) worker: WorkerV1<'a>,
    pub(crate) sockets: SocketsV1,
    pub(crate) link: Option<LinkV1<'a>>,
    pub(crate) forwards: Option<ForwardsV1<'a>>,
    pub(crate) splices: SplicesV1,
    pub(crate) relays: RelaysV1,
    /// Snapshot of its stack.
    pub(crate) stack: &'a [u8],
}

/// A hand-over, taken apart.
#[derive(Debug)]
pub(crate) struct Parsed<'a> {
    pub(crate) clock: Clock,
    pub(crate) workers: Vec<WorkerRecords<'a>>,
    /// Records of unknown tag or version, or without valid content.
    pub(crate) unused: usize,
}

/// Takes a hand-over apart.
///
/// # Errors
/// There is nothing to begin with.
pub(crate) fn parse(bytes: &[u8]) -> Result<Parsed<'_>, RestoreFailure> {
    let begin = begin(bytes)?;
    let records: Vec<Record<'_>> = Records::new(bytes).collect();
    let last = records.last().filter(|last| last.tag == Tag::End as u16).and_then(Record::v1::<EndV1>);
    if last.is_none_or(|end| end.records as usize + 1 != records.len()) {
        return Err(RestoreFailure::Truncated);
    }
    let clock = restore_clock(begin.clock).ok_or(RestoreFailure::ClockAhead)?;
    let mut parsed = Parsed { clock, workers: Vec::new(), unused: 0 };
    let between = records.get(1..records.len().saturating_sub(1)).unwrap_or_default();
    for record in between {
        if parsed.take(record).is_none() {
            parsed.unused += 1;
        }
    }
    let whole = parsed.workers.iter().all(|worker| !worker.stack.is_empty());
    if !whole || parsed.workers.len() != begin.workers as usize {
        return Err(RestoreFailure::Truncated);
    }
    Ok(parsed)
}

/// The clock of a hand-over.
pub(crate) fn clock(bytes: &[u8]) -> Option<Clock> {
    restore_clock(begin(bytes).ok()?.clock)
}

fn begin(bytes: &[u8]) -> Result<BeginV1, RestoreFailure> {
    let first = Records::new(bytes).next().filter(|first| first.tag == Tag::Begin as u16);
    let first = first.ok_or(RestoreFailure::NotAHandover)?;
    if first.version != 1 {
        return Err(RestoreFailure::UnknownVersion(first.version));
    }
    let begin = first.v1::<BeginV1>().filter(|begin| begin.magic == MAGIC);
    begin.ok_or(RestoreFailure::NotAHandover)
}

impl<'a> Parsed<'a> {
    fn take(&mut self, record: &Record<'a>) -> Option<()> {
        if record.tag == Tag::Worker as u16 {
            // One without valid content begins as in a new network, but it is there.
            let content = record.v1();
            let valid = content.is_some();
            let worker = content.unwrap_or_default();
            self.workers.push(WorkerRecords { worker, ..WorkerRecords::default() });
            return valid.then_some(());
        }
        let of = self.workers.last_mut()?;
        match record.tag {
            tag if tag == Tag::Sockets as u16 => of.sockets = record.v1()?,
            tag if tag == Tag::Link as u16 => of.link = Some(record.v1()?),
            tag if tag == Tag::Forwards as u16 => of.forwards = Some(record.v1()?),
            tag if tag == Tag::Splices as u16 => of.splices = record.v1()?,
            tag if tag == Tag::Relays as u16 => of.relays = record.v1()?,
            tag if tag == Tag::Stack as u16 && record.version == 1 => of.stack = record.bytes,
            _ => return None,
        }
        Some(())
    }
}

/// Counters by name that are far enough from overflow to be added to for ever.
pub(crate) fn counters<'a>(saved: &'a [(&'a str, u64)]) -> impl Iterator<Item = (&'a str, u64)> {
    saved.iter().copied().filter(|&(_, count)| is_count(count))
}

/// Whether a count is far enough from overflow.
pub(crate) const fn is_count(count: u64) -> bool {
    count < 1 << 62
}

/// Saved form of a clock.
pub(crate) fn save_clock(clock: &Clock) -> ClockV1 {
    let Origin { start_ns, unix_ns, suspended_ns } = clock.origin();
    ClockV1 { start: start_ns, unix: unix_ns, suspended: suspended_ns }
}

/// A clock whose zero is not ahead of now.
fn restore_clock(saved: ClockV1) -> Option<Clock> {
    let ClockV1 { start: start_ns, unix: unix_ns, suspended: suspended_ns } = saved;
    let origin = Origin { start_ns, unix_ns, suspended_ns };
    let clock = Clock::at(origin);
    // One that lies in the future was moved.
    (clock.origin() == origin).then_some(clock)
}

impl From<SocketAddr> for AddressV1 {
    fn from(at: SocketAddr) -> Self {
        let scope = if let SocketAddr::V6(v6) = at { v6.scope_id() } else { 0 };
        Self { ip: at.ip(), port: at.port(), scope }
    }
}

impl From<AddressV1> for SocketAddr {
    fn from(AddressV1 { ip, port, scope }: AddressV1) -> Self {
        match ip {
            IpAddr::V4(_) => Self::new(ip, port),
            IpAddr::V6(v6) => SocketAddrV6::new(v6, port, 0, scope).into(),
        }
    }
}

impl From<Source> for SourceV1 {
    fn from(Source { address, interface }: Source) -> Self {
        Self { address, interface }
    }
}

impl From<SourceV1> for Source {
    fn from(SourceV1 { address, interface }: SourceV1) -> Self {
        Self { address, interface }
    }
}
