//! Errors survive their way across the socket, and each reads as one sentence with a remedy.

use super::*;

#[test]
fn every_step_survives_the_socket() {
    for &step in Step::ALL {
        let error = SetupError::new(step, Errno::PERM, "thing");
        assert_eq!(SetupError::decode(&error.encode()), Some(error));
    }
}

#[test]
fn foreign_bytes_are_no_error() {
    for bytes in [&[][..], &[0], &[0, 1, 0, 0], &[0xff, 1, 0, 0, 0]] {
        assert_eq!(SetupError::decode(bytes), None, "{bytes:?}");
    }
}

#[test]
fn a_sentence_names_the_object_the_call_and_the_remedy() {
    let sentence = SetupError::new(Step::OpenTun, Errno::NOENT, "/dev/net/tun").to_string();
    assert_eq!(
        sentence,
        "cannot open /dev/net/tun: open: No such file or directory: load the tun module as root (modprobe tun), \
         or in a container pass the device in (--device /dev/net/tun)"
    );
    for &step in Step::ALL {
        for errno in [Errno::PERM, Errno::ACCESS, Errno::NOSPC, Errno::INVAL, Errno::NOENT, Errno::EXIST] {
            let sentence = SetupError::new(step, errno, "it").to_string();
            assert!(sentence.starts_with("cannot ") && !sentence.contains('\n'), "{sentence}");
            assert!(!sentence.contains("os error") && !sentence.contains("{}"), "{sentence}");
            assert!(step == Step::OwnNamespace || sentence.contains(step.call()), "{sentence}");
        }
    }
}

#[test]
fn a_namespace_of_another_kind_is_called_one() {
    for (errno, remedy) in [(Errno::INVAL, "give the path of a network"), (Errno::PERM, "been made by you")] {
        let sentence = SetupError::new(Step::JoinNet, errno, "/proc/self/ns/user").to_string();
        assert!(sentence.contains(remedy), "{sentence}");
    }
}

#[test]
fn only_the_command_s_own_failure_has_a_shell_s_status() {
    for (step, errno, status) in [
        (Step::Execute, Errno::NOENT, 127),
        (Step::Execute, Errno::ACCESS, 126),
        (Step::Execute, Errno::NOEXEC, 126),
        (Step::OpenTun, Errno::NOENT, 125),
        (Step::Unshare, Errno::PERM, 125),
    ] {
        assert_eq!(SetupError::new(step, errno, "").exit_status(), status);
    }
}
