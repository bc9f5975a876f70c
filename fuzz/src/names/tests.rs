//! Coverage by the seeds: each reaches the behaviour that it is named for.

use super::*;
use std::path::Path;

fn played(seed: &str) -> Play {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/names").join(seed);
    let data = std::fs::read(path).expect("a seed");
    let mut play = Play::new();
    play.steps(&data);
    play
}

#[test]
fn every_seed_gets_its_answers() {
    let count = |seed: &str| {
        let play = played(seed);
        let counters = play.driver.stack.counters().clone();
        (play.answered, counters.dns_cached, counters.dns_host_entries, counters.dns_retries)
    };
    assert_eq!(count("answered"), (3, 2, 0, 0));
    assert_eq!(count("failover").0, 2);
    assert_eq!(count("failover").3, 2);
    assert_eq!(count("negative"), (2, 1, 0, 0));
    assert_eq!(count("hosts"), (3, 0, 3, 0));
    assert_eq!(played("errors").driver.stack.counters().dns_unanswered, 2);
    assert_eq!(played("alias").driver.stack.name_of([192, 0, 2, 1].into()), Some("a.test"));
    assert_eq!(
        played("answered").driver.stack.name_of([192, 0, 2, 1].into()),
        Some("a.test"),
        "the last word"
    );
}
