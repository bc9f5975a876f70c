//! Counters in the log at intervals (`--stats`): a line with every counter that has changed since the one
//! before, and by how much. While nothing changes there is no line.

use crate::log;
use crate::warden::client::EngineClient;
use brodo_control::method::{Counters, GetCounters};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use std::{io, thread};

/// Begins to log, from a thread that ends with the process. A program that goes on for another begins with
/// the counters as they are.
///
/// # Errors
/// No thread can be made.
pub(crate) fn start(interval: Duration, engine: Arc<EngineClient>, goes_on: bool) -> io::Result<()> {
    let body = move || {
        // Growth since the start is growth since zero.
        let mut before = (!goes_on).then(BTreeMap::new);
        if goes_on {
            before = engine.call(&GetCounters {}).ok().map(named);
        }
        loop {
            thread::sleep(interval);
            // An engine that is replaced does not answer.
            let Ok(counters) = engine.call(&GetCounters {}) else { continue };
            let now = named(counters);
            let changes = before.map(|before| changes(&before, &now)).unwrap_or_default();
            if !changes.is_empty() {
                let changes: Vec<_> =
                    changes.iter().map(|(name, by)| (name.as_str(), Value::from(*by))).collect();
                log::always("counters", &changes);
            }
            before = Some(now);
        }
    };
    thread::Builder::new().name("statistics".into()).spawn(body).map(drop)
}

/// All counters by name: drops and refusals behind a word for their kind.
fn named(Counters { counters, drops, rules }: Counters) -> BTreeMap<String, u64> {
    let drops = drops.into_iter().map(|(name, count)| (format!("drop {name}"), count));
    let rules = rules.into_iter().map(|(name, count)| (format!("refused {name}"), count));
    counters.into_iter().chain(drops).chain(rules).collect()
}

/// Counters that have grown, and by how much. A counter that has fallen is a gauge or begins anew.
fn changes(before: &BTreeMap<String, u64>, now: &BTreeMap<String, u64>) -> Vec<(String, u64)> {
    let grown = |(name, count): (&String, &u64)| {
        let by = count.saturating_sub(before.get(name).copied().unwrap_or(0));
        (by > 0).then(|| (name.clone(), by))
    };
    now.iter().filter_map(grown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_that_have_grown_are_named_with_their_growth() {
        let map =
            |pairs: &[(&str, u64)]| pairs.iter().map(|&(name, count)| (name.to_owned(), count)).collect();
        let before =
            named(Counters { counters: map(&[("rx_frames", 3), ("tx_frames", 4)]), ..Counters::default() });
        let now = Counters {
            counters: map(&[("rx_frames", 5), ("tx_frames", 4)]),
            drops: map(&[("LeftOut", 2)]),
            rules: map(&[("deny 10.0.0.0/8", 1)]),
        };
        let now = named(now);
        let expected = [("drop LeftOut", 2), ("refused deny 10.0.0.0/8", 1), ("rx_frames", 2)];
        assert_eq!(changes(&before, &now), expected.map(|(name, by)| (name.to_owned(), by)));
        assert!(changes(&now, &now).is_empty());
    }
}
