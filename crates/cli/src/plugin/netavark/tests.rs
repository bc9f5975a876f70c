//! Networks and containers of netavark as words, without a namespace.

use super::*;

fn words(network: Value, more: Value) -> Vec<String> {
    let mut input = json!({
        "container_id": "c1", "container_name": "c", "port_mappings": null,
        "network": { "name": "n", "id": "1", "driver": "brodo", "dns_enabled": false },
        "network_options": { "aliases": [], "interface_name": "eth0", "static_ips": null, "static_mac": null },
    });
    for (place, keys) in [("network", network), ("network_options", more)] {
        let keys = keys.as_object().expect("keys").clone();
        input[place].as_object_mut().expect("keys").extend(keys);
    }
    let container = serde_json::from_value(input).expect("a container");
    let words = line(&container, "/run/netns/a").expect("words");
    words.into_iter().skip(2).map(|word| word.into_string().expect("UTF-8")).collect()
}

#[test]
fn subnets_statics_and_options_become_words() {
    let subnets = json!([{ "subnet": "10.9.0.0/16", "gateway": "10.9.0.1" }]);
    for (network, more, expected) in [
        (json!({}), json!({}), &["--local-peers=address"][..]),
        (
            json!({ "subnets": subnets.clone(), "options": { "mtu": "1500", "deny": "10.0.0.0/8 host", "copy-host": "false" } }),
            json!({}),
            &[
                "--address=10.9.0.15/16",
                "--gateway=10.9.0.1",
                "-4",
                "--local-peers=address",
                "--deny=10.0.0.0/8",
                "--deny=host",
                "--mtu=1500",
            ],
        ),
        (
            json!({ "subnets": [subnets[0], { "subnet": "fd09::/64" }], "internal": true }),
            json!({ "static_ips": ["10.9.1.1", "fd09::7"], "static_mac": "52:55:00:00:00:01" }),
            &[
                "--address=10.9.1.1/16",
                "--gateway=10.9.0.1",
                "--address=fd09::7/64",
                "--mac=52:55:00:00:00:01",
                "--deny=0.0.0.0/0",
                "--deny=::/0",
                "--local-peers=address",
            ],
        ),
    ] {
        assert_eq!(words(network, more), expected);
    }
}

#[test]
fn a_network_is_completed_and_a_faulty_one_refused() {
    let network = |keys: Value| {
        let mut all = json!({ "name": "n", "id": "1", "driver": "brodo", "network_interface": "", "ipv6_enabled": false });
        all.as_object_mut().expect("keys").extend(keys.as_object().expect("keys").clone());
        create(all)
    };
    let made = network(json!({})).expect("a network");
    assert_eq!(made["subnets"], json!([{ "subnet": "10.0.2.0/24", "gateway": "10.0.2.2" }]));
    assert_eq!((&made["name"], &made["ipam_options"]["driver"]), (&json!("n"), &json!("none")));
    for (keys, part) in [
        (json!({ "options": { "frobnicate": "1" } }), "`frobnicate` is not an option"),
        (json!({ "options": { "mtu": "7" } }), "--mtu"),
        (json!({ "subnets": [{ "subnet": "10.0.0.1" }] }), "is not a network"),
    ] {
        let error = network(keys).expect_err(part);
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn a_command_without_a_namespace_or_of_another_name_is_an_error() {
    for (words, part) in [(&["setup"][..], "path of the network namespace"), (&["frobnicate"], "is none of")]
    {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        assert!(done(&words).expect_err(part).contains(part));
    }
    assert_eq!(done(&[]).expect("a version")["api_version"], "1.0.0");
}
