//! Lines of slirp4netns' callers, and the lines of brodo that they become.

use super::*;
use crate::args::{Cli, Command};
use clap::Parser;

fn translated(line: &str) -> Result<String, String> {
    let words: Vec<OsString> =
        std::iter::once("slirp4netns").chain(line.split_whitespace()).map(OsString::from).collect();
    match translate(&words, vec!["--deny=192.0.2.0/24".into()]) {
        Ok(Translated::Words(words)) => {
            let text: Vec<_> = words.iter().map(|word| word.to_str().expect("UTF-8")).collect();
            Ok(text.join(" "))
        }
        Ok(Translated::Text(text)) => Ok(text),
        Err(Refused(text)) => Err(text),
    }
}

/// The line without what every one has.
fn own(line: &str) -> String {
    let text = translated(line).expect(line);
    let common = [
        "--allow-link-local",
        "--busy-poll=0",
        "--bulk=tap",
        "--local-peers=link",
        "--multicast=on",
        "--closed-ports=unreachable",
        "--deny=192.0.2.0/24",
    ];
    let words: Vec<_> = text.split(' ').filter(|word| !common.contains(word)).collect();
    words.join(" ")
}

/// Podman 5's, rootlesskit's (Docker, nerdctl, buildkit) and Guix's.
const PODMAN: &str = "--disable-host-loopback --mtu=65520 --enable-sandbox --enable-seccomp --enable-ipv6 -c -r 3 \
                      -e 4 --api-socket /run/user/1000/x.net --netns-type=path /run/user/1000/netns/n tap0";
const ROOTLESSKIT: &str = "--mtu 65520 -r 3 --disable-host-loopback --enable-sandbox --enable-seccomp \
                           --api-socket /run/user/1000/s.sock --cidr 10.0.3.0/24 4711 tap0";

#[test]
fn lines_of_callers_become_an_attach() {
    assert_eq!(
        own(PODMAN),
        "attach --address=10.0.2.100/24 --mtu=65520 --sandbox --ready-fd=3:1 --exit-fd=4 \
         --slirp-socket=/run/user/1000/x.net --ifname=tap0 --netns=/run/user/1000/netns/n"
    );
    assert_eq!(
        own(ROOTLESSKIT),
        "attach --address=10.0.3.15/24 --address=10.0.3.100/24 --no-configure -4 --mtu=65520 --sandbox --ready-fd=3:1 \
         --slirp-socket=/run/user/1000/s.sock --ifname=tap0 4711"
    );
    assert_eq!(
        own("--netns-type=tapfd --enable-sandbox --enable-ipv6 --ready-fd=5 9"),
        "attach --address=10.0.2.15/24 --address=10.0.2.100/24 --mtu=1500 --map-host-loopback=gateway --sandbox \
         --ready-fd=5:1 --tap-fd=9"
    );
    assert_eq!(
        own(
            "--target-type=bess -6 -r 3 -e 4 --enable-sandbox --api-socket /x --disable-host-loopback /tmp/bess.sock"
        ),
        "vm --address=10.0.2.15/24 --address=10.0.2.100/24 --mtu=1500 --sandbox --ready-fd=3:1 --exit-fd=4 \
         --slirp-socket=/x --seqpacket=/tmp/bess.sock"
    );
    assert_eq!(
        own("-c 4711 tap0"),
        "attach --address=10.0.2.100/24 -4 --mtu=1500 --map-host-loopback=gateway --ifname=tap0 4711"
    );
}

#[test]
fn options_stand_anywhere_and_the_last_of_several_counts() {
    let line =
        own("4711 -c tap0 --cidr 10.0.0.0/16 --cidr 10.0.135.128/25 -r 3 --ready-fd=5 -m 1500 -m 9000");
    assert!(line.contains("--address=10.0.135.228/25 -4 --mtu=9000"), "{line}");
    assert!(line.contains("--ready-fd=5:1 --ifname=tap0 4711") && !line.contains("=3:1"), "{line}");
    let line = own("--userns-path=/proc/7/ns/user 7 tap0 --brodo-flow-log=f --disable-dns");
    assert!(line.contains("--without=dns --offer-dns=none") && line.contains("--flow-log=f"), "{line}");
    assert!(line.ends_with("--netns=/proc/7/ns/net --userns=/proc/7/ns/user"), "{line}");
}

#[test]
fn every_translation_is_a_line_of_brodo() {
    for line in [
        PODMAN,
        ROOTLESSKIT,
        "--netns-type=tapfd -r 4 7",
        "--target-type netns --target-type bess --mtu 1500 -6 --disable-dns --enable-seccomp s",
        "-c -6 --macaddress 0e:d4:18:d9:38:fb 1 tap0",
        "-c --disable-dns --target-type=netns --no-host-loopback --create-sandbox 1 tap0",
        "-r 3 -r 4 -e 5 -e 6 -a /x -a /y --netns-type=pid --netns-type=path /proc/1/ns/net tap0 extra",
    ] {
        let text = translated(line).expect(line);
        let words = std::iter::once("brodo").chain(text.split(' '));
        let parsed = Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{line}: {error}"));
        let is_machine = line.contains("bess");
        assert_eq!(matches!(parsed.command, Command::Vm(_)), is_machine, "{line}");
        assert_eq!(matches!(parsed.command, Command::Attach(_)), !is_machine, "{line}");
    }
}

#[test]
fn refusals_are_those_of_the_original() {
    for (line, text) in [
        ("--bogus", "slirp4netns: unrecognized option '--bogus'\nUsage: "),
        ("--enable-ipv6=3 1 tap0", "option '--enable-ipv6' doesn't allow an argument"),
        ("", "Usage: "),
        ("1", "Usage: "),
        ("x tap0", "PID must be a positive integer\nUsage: "),
        ("--mtu 0 1 tap0", "MTU must be a positive integer (< 65522)"),
        ("--mtu 65522 1 tap0", "MTU must be a positive integer (< 65522)"),
        ("-r x 1 tap0", "ready-fd must be a non-negative integer"),
        ("-e -1 1 tap0", "exit-fd must be a non-negative integer"),
        ("--cidr 24 1 tap0", "invalid CIDR: 24"),
        ("--cidr 10.0.2.0 1 tap0", "invalid CIDR: 10.0.2.0"),
        ("--cidr 10.0.2.0/x 1 tap0", "invalid CIDR"),
        (
            "--cidr 10.0.2.100/24 1 tap0",
            "CIDR needs to be a network address like 10.0.2.0/24, not like 10.0.2.100/24",
        ),
        ("--cidr 10.0.2.100/26 1 tap0", "prefix length needs to be 1-25"),
        ("--cidr 10.0.0.0/0 1 tap0", "prefix length needs to be 1-25"),
        ("--macaddress=02:00:00:00:00:01 1 tap0", "--macaddr cannot be specified when"),
        ("--netns-type=x 1 tap0", "expected path, pid or tapfd"),
        ("--netns-type=tapfd tap0", "TAPFD must be a file descriptor"),
        ("--netns-type=tapfd", "TAPFD must be a file descriptor"),
        ("--target-type=bess", "the path of a socket is needed\nUsage: "),
        ("--target-type=bess s tap0", "too many arguments\nUsage: "),
        ("--target-type=bess -c s", "--configure conflicts with --target-type=bess"),
        ("--target-type=bess --netns-type=path s", "--netns-type conflicts with --target-type=bess"),
        ("--userns-path=u --target-type=bess s", "--userns-path conflicts with --target-type=bess"),
        ("--target-type=x 1 tap0", "--target-type must be either"),
    ] {
        let refusal = translated(line).expect_err(line);
        assert!(refusal.contains(text), "{line}: {refusal}");
    }
}

#[test]
fn help_and_version_have_what_callers_search() {
    let help = translated("--help").expect("help");
    for option in TABLE {
        assert!(help.contains(&format!("--{}", option.long)), "{}", option.long);
    }
    let version = translated("-v").expect("version");
    assert!(
        version.starts_with("slirp4netns version ") && version.contains("(brodo)\ncommit: "),
        "{version}"
    );
    assert!(version.contains("SLIRP_CONFIG_VERSION_MAX: 3\n"), "{version}");
}
