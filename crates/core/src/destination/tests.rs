//! The translation as a table.

use super::*;

fn to(config: &Config, remote: &str) -> Result<Destination, DropReason> {
    resolve(config, Some(0), remote.parse().unwrap())
}

#[test]
fn addresses_and_where_they_lead() {
    let mut config = Config::default();
    config.v4.as_mut().unwrap().host_loopback = Some(Ipv4Addr::new(10, 0, 2, 4));
    config.v6.as_mut().unwrap().host_loopback = Some("fd00::4".parse().unwrap());
    config.resolvers = vec!["127.0.0.53:53".parse().unwrap(), "[::1]:5353".parse().unwrap()];
    let host = |a: &str| Ok(Destination::Host(a.parse().unwrap()));
    let bad = Err(DropReason::BadDestination);
    let table = [
        ("192.0.2.1:80", host("192.0.2.1:80")),
        ("[2001:db8::1]:80", host("[2001:db8::1]:80")),
        ("10.0.2.3:53", Ok(Destination::Resolver("127.0.0.53:53".parse().unwrap()))),
        ("[fd00::3]:53", Ok(Destination::Resolver("127.0.0.53:53".parse().unwrap()))),
        ("10.0.2.3:80", Ok(Destination::Refused)),
        ("10.0.2.2:80", Ok(Destination::Refused)),
        ("[fe80::2]:80", Ok(Destination::Refused)),
        ("10.0.2.4:8080", host("127.0.0.1:8080")),
        ("[fd00::4]:8080", host("[::1]:8080")),
        // Addresses of the floor; the policy refuses them.
        ("169.254.169.254:80", host("169.254.169.254:80")),
        ("[fd00:ec2::254]:80", host("[fd00:ec2::254]:80")),
        ("127.0.0.1:80", host("127.0.0.1:80")),
        ("[::1]:80", host("[::1]:80")),
        ("[::ffff:127.0.0.1]:80", bad),
        ("0.0.0.0:80", bad),
        ("255.255.255.255:80", bad),
        ("224.0.0.251:5353", bad),
        ("[ff02::fb]:5353", bad),
        ("10.0.2.15:80", bad),
    ];
    for (remote, expected) in table {
        assert_eq!(to(&config, remote), expected, "{remote}");
    }
    assert_eq!(
        resolve(&config, Some(1), "10.0.2.3:53".parse().unwrap()),
        Ok(Destination::Resolver("[::1]:5353".parse().unwrap()))
    );
}

#[test]
fn without_resolvers_and_mapping_nothing_is_reached() {
    let config = Config::default();
    assert_eq!(to(&config, "10.0.2.3:53"), Ok(Destination::Refused));
    assert_eq!(to(&config, "10.0.2.4:80"), Ok(Destination::Host("10.0.2.4:80".parse().unwrap())));
}
