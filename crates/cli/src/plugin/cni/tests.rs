//! Configurations and results of CNI, without a namespace.

use super::config::{Attachment, Network};
use super::ipam::Lease;
use super::*;
use brodo_net::netlink::template::InterfaceAddress;

fn network(keys: &Value) -> Network {
    let mut all = json!({ "cniVersion": "1.1.0", "name": "n", "type": "brodo" });
    let given = keys.as_object().expect("keys").clone();
    all.as_object_mut().expect("keys").extend(given);
    Network::parse(all.to_string().as_bytes()).expect("a configuration")
}

fn words(keys: &Value) -> Vec<String> {
    let words = network(keys).link().and_then(|link| link.words("c1", None)).expect("words");
    words.into_iter().map(|word| word.into_string().expect("UTF-8")).collect()
}

#[test]
fn keys_capabilities_and_subnets_become_words() {
    for (keys, expected) in [
        (json!({}), &["--local-peers=address"][..]),
        (
            json!({ "subnet": "10.9.0.0/16", "mtu": 1500, "deny": ["10.0.0.0/8"], "local-peers": "link" }),
            &["--address=10.9.0.15/16", "-4", "--deny=10.0.0.0/8", "--local-peers=link", "--mtu=1500"],
        ),
        (
            json!({ "subnet": ["10.9.0.0/16", "fd09::/64"], "gateway": ["10.9.0.15"], "runtimeConfig": {
                "mac": "52:55:00:00:00:01",
                "portMappings": [{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }],
                "bandwidth": { "ingressRate": 1 },
            } }),
            &[
                "--address=10.9.0.5/16",
                "--address=fd09::f/64",
                "--mac=52:55:00:00:00:01",
                "--tcp-ports=8080:80",
                "--local-peers=address",
                "--gateway=10.9.0.15",
            ],
        ),
        (
            json!({ "subnet": "10.9.0.0/16", "runtimeConfig": { "ips": ["10.9.0.7/16"] }, "ipMasq": true,
                "dns": { "nameservers": ["9.9.9.9"] }, "cni.dev/other": 1, "capabilities": { "mac": true } }),
            &["--address=10.9.0.7/16", "-4", "--local-peers=address"],
        ),
    ] {
        assert_eq!(words(&keys), expected, "{keys}");
    }
}

#[test]
fn faults_of_a_configuration_have_their_code() {
    for (text, code) in [
        ("{", Code::Decoding),
        ("[]", Code::Decoding),
        (r#"{"cniVersion":"1.1.0"}"#, Code::InvalidConfiguration),
        (r#"{"name":"../n"}"#, Code::InvalidConfiguration),
        (r#"{"name":"n","runtimeConfig":{"portMappings":7}}"#, Code::Decoding),
        (r#"{"name":"n","dns":{"nameservers":["x"]}}"#, Code::Decoding),
    ] {
        let link = Network::parse(text.as_bytes()).and_then(|network| network.link());
        assert_eq!(link.expect_err(text).code, code, "{text}");
    }
    // DEL needs no link.
    for keys in [json!({ "runtimeConfig": 7 }), json!({ "dns": 7 }), json!({ "subnet": 7 })] {
        assert_eq!(network(&keys).name, "n", "{keys}");
    }
    for keys in [json!({ "frobnicate": 1 }), json!({ "daemon": true }), json!({ "subnet": "10.0.0.0/32" })] {
        let error = network(&keys).link().and_then(|link| link.words("c1", None)).expect_err("refused");
        assert_eq!(error.code, Code::InvalidConfiguration, "{keys}");
    }
}

#[test]
fn addresses_of_one_family_leave_the_subnet_of_the_other() {
    let both = json!(["10.9.0.0/16", "fd09::/64"]);
    let lease = json!({ "ips": [{ "address": "10.7.0.9/24", "gateway": "10.7.0.1" }] });
    let lease: Lease = serde_json::from_value(lease).expect("a lease");
    for (subnet, ips, lease, expected) in [
        (&both, json!(["fd09::7"]), None, &["--address=fd09::7/64", "--address=10.9.0.15/16"][..]),
        (&both, json!(["10.9.0.7", "fd09::8/80"]), None, &["--address=10.9.0.7/16", "--address=fd09::8/80"]),
        (&both, json!(["10.8.0.7"]), None, &["--address=10.8.0.7/32", "--address=fd09::f/64"]),
        (&Value::Null, json!(["fd00::7"]), None, &["--address=fd00::7/64"]),
        (&Value::Null, json!(["nonsense"]), None, &["--address=nonsense"]),
        (&both, json!([]), Some(&lease), &["--address=10.7.0.9/24", "--address=fd09::f/64"]),
    ] {
        let network = network(&json!({ "subnet": subnet, "runtimeConfig": { "ips": ips } }));
        let words = network.link().and_then(|link| link.words("c1", lease)).expect("words");
        let words: Vec<_> = words.iter().filter_map(|word| word.to_str()).collect();
        let addresses: Vec<_> = words.into_iter().filter(|word| word.starts_with("--address")).collect();
        assert_eq!(addresses, expected, "{subnet} {ips}");
    }
}

#[test]
fn one_family_alone_is_that_of_lease_or_subnet() {
    let lease = |address: &str| {
        let ips = json!({ "ips": [{ "address": address }] });
        serde_json::from_value::<Lease>(ips).expect("a lease")
    };
    let (v4, v6) = (lease("10.7.0.9/24"), lease("fd07::9/64"));
    for (keys, lease, expected) in [
        (json!({}), Some(&v4), Some("-4")),
        (json!({}), Some(&v6), Some("-6")),
        (json!({ "subnet": "fd09::/64" }), Some(&v4), None),
        (json!({ "subnet": "fd09::/64" }), None, Some("-6")),
        (json!({ "subnet": ["10.9.0.0/16", "fd09::/64"] }), None, None),
        (json!({ "runtimeConfig": { "ips": ["fd00::7"] } }), None, None),
        (json!({ "copy-host": true }), Some(&v4), None),
        (json!({ "gateway": "fd00::2" }), Some(&v4), None),
        (json!({ "ipv4-only": false }), Some(&v4), None),
    ] {
        let words = network(&keys).link().and_then(|link| link.words("c1", lease)).expect("words");
        let found = words.iter().filter_map(|word| word.to_str()).find(|word| ["-4", "-6"].contains(word));
        assert_eq!(found, expected, "{keys}");
    }
}

#[test]
fn ports_of_a_family_that_the_container_lacks_are_left_out() {
    let port = |host: u16, ip: &str| json!({ "hostPort": host, "containerPort": 80, "hostIP": ip });
    let ports = json!({ "portMappings": [port(1, ""), port(2, "0.0.0.0"), port(3, "::")] });
    for (subnet, expected) in [
        (json!("10.9.0.0/16"), &["--tcp-ports=1:80", "--tcp-ports=0.0.0.0/2:80"][..]),
        (json!("fd09::/64"), &["--tcp-ports=1:80", "--tcp-ports=::/3:80"]),
        (Value::Null, &["--tcp-ports=1:80", "--tcp-ports=0.0.0.0/2:80", "--tcp-ports=::/3:80"]),
    ] {
        let words = words(&json!({ "subnet": subnet, "runtimeConfig": ports }));
        let found: Vec<_> = words.into_iter().filter(|word| word.starts_with("--tcp-ports")).collect();
        assert_eq!(found, expected, "{subnet}");
    }
}

/// Values as go-cni writes them: keys in its own case, null for what is not set.
#[test]
fn keys_of_a_runtime_have_any_case_and_null_is_an_empty_list() {
    let runtime = json!({
        "portMappings": [{ "HostPort": 8080, "ContainerPort": 80, "Protocol": "tcp", "HostIP": "" }],
        "ips": null, "mac": null, "dns": { "Servers": ["9.9.9.9"], "Searches": null, "Options": ["ndots:1"] },
    });
    let keys = json!({ "runtimeConfig": runtime, "dns": { "search": null } });
    assert_eq!(words(&keys), ["--tcp-ports=8080:80", "--local-peers=address"]);
    let expected = json!({ "nameservers": ["9.9.9.9"], "search": ["example.org"], "options": ["ndots:1"] });
    assert_eq!(result(&keys)["dns"], expected);
    assert_eq!(
        words(&json!({ "runtimeConfig": { "portMappings": null, "dns": null } })),
        ["--local-peers=address"]
    );
}

#[test]
fn a_lease_has_the_place_of_the_subnet() {
    let lease: Lease = serde_json::from_value(json!({
        "cniVersion": "1.0.0",
        "ips": [
            { "address": "10.7.0.9/24", "gateway": "10.7.0.1" },
            { "address": "10.7.0.10/24", "gateway": "10.7.0.1" },
            { "address": "fd07::9/64", "gateway": "fd07::1" },
        ],
        "dns": { "nameservers": ["10.7.0.53"] },
    }))
    .expect("a lease");
    let words = network(&json!({ "ipam": { "type": "host-local" }, "subnet": "10.0.0.0/8" }));
    let words = words.link().and_then(|link| link.words("c1", Some(&lease))).expect("words");
    let expected = [
        "--address=10.7.0.9/24",
        "--address=10.7.0.10/24",
        "--address=fd07::9/64",
        "--gateway=10.7.0.1",
        "--gateway=fd07::1",
        "--local-peers=address",
    ];
    assert_eq!(words, expected);
    assert_eq!(lease.nameservers(), ["10.7.0.53".parse::<std::net::IpAddr>().expect("an address")]);
}

fn described() -> Described {
    let address =
        |text: &str, prefix_len| InterfaceAddress { address: text.parse().expect("one"), prefix_len };
    Described {
        mac: "52:55:0a:00:02:0f".to_owned(),
        mtu: 65520,
        addresses: vec![address("10.0.2.15", 24), address("fd00::15", 64)],
        gateways: ["10.0.2.2", "fd00::2"].map(|it| it.parse().expect("one")).to_vec(),
        dns: vec!["10.0.2.3".parse().expect("one")],
        search: vec!["example.org".to_owned()],
    }
}

fn result(keys: &Value) -> Value {
    let (interface, sandbox) = ("eth0".to_owned(), "/run/netns/a".to_owned());
    let (network, attachment) =
        (network(keys), Attachment { interface, sandbox, described: described(), leased: None });
    attachment.result(&network, &network.link().expect("a link"))
}

#[test]
fn a_result_names_interface_addresses_routes_and_names() {
    let expected = json!({
        "cniVersion": "1.1.0",
        "interfaces": [{ "name": "eth0", "mac": "52:55:0a:00:02:0f", "mtu": 65520, "sandbox": "/run/netns/a" }],
        "ips": [
            { "address": "10.0.2.15/24", "gateway": "10.0.2.2", "interface": 0 },
            { "address": "fd00::15/64", "gateway": "fd00::2", "interface": 0 },
        ],
        "routes": [{ "dst": "0.0.0.0/0", "gw": "10.0.2.2" }, { "dst": "::/0", "gw": "fd00::2" }],
        "dns": { "nameservers": ["10.0.2.3"], "search": ["example.org"] },
    });
    assert_eq!(result(&json!({})), expected);
    let old = result(&json!({ "cniVersion": "0.4.0", "dns": { "nameservers": ["9.9.9.9"], "domain": "a" } }));
    assert_eq!((&old["ips"][1]["version"], &old["interfaces"][0]["mtu"]), (&json!("6"), &Value::Null));
    assert_eq!(old["dns"], json!({ "nameservers": ["9.9.9.9"], "search": ["example.org"], "domain": "a" }));
}

#[test]
fn an_earlier_plugin_s_result_is_passed_on_and_checked_for_its_interface_alone() {
    let previous = json!({
        "cniVersion": "1.1.0",
        "interfaces": [{ "name": "lo" }],
        "ips": [{ "address": "127.0.0.2/8", "interface": 0 }],
        "routes": [],
    });
    let result = result(&json!({ "prevResult": previous }));
    assert_eq!(
        (&result["interfaces"][0]["name"], &result["interfaces"][1]["name"]),
        (&json!("lo"), &json!("eth0"))
    );
    assert_eq!((&result["ips"][0]["interface"], &result["ips"][1]["interface"]), (&json!(0), &json!(1)));
    let later = network(&json!({ "prevResult": result }));
    assert_eq!(later.previous_addresses("eth0").expect("a result"), ["10.0.2.15/24", "fd00::15/64"]);
    assert_eq!(network(&json!({})).previous_addresses("eth0"), None);
}
