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

use brodo_net::sockets::Outbound;
use brodo_sandbox::{SystemCall, listed};

/// The calls of an engine that serves, with those for a source of its sockets if they have one.
pub(super) fn engine(outbound: &Outbound) -> Vec<SystemCall> {
    with_source(listed("engine", serving::CALLS), outbound)
}

/// The calls of a keeper, and of its engines up to their service.
pub(super) fn keeper(outbound: &Outbound) -> Vec<SystemCall> {
    let keeper = listed("keeper", keeper::CALLS);
    with_source([keeper.as_slice(), serving::CALLS].concat(), outbound)
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
