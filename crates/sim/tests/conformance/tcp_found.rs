//! Rules that sequences of random operations (the fuzz target `stack`) found broken, each as the shortest script.

use brodo_core::host::HostError;
use brodo_sim::script::Script;

#[test]
fn an_error_that_a_write_meets_does_not_look_like_an_end() {
    Script::each(|t| {
        t.establish_with("win=3000 mss=1460 sackok");
        t.host_sends(5000);
        t.take_all();
        // The write takes the error, so what is read after the rest of the data is an end of stream.
        t.machine.host.break_silently(t.socket(), HostError::Reset);
        t.guest(&format!("ACK ack={} win=30000 data=10", 1 + 2 * t.mss()));
        let seen = t.take_all();
        assert!(seen.iter().all(|line| !line.to_string().contains("FIN")), "{seen:?}");
        assert!(seen.iter().any(|line| line.to_string().contains("RST")), "{seen:?}");
        t.expect_all_gone();
    });
}
