//! Testbeds of long paths: the emulated path lies behind brodo's host sockets, or between brodo and its
//! guest.
//!
//! ```text
//!   behind the host     guest --TAP-- brodo == host namespace --wan-- far namespace (server)
//!   on the guest link   remote guest --wan-- gate namespace --TAP-- brodo == host namespace (server)
//! ```
//!
//! In the second brodo is attached to a *gate*, a namespace that only forwards. The guest's address lies at
//! the far end of the path, not in the gate, so that no address has to be translated: brodo sees 10.0.2.15 at
//! the gate's MAC address, and for the gate that is an address behind its other interface. Segments that the
//! guest's kernel has not cut stay in one piece over the path, through the gate and into brodo.
//!
//! For comparison, the direct way over the same path, between two kernels: from the host namespace to the far
//! one, or from the guest to a server in the gate.

use super::{DEVICE, End, Path, Wan};
use crate::process::{PATIENCE, Result};
use crate::system::{Guest, crashes};
use crate::world::{HOST_V4, World};
use serde_json::Value;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

/// Port of the probe's servers.
const PORT: u16 = 7000;

/// Address of the path's near end: brodo's host, or the gate.
const NEAR: Ipv4Addr = Ipv4Addr::new(198, 18, 77, 1);
/// The far server.
const FAR: Ipv4Addr = Ipv4Addr::new(198, 18, 77, 2);
/// The guest's address.
const GUEST: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);

/// tcp_no_metrics_save: one connection must not speed up or slow down the next one.
const SYSCTLS: &[(&str, &str)] = &[("ipv4/tcp_no_metrics_save", "1")];

/// Position of the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// Between the host and the server.
    BehindHost,
    /// Between the guest and brodo.
    OnGuestLink,
}

/// Client and server of one way over the path.
#[derive(Debug, Clone)]
pub struct Way {
    /// Command prefix that runs a program at the client's end.
    enter: Vec<String>,
    /// Address of the server from there.
    server: String,
}

/// The emulated path, brodo, and the namespaces at its ends.
#[derive(Debug)]
pub struct Testbed {
    /// The path.
    pub wan: Wan,
    /// Way from the guest through brodo to the server.
    pub through: Way,
    /// Way over the same path without brodo.
    pub direct: Way,
    /// brodo with its guest or the gate.
    pub guest: Guest,
    world: World,
}

impl Testbed {
    /// Builds namespaces, path and brodo. `paths` are from the client to the server and back; `options` are
    /// brodo's.
    pub fn new(
        placement: Placement,
        program: &std::path::Path,
        options: &[&str],
        mtu: u32,
        paths: [Path; 2],
    ) -> Result<Self> {
        let world = World::new()?;
        world.host.set(SYSCTLS)?;
        let program = world.install_program(program)?.to_string_lossy().into_owned();
        let mtu_text = mtu.to_string();
        let options = ["-v", "--mtu", &mtu_text].into_iter().chain(options.iter().copied());
        match placement {
            Placement::BehindHost => {
                let words: Vec<&str> =
                    [program.as_str(), "run"].into_iter().chain(options).chain(["--"]).collect();
                Self::behind_host(world, &words, mtu, paths)
            }
            Placement::OnGuestLink => {
                let words = [program.as_str(), "attach"].into_iter().chain(options);
                let words = words.map(str::to_owned).collect();
                Self::on_guest_link(world, words, mtu, paths)
            }
        }
    }

    fn behind_host(world: World, words: &[&str], mtu: u32, paths: [Path; 2]) -> Result<Self> {
        let far = world.add_namespace("far")?;
        far.set(SYSCTLS)?;
        let ends = [End { netns: world.host.path(), address: NEAR }, End { netns: far.path(), address: FAR }];
        let wan = Wan::between(&ends[0], &ends[1], mtu, paths)?;
        world.serve_probe(&far, PORT)?;
        let guest = Guest::forwarder(&world, &world.enter_host_as_user(), words)?;
        guest.set(SYSCTLS)?;
        let server = FAR.to_string();
        let through = Way { enter: guest.enter.clone(), server: server.clone() };
        let direct = Way { enter: world.enter_host_as_user(), server };
        Ok(Self { wan, through, direct, guest, world })
    }

    fn on_guest_link(world: World, mut words: Vec<String>, mtu: u32, paths: [Path; 2]) -> Result<Self> {
        let remote = world.add_namespace("remote")?;
        remote.set(SYSCTLS)?;
        let gate = Guest::attached(&world, |pid| {
            words.push(pid.to_owned());
            words
        })?;
        gate.set(SYSCTLS)?;
        gate.set(&[("ipv4/ip_forward", "1")])?;
        let gate_netns = PathBuf::from(format!("/proc/{}/ns/net", gate.pid));
        // brodo has given the gate the guest's address, router and neighbour. The address moves to the guest.
        let move_guest = "ip addr del 10.0.2.15/24 dev eth0; ip route add 10.0.2.2 dev eth0; \
                          ip route add default via 10.0.2.2 dev eth0; \
                          ip neigh replace 10.0.2.2 lladdr 52:55:0a:00:02:02 dev eth0 nud permanent; ip link set lo up";
        let script = format!("set -e; {move_guest}");
        world.run(&gate.enter_as_root, ["sh", "-c", &script], PATIENCE)?.success()?;
        let ends = [End { netns: remote.path(), address: GUEST }, End { netns: gate_netns, address: NEAR }];
        let wan = Wan::between(&ends[0], &ends[1], mtu, paths)?;
        remote.ip(&format!("link set lo up\nroute add default dev {DEVICE}\n"))?;
        world.serve_probe(&world.host, PORT)?;
        world.serve_probe_behind(&gate.enter_as_root, PORT)?;
        let through = Way { enter: remote.enter(), server: HOST_V4.into() };
        let direct = Way { enter: remote.enter(), server: NEAR.to_string() };
        Ok(Self { wan, through, direct, guest: gate, world })
    }

    /// Runs a probe, `subcommand` with `arguments` behind the server's address and port, at the client's end
    /// of `way`.
    pub fn probe(&self, way: &Way, subcommand: &str, arguments: &[&str], limit: Duration) -> Result<Value> {
        let [probe, name] = self.world.probe();
        let words = [probe, name, subcommand.into(), way.server.clone(), PORT.to_string()];
        let words = words.into_iter().chain(arguments.iter().map(|word| (*word).to_owned()));
        self.world.run(&way.enter, words, limit)?.success()?.json()
    }

    /// Ends brodo, whose status must be 0 and of which no process may have crashed; returns its final output.
    pub fn finish(self) -> Result<String> {
        let Self { guest, world, wan, .. } = self;
        let finished = guest.finish(PATIENCE);
        drop(wan);
        drop(world);
        let finished = finished?.success()?;
        match crashes(&finished.stderr).first() {
            None => Ok(finished.stderr),
            Some(crash) => Err(finished.failure(crash)),
        }
    }
}
