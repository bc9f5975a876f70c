//! The way to the engine: methods by name, from any thread.
//!
//! One call is under way at a time; a notification, which has no reply, does not wait for it. An engine that
//! does not reply in time stands still (its machine is suspended, a worker hangs): the caller learns that,
//! and a late reply is dropped. Replies are read into the method's type, so nothing else gets further.

use crate::conversation::lines::{self, Lines};
use crate::own_process::{CpuTime, Processes};
use brodo_control::method::Method;
use brodo_control::rpc::{self, Error, Id, MESSAGE_MAX, Message, code};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use serde_json::value::RawValue;
use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Longest wait for a reply; the engine's own wait for a worker is shorter.
const PATIENCE: Duration = Duration::from_secs(4);
/// Longest wait for room in the socket of a notification.
const NOTIFY_PATIENCE: Duration = Duration::from_millis(100);

/// A client of the engine that runs now.
#[derive(Debug)]
pub(crate) struct EngineClient {
    /// Process of the keeper, whose child the engine is.
    keeper: AtomicI32,
    crashes: AtomicU32,
    /// Processor time of keepers and engines before, as far as this process has not waited for them. Held
    /// while any of them changes, so that no observer sees the sum fall.
    past: Mutex<CpuTime>,
    to: Mutex<Option<OwnedFd>>,
    calls: Mutex<Calls>,
}

/// Calls, one after the other.
#[derive(Debug, Default)]
struct Calls {
    last_id: i64,
    from: Option<Lines>,
}

/// The client without calls of other threads, as long as this exists.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    client: &'a EngineClient,
    calls: MutexGuard<'a, Calls>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn gone() -> Error {
    Error::new(code::BUSY, "brodo serves no network any more")
}

impl EngineClient {
    /// A client without an engine yet.
    pub(crate) fn new(keeper: i32) -> Self {
        let (crashes, past, to, calls) = Default::default();
        Self { keeper: keeper.into(), crashes, past, to, calls }
    }

    /// A client that goes on with the calls of another program.
    ///
    /// # Errors
    /// No descriptors are left.
    pub(super) fn resume(
        keeper: i32,
        crashes: u32,
        past: CpuTime,
        last_id: i64,
        from: Lines,
    ) -> io::Result<Self> {
        let to = Mutex::new(Some(from.as_fd().try_clone_to_owned()?));
        let calls = Mutex::new(Calls { last_id, from: Some(from) });
        Ok(Self { keeper: keeper.into(), crashes: crashes.into(), past: past.into(), to, calls })
    }

    /// Process id of the keeper.
    pub(crate) fn keeper(&self) -> i32 {
        self.keeper.load(Ordering::Relaxed)
    }

    /// Asks for a property of the processes of this brodo.
    pub(crate) fn of_processes<T>(&self, ask: impl FnOnce(&Processes) -> T) -> T {
        let past = lock(&self.past);
        let processes = Processes::of(self.keeper(), *past);
        // Descriptors are counted one by one, for which no upgrade is to wait.
        drop(past);
        ask(&processes)
    }

    /// Processor time of keepers and engines before, as far as this process has not waited for them.
    pub(super) fn past(&self) -> CpuTime {
        *lock(&self.past)
    }

    /// Ends a keeper before, by `end`. Time for which this process has then waited is its own.
    pub(super) fn end_keeper<T>(&self, end: impl FnOnce() -> T) -> T {
        let mut past = lock(&self.past);
        let before = CpuTime::of_children();
        let ended = end();
        *past = past.less(CpuTime::of_children().less(before));
        ended
    }

    /// Engines that have crashed.
    pub(crate) fn crashes(&self) -> u32 {
        self.crashes.load(Ordering::Relaxed)
    }

    /// Counts an engine that has crashed.
    pub(super) fn count_crash(&self) {
        self.crashes.fetch_add(1, Ordering::Relaxed);
    }

    /// Turns away from an engine, which notices that.
    pub(crate) fn disconnect(&self) {
        Self::turn_away(&mut lock(&self.to));
    }

    /// Turns away from an engine of the keeper with this process id, unless another one has taken its place.
    pub(super) fn disconnect_from(&self, keeper: i32) {
        let mut to = lock(&self.to);
        if self.keeper() == keeper {
            Self::turn_away(&mut to);
        }
    }

    fn turn_away(to: &mut Option<OwnedFd>) {
        if let Some(to) = to.take() {
            // Ends a call under way.
            let _ = rustix::net::shutdown(&to, rustix::net::Shutdown::Both);
        }
    }

    /// Holds off calls of other threads, after the one under way, and the start of the next engine.
    ///
    /// A change of the state that engines start with ([`super::desired`]) holds this over both its parts, the
    /// call and the note. So an engine that starts meanwhile has either seen the note or gets the call.
    pub(crate) fn hold(&self) -> Held<'_> {
        Held { client: self, calls: lock(&self.calls) }
    }

    /// Calls a method and waits for its result.
    ///
    /// # Errors
    /// The engine's refusal; it has ended, or does not reply in time.
    pub(crate) fn call<M: Method>(&self, params: &M) -> Result<M::Result, Error> {
        self.hold().call_in_time(params, None)
    }

    /// Calls a method without waiting for a result.
    ///
    /// # Errors
    /// The engine has ended, or does not read.
    pub(crate) fn notify<M: Method>(&self, params: &M) -> io::Result<()> {
        self.send(&rpc::notification(M::NAME, params), None, NOTIFY_PATIENCE)
    }

    fn send(&self, line: &[u8], descriptor: Option<BorrowedFd<'_>>, patience: Duration) -> io::Result<()> {
        match &*lock(&self.to) {
            Some(to) => lines::send(to.as_fd(), line, descriptor, patience),
            None => Err(ErrorKind::NotConnected.into()),
        }
    }
}

impl Held<'_> {
    /// Turns to another engine, with the keeper of this process id.
    pub(crate) fn turn_to(&mut self, requests: OwnedFd, keeper: i32) {
        let mut to = lock(&self.client.to);
        *to = requests.try_clone().ok();
        let mut past = lock(&self.client.past);
        let before = self.client.keeper.swap(keeper, Ordering::Relaxed);
        if before != keeper {
            *past = past.and(CpuTime::of_engine(before));
        }
        drop((past, to));
        self.calls.from = Some(Lines::new(requests, MESSAGE_MAX));
    }

    /// The number of the last call, and the way of replies.
    pub(super) fn state(&self) -> Option<(i64, &Lines)> {
        Some((self.calls.last_id, self.calls.from.as_ref()?))
    }

    /// Goes on where another process was killed, perhaps in the middle of a line: sends two empty ones, and
    /// skips everything up to the engine's refusal of both, which are the only replies to no request.
    ///
    /// # Errors
    /// The engine has ended, or does not reply.
    pub(super) fn resynchronize(&mut self) -> io::Result<()> {
        self.resynchronize_until(Instant::now() + PATIENCE)
    }

    fn resynchronize_until(&mut self, until: Instant) -> io::Result<()> {
        // Twice: the first may end a line that was cut.
        for line in [b"\n", b"\n"] {
            self.client.send(line, None, NOTIFY_PATIENCE)?;
        }
        let lines = self.calls.from.as_mut().ok_or(ErrorKind::NotConnected)?;
        let mut refused = 0;
        while refused < 2 {
            let line = lines.next_until(until)?;
            if Instant::now() >= until {
                return Err(ErrorKind::TimedOut.into());
            }
            let reply: Result<Message<Box<RawValue>>, _> = serde_json::from_slice(&line);
            refused += usize::from(reply.is_ok_and(|reply| reply.id.is_none() && reply.error.is_some()));
        }
        // Late replies have other numbers than calls from now on.
        self.calls.last_id = i64::from(std::process::id()) << 32;
        Ok(())
    }

    /// Calls a method and waits for its result.
    ///
    /// # Errors
    /// As [`EngineClient::call`].
    pub(crate) fn call_in_time<M: Method>(
        &mut self,
        params: &M,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<M::Result, Error> {
        self.call(params, descriptor, Instant::now() + PATIENCE)
    }

    /// Calls a method and waits for its result until a time.
    ///
    /// # Errors
    /// As [`EngineClient::call`].
    pub(super) fn call<M: Method>(
        &mut self,
        params: &M,
        descriptor: Option<BorrowedFd<'_>>,
        until: Instant,
    ) -> Result<M::Result, Error> {
        let Calls { last_id, from } = &mut *self.calls;
        let lines = from.as_mut().ok_or_else(gone)?;
        *last_id += 1;
        let id = *last_id;
        let patience = until.saturating_duration_since(Instant::now());
        self.client.send(&rpc::request(id, M::NAME, params), descriptor, patience).map_err(|_| gone())?;
        let late = || Error::new(code::BUSY, "brodo is too busy to answer");
        loop {
            let line = lines.next_until(until).map_err(|error| match error.kind() {
                ErrorKind::TimedOut => late(),
                _ => gone(),
            })?;
            let strange = || Error::new(code::FAILED, "the engine gives no sensible reply");
            let reply: Message<Box<RawValue>> = serde_json::from_slice(&line).map_err(|_| strange())?;
            // A late reply to an earlier call. An engine that was taken over may send them without an end.
            if reply.id != Some(Id::Number(id)) {
                if Instant::now() >= until {
                    return Err(late());
                }
                continue;
            }
            return match (reply.result, reply.error) {
                (Some(result), None) => serde_json::from_str(result.get()).map_err(|_| strange()),
                (_, Some(error)) => Err(error),
                (None, None) => Err(strange()),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::message::{Done, Stop};
    use rustix::net::SocketType;

    /// A call whose time is over, and whose reply is there behind so many to earlier calls.
    fn called_late(earlier: usize) -> Result<Done, Error> {
        let (requests, theirs) = lines::pair(SocketType::STREAM).expect("a pair");
        let client = EngineClient::new(0);
        let mut held = client.hold();
        held.turn_to(requests, 0);
        let replies =
            [rpc::result(&Id::Number(0), &Done {}).repeat(earlier), rpc::result(&Id::Number(1), &Done {})];
        lines::send(theirs.as_fd(), &replies.concat(), None, NOTIFY_PATIENCE).expect("room");
        held.call(&Stop {}, None, Instant::now())
    }

    #[test]
    fn an_engine_that_sends_replies_without_end_holds_no_call_up() {
        assert_eq!(called_late(0), Ok(Done {}));
        assert_eq!(called_late(1).expect_err("late").code, code::BUSY);
    }

    #[test]
    fn a_resumption_ends_in_time() {
        let (requests, theirs) = lines::pair(SocketType::STREAM).expect("a pair");
        let client = EngineClient::new(0);
        let mut held = client.hold();
        held.turn_to(requests, 0);
        let refusal = rpc::error(None, &Error::new(code::FAILED, "an empty line"));
        lines::send(theirs.as_fd(), &refusal.repeat(2), None, NOTIFY_PATIENCE).expect("room");
        let late = held.resynchronize_until(Instant::now()).expect_err("late");
        assert_eq!(late.kind(), ErrorKind::TimedOut);
    }
}
