//! Lists of system calls of the engine and of its keeper: everything else ends the process with SIGSYS.
//!
//! An engine inherits the keeper's list, and adds its own when it begins to serve. So all that it reads
//! before that, records of an engine that has crashed or hands over, is read under a list already.
//!
//! Each call and each use of one names the step of an end-to-end test (`tests/e2e/system_calls.rs`) that ends
//! with SIGSYS without it, so that none stands here without need. Entries that only another test needs name
//! that, and those that need another kernel or machine say so.

mod keeper;
mod outbound;
mod serving;

use brodo_net::sockets::{Outbound, SourcePorts};
use brodo_sandbox::{SystemCall, listed};

/// The calls of an engine that serves, with those for the source of its sockets.
pub(super) fn engine(outbound: &Outbound) -> Vec<SystemCall> {
    let mut calls = listed("engine", serving::CALLS);
    if outbound.ports == SourcePorts::Any {
        calls.retain(|call| call.number != libc::SYS_bind);
    }
    with_source(calls, outbound)
}

/// The calls of a keeper, and of its engines up to their service. It may bind in any case.
pub(super) fn keeper(outbound: &Outbound) -> Vec<SystemCall> {
    let mut calls = listed("keeper", keeper::CALLS);
    calls.extend(serving::CALLS.iter().filter(|call| call.number != libc::SYS_bind));
    with_source(calls, outbound)
}

fn with_source(mut calls: Vec<SystemCall>, outbound: &Outbound) -> Vec<SystemCall> {
    if outbound.names_interface() {
        calls.extend(outbound::INTERFACE);
    }
    if outbound.binds() {
        calls.extend(outbound::ADDRESS);
    }
    calls
}
