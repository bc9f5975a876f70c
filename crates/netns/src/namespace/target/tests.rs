//! Refusals before any set-up. Joining and the end are tested by the command's namespace tests.

use super::*;

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
