//! The link itself: DHCP, router advertisements, and the filter of source addresses.

use crate::Test;
use crate::bed::{Bed, LIMIT, PORT, check};
use brodo_bench::process::{Result, wait_until};
use brodo_bench::world::{HOST_V6, WORLD_V4, WORLD_V6};
use std::fs;
use std::os::unix::fs::PermissionsExt;

pub(crate) const TESTS: &[Test] = &[
    Test::new("DHCP", dhcp).with(&["busybox"]),
    Test::new("router advertisements configure the guest", advertisements),
    Test::new("false source addresses are refused", spoofing),
];

fn dhcp(bed: &Bed) -> Result<()> {
    let script = bed.world.folder().join("udhcpc.sh");
    let text = "#!/bin/sh\n[ \"$1\" != bound ] || echo \"ip=$ip/$mask router=$router dns=$dns mtu=$mtu\"\n";
    let written = fs::write(&script, text)
        .and_then(|()| fs::set_permissions(&script, fs::Permissions::from_mode(0o755)));
    check(written.is_ok(), || format!("{}: {written:?}", script.display()))?;
    let script = script.to_string_lossy();
    let words = ["busybox", "udhcpc", "-i", "eth0", "-f", "-q", "-n", "-t", "3", "-O", "mtu", "-s", &script];
    let finished = bed.run(&words)?;
    let expected = format!("ip=10.0.2.15/24 router=10.0.2.2 dns=10.0.2.3 mtu={}", bed.link.mtu);
    check(finished.stdout.trim() == expected, || finished.failure(&format!("expected {expected}")).0)
}

/// Router solicitation by the guest's kernel when the link comes up again; brodo survives its going down.
fn advertisements(bed: &Bed) -> Result<()> {
    // brodo has configured the interface and switched SLAAC off: undone first.
    let script = "set -e; cd /proc/sys/net/ipv6/conf/eth0; echo 0 > addr_gen_mode; echo 2 > accept_ra; \
                  ip link set eth0 down; ip addr flush dev eth0; ip link set eth0 up";
    bed.run(&["sh", "-c", script])?;
    let route = || Some(bed.attempt(&["ip", "-6", "route", "show", "default"]).ok()?.stdout);
    let found = wait_until(LIMIT, || route().filter(|text| text.contains("proto ra")));
    check(found.is_some(), || format!("no route from a router advertisement: {:?}", route()))?;
    let address = || bed.attempt(&["ip", "-6", "addr", "show", "dev", "eth0", "scope", "global"]).ok();
    let ready = |text: &str| text.contains("fd00::") && !text.contains("tentative");
    let found = wait_until(LIMIT, || address().filter(|finished| ready(&finished.stdout)));
    check(found.is_some(), || format!("no address from a router advertisement: {:?}", address()))?;
    // The SLAAC address is accepted as a source.
    for server in [HOST_V6, WORLD_V6] {
        let found = bed.probe(&["download", server, PORT, "1000000"])?;
        check(found["equal"] == true, || format!("{server}: {found}"))?;
    }
    Ok(())
}

fn spoofing(bed: &Bed) -> Result<()> {
    let collector = bed.world.probe().into_iter().chain(["collect", "7200"].map(str::to_owned));
    let mut collector = bed.world.start(&bed.world.world.enter(), collector)?;
    let listening = wait_until(LIMIT, || brodo_bench::procfs::is_bound(collector.pid(), 7200).then_some(()));
    check(listening.is_some() && collector.is_running(), || collector.describe())?;
    let send = |server: &str, source: &str, text: &str| -> Result<()> {
        let found = bed.root_probe(&["forged-datagram", server, "7200", source, text])?;
        check(found["sent"] == true, || format!("{source} to {server}: {found}"))
    };
    let arrived = |text: &str| wait_until(LIMIT, || collector.stdout().contains(text).then_some(()));
    // Control: the guest's own addresses pass, so the frames are well-formed.
    for (server, own, others) in [
        (WORLD_V4, "10.0.2.15", ["10.0.2.77", "10.0.2.2", "198.18.0.1", "127.0.0.1", "0.0.0.0"]),
        (WORLD_V6, "fd00::15", ["fd00:99::15", "fd00:18::1", "2001:db8::1", "::1", "::"]),
    ] {
        send(server, own, &format!("genuine from {own}"))?;
        check(arrived(&format!("genuine from {own}")).is_some(), || collector.describe())?;
        for other in others {
            send(server, other, "forged")?;
        }
        // Order is kept: once the last one has arrived, a forged one would have.
        send(server, own, &format!("last from {own}"))?;
        check(arrived(&format!("last from {own}")).is_some(), || collector.describe())?;
    }
    check(!collector.stdout().contains("forged"), || collector.describe())?;
    let finished = bed.finish_whole()?;
    let counted = finished.stderr.lines().any(|line| line.contains("SpoofedSource"));
    check(counted, || finished.failure("no SpoofedSource among the counters").0)
}
