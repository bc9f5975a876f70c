//! Limits of a `[[rule]]` in a policy file: bytes, rates, flows and age, each key with its bounds and the
//! form to write instead.

use super::{File, Value, number, period};
use crate::failure::Failure;
use crate::option_values;
use brodo_core::policy::{Limits, RATE_MIN};
use std::time::Duration;

/// Longest `max-age`: a year.
const MAX_AGE_MAX: Duration = Duration::from_secs(366 * 86_400);
/// Most flows that `flows` may allow.
const FLOWS_MAX: u32 = 1 << 20;

/// Reads a limit into `limits`; false if `key` is none.
///
/// # Errors
/// File, line and the form to write instead.
pub(super) fn read(
    limits: &mut Limits,
    file: &File<'_>,
    key: &str,
    value: Value<'_, '_>,
) -> Result<bool, Failure> {
    let wrong = |expected: &str| file.wrong(&value.span(), &format!("`{key}` is {expected}"));
    let bytes = || {
        let size = option_values::size(file.string(key, value)?).ok().filter(|bytes| *bytes > 0);
        size.ok_or_else(|| wrong("a number of bytes, such as \"50M\""))
    };
    let rate = || {
        let word = file.string(key, value)?.strip_suffix("/s");
        let rate = word.and_then(|word| option_values::size(word).ok()).filter(|rate| *rate >= RATE_MIN);
        rate.ok_or_else(|| wrong("a number of bytes per second, 1K/s at least, such as \"2M/s\""))
    };
    match key {
        "up" => limits.bytes[0] = Some(bytes()?),
        "down" => limits.bytes[1] = Some(bytes()?),
        "up-rate" => limits.rates[0] = Some(rate()?),
        "down-rate" => limits.rates[1] = Some(rate()?),
        "flows" => {
            let most = number(value).and_then(|digits| digits.parse().ok());
            let most = most.filter(|most| (1..=FLOWS_MAX).contains(most));
            limits.flows = Some(most.ok_or_else(|| wrong("a number of flows at a time, 1 to 1048576"))?);
        }
        "max-age" => {
            let age = period(file.string(key, value)?);
            let age = age.filter(|age| !age.is_zero() && *age <= MAX_AGE_MAX);
            limits.max_age = Some(age.ok_or_else(|| wrong("a time such as \"1h\", a year at most"))?);
        }
        _ => return Ok(false),
    }
    Ok(true)
}
