//! Options as written and the resulting settings: defaults, derived values, contradictions.

use super::*;
use crate::args::{Cli, Command};
use brodo_core::config::Bulk;
use brodo_core::wire::ethernet::MacAddr;
use clap::Parser;

fn host() -> HostFacts {
    HostFacts {
        ipv6: true,
        resolv_conf: ResolvConf {
            resolvers: vec!["10.1.1.1:53".parse().unwrap()],
            search: vec!["host.example".into()],
        },
        policy: PolicyFiles::default(),
        template: None,
    }
}

fn settings_on(host: &HostFacts, words: &str) -> Result<Settings, String> {
    let words = ["brodo", "run"].into_iter().chain(words.split_whitespace());
    let Command::Run(run) = Cli::try_parse_from(words).unwrap().command else { panic!("not run") };
    Settings::new(&run.network, host)
}

fn settings(words: &str) -> Settings {
    settings_on(&host(), words).unwrap()
}

#[test]
fn without_options_the_stack_has_its_defaults() {
    let plain = settings("");
    let expected = Config {
        guest_mac: Some(MacAddr([0x52, 0x55, 10, 0, 2, 15])),
        search: vec!["host.example".into()],
        resolvers: vec!["10.1.1.1:53".parse().unwrap()],
        // A stack by itself has no way to kernel sockets; brodo has.
        bulk: Bulk::Kernel,
        ..Config::default()
    };
    assert_eq!(plain.stack, expected);
    assert!(plain.follow.resolvers && plain.follow.search);
    assert_eq!(plain.dns, ["10.0.2.3".parse::<IpAddr>().unwrap(), "fd00::3".parse().unwrap()]);
    assert_eq!(plain.plan.interface.mac, [0x52, 0x55, 10, 0, 2, 15]);
    assert_eq!(plain.plan.interface.mtu, plain.stack.mtu);
}

#[test]
fn help_tells_the_stack_s_defaults() {
    let stack = Config::default();
    let mut command = <Cli as clap::CommandFactory>::command();
    let run = command.find_subcommand_mut("run").unwrap();
    let help = run.render_long_help().to_string();
    let mib = |bytes: usize| format!("{}M", bytes >> 20);
    let bounds = |b: BufferBounds| format!("{}K..{}", b.initial >> 10, mib(b.max as usize));
    for default in [
        format!("[default: {}]", stack.mtu),
        format!("[default: {}]", bounds(stack.tcp_rx)),
        format!("[default: {}]", mib(stack.memory)),
        format!("[default: {}]", stack.max_flows),
        format!("[default: {}]", stack.rules.questions),
        format!("[default: {TX_QUEUE_LEN_DEFAULT}]"),
    ] {
        assert!(help.contains(&default), "{default} is not in the help:\n{help}");
    }
    assert_eq!(stack.tcp_rx, stack.tcp_tx, "the help gives one default for both");
    let (v4, v6) = (stack.v4.unwrap(), stack.v6.unwrap());
    for default in [
        format!("[default: {}/{} and {}/{}]", v4.guest, v4.prefix_len, v6.guest, v6.prefix_len),
        format!("[default: {} and {}]", v4.gateway, v6.gateway),
        format!("[default: {} and {}]", v4.dns.unwrap(), v6.dns.unwrap()),
    ] {
        assert!(help.contains(&default), "{default} is not in the help:\n{help}");
    }
}

#[test]
fn one_family_can_be_switched_off() {
    let v4 = settings("-4");
    assert!(
        v4.stack.v4.is_some()
            && v4.stack.v6.is_none()
            && v4.plan.interface.addresses.iter().all(|it| it.address.is_ipv4())
    );
    assert_eq!(v4.dns.len(), 1);
    let v6 = settings("-6");
    assert!(
        v6.stack.v4.is_none()
            && v6.stack.v6.is_some()
            && v6.plan.interface.addresses.iter().all(|it| it.address.is_ipv6())
    );
    assert_ne!(v6.plan.interface.mac, v6.stack.mac.0);
}

#[test]
fn a_kernel_without_ipv6_is_no_obstacle_unless_ipv6_is_asked_for() {
    let host = HostFacts { ipv6: false, ..host() };
    assert_eq!(settings_on(&host, "").unwrap().stack.v6, None);
    for words in ["-6", "--address fd01::5/64", "--dns fd01::1"] {
        let refusal = settings_on(&host, words).unwrap_err();
        assert!(refusal.contains("without IPv6"), "{words}: {refusal}");
    }
}

#[test]
fn a_family_that_is_not_named_keeps_its_default() {
    let plain = settings("--address 192.168.7.5/24");
    assert_eq!(plain.stack.v6, Config::default().v6);
    let net = plain.stack.v4.unwrap();
    assert_eq!(
        (net.gateway.to_string(), net.dns.unwrap().to_string()),
        ("192.168.7.2".into(), "192.168.7.3".into())
    );
    assert_eq!(plain.plan.interface.mac, [0x52, 0x55, 192, 168, 7, 5]);
    assert_eq!(plain.stack.mac.0, [0x52, 0x55, 192, 168, 7, 2]);
}

#[test]
fn options_reach_what_they_are_about() {
    let all = settings(
        "--mtu 1500 --mac 02:00:00:00:00:07 --ifname up0 --resolver 9.9.9.9 --resolver [::1]:54 --search a.example \
         --search b.example --map-host-loopback 10.0.2.2 --tcp-rx-buffer 16K..1M --tcp-tx-buffer 32K \
         --memory 8M --max-flows 100 --busy-poll 70 --no-offload --tx-queue-len 10",
    );
    assert_eq!((all.stack.mtu, all.plan.interface.mtu), (1500, 1500));
    assert_eq!((all.plan.interface.mac, all.plan.interface.name.as_str()), ([2, 0, 0, 0, 0, 7], "up0"));
    assert_eq!(all.stack.resolvers, ["9.9.9.9:53".parse().unwrap(), "[::1]:54".parse().unwrap()]);
    assert!(!all.follow.resolvers && !all.follow.search);
    assert_eq!(all.stack.search, ["a.example", "b.example"]);
    assert_eq!(all.stack.v4.unwrap().host_loopback, Some([10, 0, 2, 2].into()));
    assert_eq!((all.stack.tcp_rx.initial, all.stack.tcp_rx.max), (16 << 10, 1 << 20));
    assert_eq!((all.stack.tcp_tx.initial, all.stack.tcp_tx.max), (32 << 10, 32 << 10));
    assert_eq!((all.stack.memory, all.stack.max_flows), (8 << 20, 100));
    assert_eq!((all.busy_poll.as_micros(), settings("--busy-poll 0").busy_poll.as_micros()), (70, 0));
    // As many workers as there can be are more than the processors of most machines.
    let of_many = settings("--workers 64").busy_poll.as_micros();
    assert!(of_many == 0 || std::thread::available_parallelism().is_ok_and(|n| n.get() >= 64), "{of_many}");
    assert_eq!(all.plan.offload, Wanted::NoOffload);
    assert_eq!((all.plan.interface.tx_queue_len, settings("").plan.interface.tx_queue_len), (10, 4096));
    assert!(settings("--search .").stack.search.is_empty());
}

#[test]
fn no_option_lifts_the_floor_of_a_policy() {
    assert!(settings("--allow-link-local").stack.rules.link_local);
    assert!(!settings("--allow-link-local --allow a.example").stack.rules.link_local);
}

#[test]
fn the_router_never_has_the_guest_s_mac_address() {
    let clash = settings("--mac 52:55:0a:00:02:02");
    assert_ne!(clash.stack.mac.0, clash.plan.interface.mac);
    assert_eq!(clash.stack.mac.0[0] & 1, 0);
}

#[test]
fn contradictions_are_refused() {
    for (words, about) in [
        ("-4 --address fd01::5/64", "--address fd01::5 is IPv6, which -4 switches off"),
        ("-6 --gateway 10.0.2.1", "which -6 switches off"),
        ("-4 --dns fd00::9", "which -4 switches off"),
        ("-6 --map-host-loopback 10.0.2.2", "which -6 switches off"),
        ("--gateway fd00::7 --gateway fd00::8", "twice for IPv6"),
        ("--gateway 10.0.2.15", "the guest's own address"),
        ("--dns 10.0.2.15", "the guest's own address"),
        ("--tcp-tx-buffer 2M..4M --memory 1M", "less than one connection's initial buffer"),
    ] {
        let refusal = settings_on(&host(), words).expect_err(words);
        assert!(refusal.contains(about), "{words}: {refusal}");
    }
}

#[test]
fn a_guest_may_have_several_addresses_of_a_family() {
    let settings = settings("--address 10.0.0.1/24 --address 10.0.0.9/24 --address fd07::1/64");
    assert_eq!(settings.stack.more_addresses, ["10.0.0.9".parse::<IpAddr>().unwrap()]);
    assert_eq!(settings.plan.interface.addresses.len(), 3);
    assert_eq!(settings.stack.v4.unwrap().guest, std::net::Ipv4Addr::new(10, 0, 0, 1));
}

#[test]
fn a_copy_has_the_name_and_mtu_of_the_hosts_interface() {
    let template = Template { name: "wlan0".to_owned(), mtu: 9000, ..Template::default() };
    let host = HostFacts { template: Some(template), ..host() };
    let copied = settings_on(&host, "--dns none --offer-dns 9.9.9.9").unwrap();
    assert_eq!((copied.plan.interface.name.as_str(), copied.plan.interface.mtu), ("wlan0", 9000));
    assert!(copied.dns.is_empty() && copied.stack.host_link.is_some());
    assert!(copied.stack.v6.is_some_and(|net| net.guest.is_unicast_link_local()), "the host has no IPv6");
    assert_eq!(copied.stack.dns_offered_v4(), Some([9, 9, 9, 9].into()));
    // A guest that is kept from the network by addresses would reach its hosts by a group.
    let leaves = |words| settings_on(&host, words).unwrap().stack.multicast;
    assert!(leaves("") && !leaves("--deny 10.0.0.0/8") && !leaves("--multicast off"));
    assert!(leaves("--deny 10.0.0.0/8 --multicast on"));
    assert!(!settings("").stack.multicast && settings("--multicast on").stack.multicast);
    let replaced = settings_on(&host, "--ifname up0 --mtu 1400").unwrap();
    assert_eq!((replaced.plan.interface.name.as_str(), replaced.plan.interface.mtu), ("up0", 1400));
    let none = HostFacts { template: Some(Template::default()), ..host };
    assert_eq!(settings_on(&none, "").unwrap().plan.interface.name, IFNAME_OF_NONE);
}

#[test]
fn files_that_are_written_are_different_ones() {
    let folder = std::env::temp_dir().join(format!("brodo-files-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = |name: &str| folder.join(name).display().to_string();
    std::fs::write(path("there"), "").unwrap();
    std::fs::hard_link(path("there"), path("link")).unwrap();
    let (new, there, link, other) = (path("new"), path("there"), path("link"), path("other"));
    let twice = [
        format!("--flow-log {new} --audit {new} --allow a.example"),
        format!("--flow-log {new} --pcap {}/./new", folder.display()),
        format!("--pcap {there} --pid-file {link}"),
        format!("--learn {there} --flow-log {there}"),
    ];
    for words in twice {
        let error = settings_on(&host(), &words).unwrap_err();
        assert!(error.contains(" name one file, "), "{words}: {error}");
    }
    for words in [format!("--flow-log {new} --pcap {other}"), "--flow-log /dev/null --pcap /dev/null".into()]
    {
        settings(&words);
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
