//! The parts that need no second process; the rest is tested by running the command.

use super::*;
use brodo_testns::in_namespace;

#[test]
fn a_number_that_is_no_descriptor_is_refused() {
    assert_eq!(inherited(-1).unwrap_err(), Errno::BADF);
    assert_eq!(inherited(1 << 20).unwrap_err(), Errno::BADF);
}

#[test]
fn a_command_that_cannot_run_says_why() {
    // In a process of its own: std gives SIGPIPE back its default before it tries, which would kill other
    // tests.
    in_namespace("process::tests::a_command_that_cannot_run_says_why", || {
        let missing = execute(&["/no/such/program".into()]);
        assert_eq!((missing.step, missing.errno, missing.exit_status()), (Step::Execute, Errno::NOENT, 127));
        let directory = execute(&["/".into()]);
        assert_eq!((directory.errno, directory.exit_status()), (Errno::ACCESS, 126));
    });
}

#[test]
fn a_signal_is_lost_unless_it_is_blocked_ignored_or_handled() {
    // SIGQUIT is blocked, SIGHUP ignored, SIGTERM handled.
    let status =
        "Name:\tsh\nSigBlk:\t0000000000000004\nSigIgn:\t0000000000000001\nSigCgt:\t0000000000004000\n";
    assert!([Signal::QUIT, Signal::HUP, Signal::TERM].iter().all(|&signal| !is_lost(status, signal)));
    assert!(is_lost(status, Signal::INT));
    // A process that is gone.
    assert!(!is_lost("", Signal::INT));
}
