//! Lines of pasta's callers, and the lines of brodo that they become.

use super::*;
use crate::args::{Cli, Command};
use crate::config::{HostFacts, Settings};
use brodo_net::netlink::template::Template;
use clap::Parser;
use std::net::Ipv4Addr;

fn translated(line: &str) -> Result<String, String> {
    translated_where(true, line)
}

fn translated_where(has_ipv6: bool, line: &str) -> Result<String, String> {
    let words: Vec<OsString> =
        std::iter::once("pasta").chain(line.split_whitespace()).map(OsString::from).collect();
    match translate_where(has_ipv6, &words, vec!["--deny=192.0.2.0/24".into()]) {
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
        "--syslog",
        "--run-as=nobody",
        "--deny=192.0.2.0/24",
    ];
    let words =
        text.split(' ').filter(|word| !common.contains(word) && !word.starts_with("--hostname=pasta-"));
    let words: Vec<_> = words.collect();
    words.join(" ")
}

const PODMAN: &str = "--config-net -t 127.0.0.1/8080-8080:80-80 --dns-forward 169.254.1.1 -u none -T none -U none \
                      --no-map-gw --quiet --netns /run/user/1000/netns/netns-1 --map-guest-addr 169.254.1.2";

#[test]
fn podmans_line_becomes_an_attach_in_the_background() {
    assert_eq!(
        own(PODMAN),
        "attach --copy-host --mtu=65520 --dns=169.254.1.1 --dns=none --offer-dns=none --search=. \
         --map-host-address=169.254.1.2 --without=ra -t127.0.0.1/8080-8080:80-80 -unone -Tnone -Unone --local-peers=address \
         --daemon --netns=/run/user/1000/netns/netns-1"
    );
}

#[test]
fn defaults_are_pastas() {
    assert_eq!(
        own("--config-net sh"),
        "run --copy-host --isolate --mtu=65520 --dns=none --dns-at-loopback=ipv4,ipv6 --offer-dns=none \
         --search=. --map-host-loopback=gateway --without=ra -tauto -uauto -Tauto -Uauto --local-peers=address -- sh"
    );
    assert!(own("--config-net 4711").ends_with("--daemon 4711"));
    assert!(own("-f 4711").ends_with("--local-peers=address 4711"));
    assert!(own("4711").contains("--no-configure"));
    assert!(own("--netns blue").ends_with("--netns=/run/netns/blue"));
    assert!(own("--userns /x/user 4711").ends_with(" --netns=/proc/4711/ns/net --userns=/x/user"));
    assert!(own("--config-net -q -- sh -c --brodo-x").ends_with("-- sh -c --brodo-x"));
}

#[test]
fn the_last_of_repeated_options_counts_or_all_of_them() {
    let words = ["--mtu=9000", "--address=192.0.2.5/24", "--address=2001:db8::5/64", "--gateway=192.0.2.1"];
    let options = "--config-net -m 1500 -m 9000 -a 192.0.2.5 -a 2001:db8::5 -g 192.0.2.1";
    let line = own(&format!("{options} 1"));
    for word in words {
        assert!(line.split(' ').any(|it| it == word), "{word} in {line}");
    }
    let twice = own(
        "--ns-mac-addr 02:00:00:00:00:01 -I a --ns-mac-addr 02:00:00:00:00:02 -I b -g 10.0.0.1 -g 10.0.0.2 1",
    );
    assert!(twice.contains("--mac=02:00:00:00:00:02 --ifname=b 1") && !twice.contains("10.0.0.1"), "{twice}");
    // Addresses of a family that is switched off do no harm: podman adds its own to a user's -6.
    let line = own(&format!("{options} -4 -6 --dns-forward 169.254.1.1 --map-guest-addr 169.254.1.2 1"));
    assert!(line.contains(" -6 ") && line.contains(words[2]), "{line}");
    assert!(!line.contains("-4 ") && !line.contains("192.0.2.") && !line.contains("169.254."), "{line}");
    for (options, word) in [
        ("-a 10.1.2.3", "10.1.2.3/8"),
        ("-a 172.16.0.1", "172.16.0.1/16"),
        ("-a 10.1.2.3 -n 24", "10.1.2.3/24"),
        ("-a 10.1.2.3 -n 255.255.255.0", "10.1.2.3/24"),
        ("-a 10.1.2.3/30", "10.1.2.3/30"),
    ] {
        assert!(own(&format!("{options} 1")).contains(&format!("--address={word} ")), "{options}");
    }
}

#[test]
fn none_offers_no_servers_and_no_search_names() {
    for (options, words) in [
        ("", "--offer-dns=none --search=."),
        ("--dhcp-dns --dhcp-search", ""),
        ("--dhcp-dns --dhcp-search -D none -S none", "--offer-dns=none --search=."),
        ("-D 9.9.9.9 -D none -S a.example -S none --dhcp-dns --dhcp-search", "--offer-dns=none --search=."),
        ("--dhcp-dns --dhcp-search -D none -D 9.9.9.9", "--offer-dns=9.9.9.9"),
        ("--dhcp-dns --dhcp-search -S none -S a.example", "--search=a.example"),
    ] {
        let line = own(&format!("{options} 1"));
        let found = line
            .split(' ')
            .filter(|word| ["--offer-dns=", "--search="].iter().any(|it| word.starts_with(it)));
        assert_eq!(found.collect::<Vec<_>>().join(" "), words, "{options}");
    }
}

#[test]
fn the_loopbacks_address_answers_dns_in_families_without_another_server() {
    for (options, families) in [
        ("", Some("ipv4,ipv6")),
        ("-4", Some("ipv4")),
        ("-6 --dhcp-dns", Some("ipv6")),
        ("--dns-forward 192.0.2.53", Some("ipv6")),
        ("-D 2001:db8::53", Some("ipv4")),
        ("-D none -D 9.9.9.9 -D 2001:db8::53", None),
        ("-D 9.9.9.9 -D none", None),
        ("--no-map-gw", None),
        ("--no-map-gw --map-host-loopback 192.0.2.7", Some("ipv4")),
        ("--splice-only", None),
    ] {
        let line = own(&format!("{options} 1"));
        let found = line.split(' ').find_map(|word| word.strip_prefix("--dns-at-loopback="));
        assert_eq!(found, families, "{options}");
    }
    let dns = settings("1").dns;
    assert!(dns.is_empty(), "no address for a resolv.conf: {dns:?}");
}

/// pasta offers the host's resolvers, brodo its own server, which asks them.
#[test]
fn dhcp_dns_alone_offers_brodos_server() {
    for (options, is_there) in [
        ("", false),
        ("--dhcp-dns", true),
        ("--dhcp-dns -D 9.9.9.9", false),
        ("--dhcp-dns -D none", false),
        ("-D 9.9.9.9", false),
        ("--dhcp-dns --dns-forward 192.0.2.53", true),
    ] {
        assert_eq!(!settings(&format!("{options} 1")).dns.is_empty(), is_there, "{options}");
    }
    assert!(!own("--dhcp-dns 1").contains("-dns="), "{}", own("--dhcp-dns 1"));
}

#[test]
fn one_outbound_interface_is_the_one_copied_too() {
    for (options, word) in [
        ("--outbound-if4 a", "--copy-host=a"),
        ("--outbound-if6 a", "--copy-host=a"),
        ("--outbound-if4 a --outbound-if6 a", "--copy-host=a"),
        ("--outbound-if4 a --outbound-if6 b", "--copy-host"),
        ("--outbound-if4 a --outbound-if6 b -6", "--copy-host=b"),
        ("--outbound-if4 a -6", "--copy-host"),
        ("--outbound-if4 a -i c", "--copy-host=c"),
    ] {
        let line = own(&format!("{options} 1"));
        assert!(line.split(' ').any(|it| it == word), "{options}: {line}");
    }
}

#[test]
fn the_router_stands_for_the_loopback_of_a_family_without_another_address() {
    for (options, words) in [
        ("", "--map-host-loopback=gateway"),
        ("--map-host-loopback 10.0.0.9", "--map-host-loopback=10.0.0.9 --map-host-loopback=gateway"),
        ("--no-map-gw --map-host-loopback 10.0.0.9", "--map-host-loopback=10.0.0.9"),
        ("--map-host-loopback none --map-host-loopback 10.0.0.9", "--map-host-loopback=10.0.0.9"),
        ("--map-host-loopback 10.0.0.9 --map-host-loopback none", ""),
    ] {
        let line = own(&format!("{options} 1"));
        let found = line.split(' ').filter(|word| word.starts_with("--map-host-loopback="));
        assert_eq!(found.collect::<Vec<_>>().join(" "), words, "{options}");
    }
}

#[test]
fn a_command_has_further_namespaces_and_splices_alone_no_network() {
    let line = own("--config-net --no-pidns -H name -- sh");
    assert!(line.contains(" --isolate=no-pid --hostname=name "), "{line}");
    assert!(line.contains(" --offer-hostname=name "), "{line}");
    let line = own("--config-net -H 'a.b --fqdn a.example -- sh");
    assert!(line.contains(" --hostname='a.b ") && !line.contains("--offer-hostname"), "{line}");
    assert!(line.contains(" --offer-fqdn=a.example "), "{line}");
    let line = own("--config-net --splice-only -- sh");
    for word in ["--no-configure", "--deny=0.0.0.0/0", "--deny=::/0", "--local-peers=loopback"] {
        assert!(line.split(' ').any(|it| it == word), "{word} in {line}");
    }
}

#[test]
fn a_small_mtu_leaves_ipv6_out_and_switches_what_they_name() {
    let line = own("-m 1000 -a 2001:db8::5 1");
    assert!(line.contains(" -4 --mtu=1000 ") && !line.contains("2001:db8"), "{line}");
    assert!(own("-m 68 1").contains(" -4 --mtu=88 "), "less than brodo's link has");
    let line = own("--no-tcp -t 80 -u 53 --no-icmp --no-dhcp --no-dhcpv6 1");
    for word in ["tcp", "ping", "ndp", "dhcp", "dhcpv6"] {
        assert!(line.contains(&format!(" --without={word} ")), "{word} in {line}");
    }
    assert!(line.contains(" -u53 -Uauto ") && !line.contains(" -t") && !line.contains(" -T"), "{line}");
}

/// Addresses of IPv6 do no harm on a host without: callers have the same line for every host.
#[test]
fn without_ipv6_its_options_change_nothing() {
    let options = "--config-net -a 2001:db8::5 -g fe80::1 --map-guest-addr fd00::1 --dns-forward fd00::2";
    let line = translated_where(false, &format!("{options} -a 192.0.2.5 1")).expect("a line");
    assert!(line.contains(" -4 --address=192.0.2.5/24 ") && line.contains("=gateway"), "{line}");
    assert!(!["2001:db8", "fe80", "fd00"].iter().any(|part| line.contains(part)), "{line}");
    let line = translated_where(false, &format!("{options} -6 1")).expect("a line");
    assert!(line.contains(" -6 --gateway=fe80::1 "), "IPv6 alone is for the host to refuse: {line}");
}

#[test]
fn none_in_front_of_other_ports_changes_nothing() {
    for (options, words) in [
        ("-t none -t 8080:80", "-t8080:80"),
        ("-t none -t none", "-tnone"),
        ("-t none -t none -t 80 -t 81", "-t80 -t81"),
        ("--no-tcp -t none -t 80", ""),
    ] {
        let line = own(&format!("{options} 1"));
        let found = line.split(' ').filter(|word| word.starts_with("-t"));
        assert_eq!(found.collect::<Vec<_>>().join(" "), words, "{options}");
    }
}

/// The line of podman-run(1), which names the network's own address, and passt's with another one.
#[test]
fn the_networks_own_address_can_be_the_guests() {
    let line = "--config-net -4 -a 10.0.2.0 -n 24 -g 10.0.2.2 --dns-forward 10.0.2.3 -t none -u none -- true";
    let v4 = settings(line).stack.v4.expect("IPv4");
    assert_eq!((v4.guest, v4.prefix_len), ([10, 0, 2, 0].into(), 24));
    assert_eq!((v4.gateway, v4.dns), ([10, 0, 2, 2].into(), Some([10, 0, 2, 3].into())));
}

#[test]
fn a_tap_that_is_there_is_served_with_or_without_its_namespace() {
    let line = own("--fd 7 -f --no-netns-quit --netns /x/net");
    assert!(line.starts_with("attach --copy-host --tap-fd=7 --mtu=") && line.contains("-tauto"), "{line}");
    assert!(line.ends_with("--outlive-target --netns=/x/net") && !line.contains("no-configure"), "{line}");
    let line = own("-F 7 -t 80");
    assert!(line.contains("--tap-fd=7") && line.contains("-t80 ") && !line.contains("auto"), "{line}");
    assert!(line.ends_with("--daemon"), "{line}");
    assert!(own("-f --stats 2 1").contains("--stats=2 1"));
}

#[test]
fn the_systems_log_and_another_user() {
    let words = |line: &str| translated(line).expect(line);
    assert!(words("1").contains(" --syslog "));
    for line in ["-d 1", "--trace 1", "-l /tmp/log 1", "--log-file /tmp/log -q 1"] {
        assert!(!words(line).contains("--syslog"), "{line}");
    }
    assert!(words("-d -q 1").contains(" --syslog "));
    assert!(words("--runas 1234:0 1").contains(" --run-as=1234:0 "));
    assert!(!words("--runas 1234 -- sh").contains("--run-as"), "a command stays its user's");
}

#[test]
fn options_of_brodos_own_pass_through() {
    let line = own("--brodo-deny=10.0.0.0/8 --config-net --brodo-no-offload 1");
    assert!(line.contains("--daemon --deny=10.0.0.0/8 --no-offload 1"), "{line}");
    assert!(own("--config-net sh --brodo-deny=10.0.0.0/8").ends_with(" -- sh --brodo-deny=10.0.0.0/8"));
}

#[test]
fn every_translation_is_a_line_of_brodo() {
    for line in [
        PODMAN,
        "",
        "--config-net -d --trace -q -f -e --pid /tmp/p --pcap /tmp/c -m 0 -a 10.0.0.2 -M 02:00:00:00:00:01 1",
        "-i eth7 -D 9.9.9.9 --dhcp-dns --dhcp-search -S a.example --dns-host 9.9.9.9 1",
        "-S none -D none --dhcp-dns --map-host-loopback 10.0.0.9 --map-host-loopback none -I tap7 1",
        "--ns-mac-addr 02:00:00:00:00:07 --no-netns-quit --netns-only --userns /proc/1/ns/user --netns /x/y",
        "--host-lo-to-ns-lo --chroot-fallback --runas 0 -- sh",
        "--splice-only --config-net --runas nobody -m 1000 --no-copy-routes --no-copy-addrs 1",
        "--no-tcp --no-udp --no-icmp --no-dhcp --no-ndp --no-dhcpv6 --no-ra -t 80 -u auto -m 68 1",
        "--fd 7 -f --stats 3",
        "--no-pidns -H name --fqdn name.example -- sh",
        "--no-splice -t 8080:80,~7 -t auto -u 53 -c /run/pesto 1",
        "--no-netns-quit --no-netns-quit --config-net --config-net -4 -4 -q -q -d -d --pid /a --pid /b 1",
        "-a 10.0.0.1 -a 10.0.0.2 -g 10.0.0.3 -g 10.0.0.4 --dns-forward 10.0.0.5 --dns-forward 10.0.0.6 1",
        "--dns-host 9.9.9.9 --dns-host 1.1.1.1 --map-guest-addr 10.0.0.7 --map-guest-addr 10.0.0.8 --no-netns-quit sh",
    ] {
        let text = translated(line).expect(line);
        let words = std::iter::once("brodo").chain(text.split(' '));
        let parsed = Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{line}: {error}"));
        assert!(matches!(parsed.command, Command::Run(_) | Command::Attach(_)), "{line}");
    }
}

/// Settings of a line, on a host without a network.
fn settings(line: &str) -> Settings {
    let text = translated(line).expect(line);
    let words = std::iter::once("brodo").chain(text.split(' '));
    let parsed = Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{line}: {error}"));
    let network = match parsed.command {
        Command::Run(run) => run.network,
        Command::Attach(attach) => attach.network,
        _ => panic!("{line}: neither run nor attach"),
    };
    let host = HostFacts { template: Some(Template::default()), ..HostFacts::default() };
    Settings::new(&network, &host).unwrap_or_else(|error| panic!("{line}: {error}"))
}

#[test]
fn loopback_wins_over_the_hosts_address_at_one_address() {
    let mapped = |line: &str| {
        let v4 = settings(line).stack.v4.expect("IPv4");
        (v4.host_loopback, v4.host_address)
    };
    let (podmans, router) = (Ipv4Addr::new(169, 254, 1, 2), Ipv4Addr::new(169, 254, 2, 2));
    assert_eq!(mapped(PODMAN), (None, Some(podmans)));
    assert_eq!(mapped(&format!("{PODMAN} --map-host-loopback {podmans}")), (Some(podmans), None));
    assert_eq!(mapped(&format!("--map-guest-addr {router} 1")), (Some(router), None));
    assert_eq!(mapped(&format!("--map-guest-addr {podmans} 1")), (Some(router), Some(podmans)));
}

#[test]
fn refusals_are_sentences() {
    for (line, text) in [
        ("--other 1", "pasta: unrecognized option '--other'"),
        ("-m 70000 1", "MTU 70000 too large (max 65521)"),
        ("-m x 1", "Invalid MTU"),
        ("-a x 1", "Invalid address: x"),
        ("-a 10.0.0.1/33 1", "Invalid address"),
        ("-n 255.0.255.0 1", "Invalid netmask"),
        ("-n 24 -a 10.0.0.1/24 1", "together"),
        ("--netns /x 1", "Both --netns and PID or command given"),
        ("--userns /x sh", "--userns requires"),
        ("--no-splice --host-lo-to-ns-lo 1", "incompatible"),
        ("-t 80 -t none 1", "-t none conflicts with previous options"),
        ("-U none -U 80 -U none 1", "-U none conflicts with previous options"),
        ("--fd x 1", "Invalid --fd: x"),
        ("--fd 3 -- true", "--fd is given together with a command"),
        ("--stats 1 1", "Can't display statistics if not running in foreground"),
        ("-f --stats 0 1", "Invalid --stats: 0"),
        ("--frob", "Usage: pasta [OPTION]... [COMMAND]"),
        ("--no-splice --splice-only 1", "incompatible"),
        ("--runas nobody-of-this-name -- true", "Invalid --runas option: nobody-of-this-name"),
        ("--runas nobody-of-this-name 1", "Invalid --runas option: nobody-of-this-name"),
        ("--runas 65534:nothing-of-this-name 1", "Invalid --runas option: 65534:nothing-of-this-name"),
    ] {
        let refusal = translated(line).expect_err(line);
        assert!(refusal.contains(text), "{line}: {refusal}");
    }
}

#[test]
fn help_and_version_name_brodo_and_every_option() {
    let help = translated("--help").expect("help");
    for option in TABLE {
        assert!(help.contains(&format!("--{}", option.long)), "{}", option.long);
    }
    let version = translated("-q --version").expect("version");
    assert!(version.starts_with("pasta ") && version.contains("(brodo)"), "{version}");
    let version = translated("--host-lo-to-ns-lo --version").expect("version");
    assert!(version.contains("brodo"));
}

#[test]
fn options_have_one_meaning() {
    for option in TABLE {
        let same = |other: &&super::super::getopt::Opt<Is>| {
            other.long == option.long || (option.short.is_some() && other.short == option.short)
        };
        assert_eq!(TABLE.iter().filter(same).count(), 1, "{}", option.long);
    }
}
