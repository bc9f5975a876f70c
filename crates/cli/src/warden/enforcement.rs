//! Changes of the policy in force: made on a copy, kept for the next engine, and enforced by the present one.
//!
//! One change at a time, by whatever thread: calls of others to the engine are held off from the copy to the
//! engine's confirmation, so that engine and copy have the same order.

use super::client::EngineClient;
use super::desired::Desired;
use crate::conversation::message::Enforced;
use crate::policy_change::ChangeRecord;
use crate::policy_in_force::{Change, PolicyInForce};
use brodo_control::rpc::{Error, code};
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};

/// Makes a change, all of it or none; the policy after it.
///
/// # Errors
/// There is no policy, or `make` refuses; or the engine has not confirmed a change that was made.
pub(crate) fn change(
    engine: &EngineClient,
    desired: &Mutex<Desired>,
    record: &ChangeRecord<'_>,
    make: impl FnOnce(&mut PolicyInForce) -> Result<Change, Error>,
) -> Result<PolicyInForce, Error> {
    let mut held = engine.hold();
    let lock = || desired.lock().unwrap_or_else(PoisonError::into_inner);
    let before = lock().policy.clone().ok_or_else(none)?;
    let mut after = before.clone();
    let review = make(&mut after)? == Change::Other;
    let file = after.in_force().to_file().map_err(|error| Error::new(code::FAILED, error.to_string()))?;
    // Before the request: an engine that starts meanwhile enforces it from its first frame on.
    {
        let mut desired = lock();
        desired.policy = Some(after.clone());
        desired.unreviewed |= review;
    }
    record.publish(&before, &after);
    held.call_in_time(&Enforced { review }, Some(file.as_fd()))?;
    if review {
        lock().unreviewed = false;
    }
    Ok(after)
}

/// The error of a brodo without a policy.
pub(crate) fn none() -> Error {
    let why = "there is no policy: start brodo with --policy FILE, --allow RULE or --deny RULE (a --deny of addresses \
               alone is none)";
    Error::new(code::UNSUPPORTED, why)
}
