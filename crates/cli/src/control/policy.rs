//! Methods about the policy in force: changes are made here, kept for the next engine, and enforced by the
//! present one.

use super::Controlled;
use crate::conversation::message::GetPolicyUsage;
use crate::policy_change::{Author, ChangeRecord};
use crate::policy_in_force::{Change, PolicyInForce};
use crate::warden::enforcement;
use brodo_control::event::Level;
use brodo_control::policy::{Learned, LearnedPolicy, Policy};
use brodo_control::rpc::{Error, code};
use brodo_core::time::Instant;

/// The policy in force.
pub(super) fn show(controlled: &Controlled) -> Result<Policy, Error> {
    let now = controlled.bus.clock().now();
    let policy = controlled.desired().policy.as_ref().map(|policy| policy.describe(now));
    let mut policy = policy.ok_or_else(enforcement::none)?;
    policy.limits = controlled.engine.call(&GetPolicyUsage {})?.limits;
    Ok(policy)
}

/// The policy that was learnt so far.
pub(super) fn learned(
    controlled: &Controlled,
    LearnedPolicy { wildcards }: &LearnedPolicy,
) -> Result<Learned, Error> {
    let why = "brodo learns no policy: start it with --learn FILE, or give `brodo policy learn` a flow log";
    let learner = controlled.bus.learner().ok_or_else(|| Error::new(code::UNSUPPORTED, why))?;
    Ok(Learned { text: learner.text("brodo policy learn", *wildcards) })
}

/// Makes a change that `by` wants and of which `what` is the name: all of it, or none. The result is the
/// policy after it.
pub(super) fn change(
    controlled: &Controlled,
    by: Option<Author>,
    what: &str,
    make: impl FnOnce(&mut PolicyInForce, Instant) -> Result<Change, Error>,
) -> Result<Policy, Error> {
    let now = controlled.bus.clock().now();
    let record = ChangeRecord { bus: &controlled.bus, what, by };
    let after =
        enforcement::change(&controlled.engine, &controlled.desired, &record, |policy| make(policy, now))?;
    let description = after.describe(now);
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
    let mut expired = None;
    let record = ChangeRecord { bus: &controlled.bus, what: "rule expired", by: None };
    let enforced = enforcement::change(&controlled.engine, &controlled.desired, &record, |policy| {
        // Another change may have removed the rule meanwhile.
        let has_expired = policy.expire(now);
        expired = has_expired.then(|| policy.generation());
        expired.map(|_| Change::Other).ok_or_else(|| Error::new(code::NOT_FOUND, "no rule has expired"))
    });
    let Some(generation) = expired else { return };
    let text = match enforced {
        Ok(_) => format!("policy: a rule has expired: generation {generation}"),
        Err(error) => format!("policy: a rule has expired, and the engine has not confirmed it: {error}"),
    };
    controlled.bus.notify(Level::Info, &text);
}

/// Time at which the next rule expires.
pub(super) fn next_expiry(controlled: &Controlled) -> Option<Instant> {
    controlled.desired().policy.as_ref().and_then(PolicyInForce::next_expiry)
}
