//! Lines of passt's callers, and the lines of brodo that they become.

use super::*;
use crate::args::{Cli, Command};
use clap::Parser;

fn translated(line: &str) -> Result<String, String> {
    let words: Vec<OsString> =
        std::iter::once("passt").chain(line.split_whitespace()).map(OsString::from).collect();
    match translate(&words, Vec::new()) {
        Ok(Translated::Words(words)) => {
            let text = words.iter().map(|word| word.to_str().expect("UTF-8"));
            // Root's lines have another user.
            let text: Vec<_> = text.filter(|word| !["--syslog", "--run-as=nobody"].contains(word)).collect();
            Ok(text.join(" "))
        }
        Ok(Translated::Text(text)) => Ok(text),
        Err(Refused(text)) => Err(text),
    }
}

/// Lines as the callers make them: libvirt, QEMU's `-netdev passt`, muvm, libguestfs.
#[test]
fn lines_of_callers_become_lines_of_brodo_vm() {
    for (line, part) in [
        (
            "--one-off --socket /run/l.sock --pid /run/l.pid -i eth0",
            "--daemon --pid-file=/run/l.pid --socket=/run/l.sock --one-off",
        ),
        ("--quiet --pid /run/q.pid --fd 3", "--daemon --pid-file=/run/q.pid --socket=fd:3 --one-off"),
        ("-q -f --fd 7", "--busy-poll=0 --bulk=tap --socket=fd:7 --one-off"),
        (
            "--one-off --socket /tmp/g --address 169.254.2.15 --netmask 16 --mac-addr 52:56:00:00:00:02 --gateway 169.254.2.2",
            "--gateway=169.254.2.2 --address=169.254.2.15/16",
        ),
        ("-s /tmp/s -t none -t 8022:22 -u none --no-map-gw", "-t8022:22 -unone"),
        ("-f -1 -a 172.17.2.0 -n 24", "--address=172.17.2.0/24"),
        (
            "--vhost-user --one-off --socket /run/l.sock",
            "--vhost-user=/run/l.sock --no-backend-channel --one-off",
        ),
        ("-s /tmp/s --no-tcp -t 22 -u 53 --freebind", "--without=tcp -u53"),
        (
            "-s /tmp/s --repair-path /r --migrate-exit --migrate-no-linger -f --stats 2",
            "--stats=2 --socket=/tmp/s",
        ),
        ("-s /tmp/s --outbound-if4 wg0", "vm --copy-host=wg0 "),
        ("--fd 3 --vhost-user", "--vhost-user=fd:3 --no-backend-channel --one-off"),
    ] {
        let text = translated(line).expect(line);
        assert!(text.starts_with("vm --copy-host") && text.contains(part), "{line}: {text}");
        let words = std::iter::once("brodo").chain(text.split(' '));
        let parsed = Cli::try_parse_from(words).expect("a line of brodo's");
        assert!(matches!(parsed.command, Command::Vm(_)), "{text}");
    }
}

#[test]
fn ports_are_closed_and_names_offered_by_default() {
    let text = translated("-s /tmp/s").expect("a line");
    for part in [" -t", "--dns=", "--offer-dns", "--search"] {
        assert!(!text.contains(part), "{text}");
    }
    assert!(text.contains(" --dns-at-loopback=ipv4"), "{text}");
    let text = translated("-s /tmp/s --no-dhcp-dns --no-dhcp-search").expect("a line");
    assert!(text.contains("--offer-dns=none") && text.contains("--search=."), "{text}");
    assert!(translated("").expect("a line").ends_with("--socket=passt:"));
    assert!(translated("-q --vhost-user").expect("a line").contains("--vhost-user=passt:quiet"));
    let text = translated("-s /tmp/s -D 9.9.9.9 -D none -S a.example -S none").expect("a line");
    assert!(text.contains("--dns=none --offer-dns=none --search=. "), "{text}");
    let text = translated("-s /tmp/s -D none -D 9.9.9.9 -S none -S a.example").expect("a line");
    assert!(
        text.contains("--dns=none ") && text.contains("--offer-dns=9.9.9.9 --search=a.example "),
        "{text}"
    );
}

#[test]
fn capabilities_are_those_of_a_network() {
    let text = translated("--print-capabilities").expect("a text");
    let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(value, serde_json::json!({ "type": "net" }));
}

#[test]
fn options_of_pasta_alone_are_refused() {
    for (line, part) in [
        ("--netns blue", "unrecognized option '--netns'"),
        ("--config-net", "unrecognized option '--config-net'"),
        ("-s /tmp/s 4711", "unexpected argument '4711'"),
    ] {
        let refused = translated(line).expect_err(line);
        assert!(refused.contains(part), "{line}: {refused}");
    }
    assert!(translated("--version").expect("a text").starts_with("passt "));
    assert!(translated("--help").expect("a text").contains("--one-off"));
}
