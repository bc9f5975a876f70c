//! Events of a connection as static trace probes (USDT): provider `brodo`, read by bpftrace, SystemTap, perf
//! and gdb.
//!
//! | Probe            | Arguments, in order                                                               |
//! |------------------|-----------------------------------------------------------------------------------|
//! | `connect`        | flow, the destination as text (`192.0.2.1:443`)                                   |
//! | `tuned`          | flow, direction, limits (bytes), cause, bytes per round trip, round trip (us)     |
//! | `window_update`  | flow, window (bytes), 1 if repeated and 0 if not                                  |
//! | `retransmission` | flow, sequence number, length (bytes), cause                                      |
//! | `limited`        | flow, direction, former and present limiting factor, time of the former (us)      |
//!
//! A flow is [`FlowId::to_bits`]: slot in the lower 32 bits, generation in the upper. Limits are the present
//! one in the lower 32 bits and the previous one in the upper: no probe has more than the six arguments that
//! every tracer reads. Direction, cause and limiting factors are pointers to C strings; everything else is an
//! integer.
//!
//! Each probe has a semaphore: a word that the tracer increments through the kernel while it listens. Without
//! a tracer a probe is one load and one branch that is not taken; no argument is computed, and no text is
//! made. The scripts in `tools/trace` depend on names, order and units given here.

use brodo_core::flow::FlowId;
use brodo_core::tcp::limiting_factor::LimitingFactor;
use brodo_core::trace::{Cause, Direction, Event, Resend};
use probe::probe_lazy;
use std::ffi::{CStr, c_char};
use std::hint::black_box;
use std::net::SocketAddr;

/// Probe of a new connection to the host's network.
#[inline]
pub(crate) fn connect(flow: FlowId, to: SocketAddr) {
    // Declared here so that it lives while the tracer reads it, and made only if there is one.
    let text;
    probe_lazy!(brodo, connect, word(flow), {
        text = format!("{to}\0");
        text.as_ptr()
    });
}

/// Probe of an event of a connection.
#[expect(
    clippy::inline_always,
    reason = "where the event is made its kind is known, and it need not be stored"
)]
#[inline(always)]
pub(crate) fn event(event: &Event) {
    match *event {
        Event::Tuned { flow, direction, from, to, cause, per_rtt, rtt_us } => {
            probe_lazy!(
                brodo,
                tuned,
                word(flow),
                text(direction_name(direction)),
                u64::from(from) << 32 | u64::from(to),
                text(cause_name(cause)),
                per_rtt,
                rtt_us
            );
        }
        Event::WindowUpdate { flow, window, repeated } => {
            probe_lazy!(brodo, window_update, word(flow), window, repeated);
        }
        Event::Retransmission { flow, seq, len, why } => {
            probe_lazy!(brodo, retransmission, word(flow), seq, len, text(resend_name(why)));
        }
        Event::LimitingFactor { flow, direction, from, to, after_us } => {
            probe_lazy!(
                brodo,
                limited,
                word(flow),
                text(direction_name(direction)),
                text(limit_name(from)),
                text(limit_name(to)),
                after_us
            );
        }
    }
}

/// Marks the branch that leads here as unlikely: a tracer is attached. `std::hint::cold_path` of Rust 1.95
/// replaces it.
#[cold]
fn tracer_attached() {}

/// A flow as an argument.
#[inline]
fn word(flow: FlowId) -> u64 {
    tracer_attached();
    flow.to_bits()
}

/// A text as an argument. The kernel reads a page only if it is in memory, so the text is read here first.
fn text(name: &'static CStr) -> *const c_char {
    // The first byte and the last: it may lie on two pages.
    let bytes = black_box(name).to_bytes_with_nul();
    black_box((bytes.first().copied(), bytes.last().copied()));
    name.as_ptr()
}

fn direction_name(direction: Direction) -> &'static CStr {
    match direction {
        Direction::Receive => c"rx",
        Direction::Send => c"tx",
    }
}

fn cause_name(cause: Cause) -> &'static CStr {
    match cause {
        Cause::Hit => c"hit",
        Cause::Probe => c"probe",
        Cause::ProbeFailed => c"probe failed",
        Cause::Unused => c"unused",
        Cause::Blocked => c"blocked",
        Cause::Queued => c"queued",
        Cause::Idle => c"idle",
        Cause::Loss => c"loss",
        Cause::Undone => c"undone",
    }
}

fn resend_name(why: Resend) -> &'static CStr {
    match why {
        Resend::Rack => c"rack",
        Resend::TailProbe => c"tail probe",
        Resend::Timeout => c"timeout",
        Resend::Duplicates => c"duplicates",
    }
}

fn limit_name(limit: LimitingFactor) -> &'static CStr {
    match limit {
        LimitingFactor::Application => c"application",
        LimitingFactor::GuestWindow => c"guest window",
        LimitingFactor::OurLimit => c"our limit",
        LimitingFactor::HostSocket => c"host socket",
        LimitingFactor::Link => c"link",
        LimitingFactor::Memory => c"memory",
        LimitingFactor::Loss => c"loss",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_and_reports_name_limits_alike() {
        for limit in LimitingFactor::ALL {
            assert_eq!(limit_name(limit).to_str(), Ok(limit.name()));
        }
    }
}
