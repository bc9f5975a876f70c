//! Runs of a test over many seeds. `BRODO_SIM_SEED` repeats one, `BRODO_SIM_RUNS` sets the number; a failure
//! prints the command that repeats it.

/// Calls `body` with the seeds 1, 2 and so on, `runs` of them unless the environment says otherwise.
pub(super) fn each(test: &'static str, runs: u64, body: impl Fn(u64)) {
    let number = |name| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let seeds = match number("BRODO_SIM_SEED") {
        Some(seed) => seed..=seed,
        None => 1..=number("BRODO_SIM_RUNS").unwrap_or(runs),
    };
    for seed in seeds {
        let failed = Failed(test, seed);
        body(seed);
        std::mem::forget(failed);
    }
}

/// Prints the command that repeats a run when it panics.
struct Failed(&'static str, u64);

impl Drop for Failed {
    fn drop(&mut self) {
        let Self(test, seed) = self;
        eprintln!("seed {seed} failed; repeat with: BRODO_SIM_SEED={seed} cargo test -p brodo-sim {test}");
    }
}
