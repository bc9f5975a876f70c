//! Lost packets: the kernel's counters of drops and errors in each namespace of a failed test. Namespaces are
//! new for each test, so each count belongs to it, and a datagram without an answer shows where it ended.

use crate::bed::Bed;
use brodo_bench::process::{Finished, Result};
use serde_json::Value;

/// Parts of the names of counters (as nstat(8) prints them) that count something lost.
const LOST: [&str; 8] = ["Drop", "Discard", "Fail", "Err", "Timeout", "NoPort", "NoRoute", "Overflow"];

/// One line for each namespace: its counters of losses that are not 0, and those of its devices.
pub(crate) fn describe(bed: &Bed) -> String {
    let line = |name: &str, run: &dyn Fn(&[&str]) -> Result<Finished>| {
        let protocols = run(&["nstat", "-ajs"]).and_then(|done| done.json());
        let devices = run(&["ip", "-json", "-statistics", "link"]).and_then(|done| done.json());
        match (protocols, devices) {
            (Ok(protocols), Ok(devices)) => format!("{name}: {}", lost(&protocols, &devices).join(", ")),
            (Err(e), _) | (_, Err(e)) => format!("{name}: {}", e.first_line()),
        }
    };
    let mut lines = vec![line("guest", &|words| bed.attempt(words))];
    let namespaces = bed.world.namespaces();
    lines.extend(
        namespaces.iter().map(|netns| {
            line(netns.name(), &|words| bed.world.run(&netns.enter(), words, crate::bed::LIMIT))
        }),
    );
    lines.join("\n")
}

/// Counters of losses, as "NAME COUNT", that are not 0.
fn lost(protocols: &Value, devices: &Value) -> Vec<String> {
    let counters = protocols["kernel"].as_object().into_iter().flatten();
    let counters = counters.filter(|(name, _)| LOST.iter().any(|part| name.contains(part)));
    let mut found: Vec<String> = counters.map(|(name, count)| format!("{name} {count}")).collect();
    for device in devices.as_array().into_iter().flatten() {
        for direction in ["rx", "tx"] {
            for kind in ["dropped", "errors"] {
                let count = device["stats64"][direction][kind].as_u64().unwrap_or(0);
                if count > 0 {
                    let name = device["ifname"].as_str().unwrap_or_default();
                    found.push(format!("{name} {direction} {kind} {count}"));
                }
            }
        }
    }
    found
}
