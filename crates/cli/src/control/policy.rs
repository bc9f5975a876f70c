//! Methods about the policy in force: changes are made here, kept for the next engine, and enforced by the
//! present one.

use super::Controlled;
use crate::conversation::message::{Enforced, GetPolicyUsage};
use crate::policy_in_force::{Change, PolicyInForce};
use brodo_control::event::Level;
use brodo_control::policy::Policy;
use brodo_control::rpc::{Error, code};
use brodo_core::time::Instant;
use std::os::fd::AsFd;

fn none() -> Error {
    let why = "brodo was started without a policy: start it with --policy, --allow or --deny RULE";
    Error::new(code::UNSUPPORTED, why)
}

/// The policy in force.
pub(super) fn show(controlled: &Controlled) -> Result<Policy, Error> {
    let now = controlled.bus.clock().now();
    let policy = controlled.desired().policy.as_ref().map(|policy| policy.describe(now));
    let mut policy = policy.ok_or_else(none)?;
    policy.limits = controlled.engine.call(&GetPolicyUsage {})?.limits;
    Ok(policy)
}

/// Makes a change of which `what` is the name: all of it, or none. The result is the policy after it.
pub(super) fn change(
    controlled: &Controlled,
    what: &str,
    make: impl FnOnce(&mut PolicyInForce, Instant) -> Result<Change, Error>,
) -> Result<Policy, Error> {
    let now = controlled.bus.clock().now();
    let before = controlled.desired().policy.clone().ok_or_else(none)?;
    let mut after = before.clone();
    let change = make(&mut after, now)?;
    let description = after.describe(now);
    enforce(controlled, after, change == Change::Other)?;
    let text = format!("policy {what}: generation {}", description.generation);
    controlled.bus.notify(Level::Info, &text);
    Ok(description)
}

/// Removes rules whose time is over.
pub(super) fn expire(controlled: &Controlled) {
    let now = controlled.bus.clock().now();
    if next_expiry(controlled).is_none_or(|at| at > now) {
        return;
    }
    let Some(mut policy) = controlled.desired().policy.clone() else { return };
    if policy.expire(now) {
        let generation = policy.generation();
        let enforced = enforce(controlled, policy, true);
        let text = match enforced {
            Ok(()) => format!("policy: a rule has expired: generation {generation}"),
            Err(error) => format!("policy: a rule has expired, and the engine has not confirmed it: {error}"),
        };
        controlled.bus.notify(Level::Info, &text);
    }
}

/// Time at which the next rule expires.
pub(super) fn next_expiry(controlled: &Controlled) -> Option<Instant> {
    controlled.desired().policy.as_ref().and_then(PolicyInForce::next_expiry)
}

/// Keeps a policy for the next engine, and has the present one enforce it.
fn enforce(controlled: &Controlled, policy: PolicyInForce, review: bool) -> Result<(), Error> {
    let file = policy.in_force().to_file().map_err(|error| Error::new(code::FAILED, error.to_string()))?;
    // Before the request: an engine that starts meanwhile enforces it from its first frame on.
    controlled.desired().policy = Some(policy);
    controlled.engine.call_with(&Enforced { review }, Some(file.as_fd())).map(|_| ())
}
