//! Hand-over at every event: all conformance scripts and worlds again, with a stack that is saved, dropped
//! and restored from its bytes between any two calls of the driver ([`brodo_sim::handover`] has the
//! rules). Their golden traces must be the same.

#[path = "../conformance/main.rs"]
mod conformance;

use brodo_core::config::Config;
use brodo_sim::handover;
use brodo_sim::samples::{SAMPLES, script};

/// All other tests would pass without a single hand-over. State that is left out by design keeps one from the
/// query of the sample `names` alone.
#[test]
fn this_program_hands_over_at_every_event() {
    assert!(handover::is_on(), "it does by its name");
    for (name, play) in SAMPLES {
        let mut t = script(Config { mtu: 1500, ..Config::default() });
        play(&mut t);
        let (done, kept) = (t.driver.handovers.done(), t.driver.handovers.kept());
        assert!(
            done > 0 && (kept == 0 || *name == "names"),
            "{name}: {done} hand-overs, {kept} events without"
        );
    }
}
