//! Refusals before any set-up, and the state of a process that joins. Joining and the end are tested by the
//! command's namespace tests.

use super::*;
use brodo_testns::in_namespace;
use std::process::Command;
use std::time::{Duration, Instant};

#[test]
fn ones_own_namespace_is_no_target() {
    let own = std::process::id().cast_signed();
    assert_eq!(Target::process(own).unwrap_err().step, Step::OwnNamespace);
    let path = Path::new("/proc/self/ns/net");
    assert_eq!(Target::path(path, None).unwrap_err().step, Step::OwnNamespace);
}

#[test]
fn what_is_not_there_or_no_namespace_is_refused() {
    assert_eq!(Target::process(-1).unwrap_err().step, Step::FindProcess);
    // Larger than the largest number the kernel gives.
    assert_eq!(Target::process(i32::MAX).unwrap_err().step, Step::FindProcess);
    let missing = Target::path(Path::new("/no-such-file"), None).unwrap_err();
    assert_eq!((missing.step, missing.errno), (Step::OpenNamespace, Errno::NOENT));
    assert_eq!(Target::path(Path::new("/dev/null"), None).unwrap_err().step, Step::NotANamespace);
}

/// The root of a user namespace may trace a process in it that is dumpable (ptrace(2)).
#[test]
fn a_process_that_has_joined_cannot_be_traced_there() {
    in_namespace("namespace::target::tests::a_process_that_has_joined_cannot_be_traced_there", || {
        let mut sleeper = Command::new("unshare").args(["-Un", "sleep", "60"]).spawn().unwrap();
        let pid = sleeper.id().cast_signed();
        let until = Instant::now() + Duration::from_secs(60);
        let target = loop {
            // The program may not have made its namespaces yet.
            match Target::process(pid) {
                Ok(target) if target.user.is_some() => break target,
                other => assert!(Instant::now() < until, "{other:?}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        assert_eq!(rustix::process::dumpable_behavior(), Ok(DumpableBehavior::Dumpable));
        // A process of several threads, as this one, cannot join; it is not dumpable before.
        assert_eq!(target.enter().unwrap_err().errno, Errno::INVAL);
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        assert_eq!(rustix::process::dumpable_behavior(), Ok(DumpableBehavior::NotDumpable));
    });
}
