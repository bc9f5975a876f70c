//! A guest of `brodo vm`, or of another program for virtual machines: a namespace whose interface a probe
//! connects to its socket, in the place of a virtual machine and its monitor.

use super::Guest;
pub use crate::probe::MonitorKind;
use crate::process::{Failure, PATIENCE, Result, wait_until};
use crate::world::World;
use std::path::{Path, PathBuf};

/// Properties of a machine.
#[derive(Debug, Clone, Copy)]
pub struct Machine {
    /// Type of its monitor's socket.
    pub kind: MonitorKind,
    /// MTU of its interface, in bytes.
    pub mtu: u32,
    /// Whether its frames are long and have partial checksums: on sockets as libkrun's, by vhost-user as
    /// negotiated.
    pub offload: bool,
    /// Further words for the machine, as of its rings.
    pub words: &'static [&'static str],
}

/// The guest's resolv.conf: brodo's DNS addresses.
const RESOLV_CONF: &str = "nameserver 10.0.2.3\nnameserver fd00::3\n";

impl Machine {
    /// Starts a forwarder by `words`, to which the path of the socket is added (to the last of them, if that
    /// is the beginning of an address), and the machine.
    pub fn start(self, world: &World, enter: &[String], words: &[String]) -> Result<Guest> {
        let mut guest = Guest::alone(world)?;
        let path = socket(world);
        let path = path.to_string_lossy();
        let mut words = words.to_vec();
        match words.last_mut().filter(|last| last.ends_with("://")) {
            Some(address) => address.push_str(&path),
            None => words.push(path.clone().into_owned()),
        }
        let mut forwarder = world.start(enter, words)?;
        let bound = wait_until(PATIENCE, || {
            let exists = Path::new(&*path).exists();
            (exists || !forwarder.is_running()).then_some(exists)
        });
        if bound != Some(true) {
            return Err(Failure(format!("the forwarder has no socket: {}", forwarder.describe())));
        }
        let [probe, name] = world.probe();
        let mtu = self.mtu.to_string();
        let mut words = vec![&*probe, &*name, "machine", self.kind.name(), &*path, "--mtu", &*mtu];
        words.extend(self.offload.then_some("--offload"));
        words.extend(self.words);
        let machine = world.start(&guest.enter, words)?;
        let file = world.home().join("resolv.conf");
        std::fs::write(&file, RESOLV_CONF).map_err(|e| Failure(e.to_string()))?;
        let file = file.to_string_lossy();
        world.run(&guest.enter, ["mount", "--bind", &*file, "/etc/resolv.conf"], PATIENCE)?.success()?;
        guest.serve_by(forwarder, machine)?;
        Ok(guest)
    }
}

/// A path for a socket, short enough for its address; the first in a world is `vm`.
fn socket(world: &World) -> PathBuf {
    let names = std::iter::once("vm".to_owned()).chain((2..).map(|number: u32| format!("vm{number}")));
    let mut paths = names.map(|name| world.home().join(name));
    paths.find(|path| !path.exists()).unwrap_or_default()
}
