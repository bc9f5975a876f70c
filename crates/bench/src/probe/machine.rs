//! A virtual machine without a machine: a TAP in the guest's namespace, whose frames go to a Unix socket as a
//! monitor's would.
//!
//! The guest is a real kernel at its full speed, so every test and workload for namespaces tests `brodo vm`.
//! Two kinds of monitor on sockets: by default the interface has no offloads, as behind QEMU's
//! `-netdev stream` and `dgram`; with `--offload` the guest's frames are up to 64 KiB long at every MTU and
//! carry the pseudo-header's sum alone, as libkrun's do. By vhost-user ([`rings`]) offloads are negotiated.
//!
//! A lost connection is made again. Runs until the end of its input.

mod rings;

use crate::world::{await_local, ip_batch};
use brodo_link::tap::{Tap, Wanted};
use brodo_link::vnet::HEADER_LEN;
use clap::{Args, ValueEnum};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
pub use rings::Hostility;
use rings::{Device, Rings};
use socket2::{Domain, SockAddr, Socket, Type};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Longest frame of a TAP, in bytes.
const FRAME_MAX: usize = 65_535 + 14;
/// Bytes of the length in front of a frame on a stream.
const PREFIX: usize = 4;
/// Pause between attempts to connect.
const RETRY: Duration = Duration::from_millis(20);
/// Name of the interface.
const NAME: &str = "eth0";

/// Way to brodo.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MonitorKind {
    /// Each frame behind its length.
    Stream,
    /// Each datagram a frame.
    Dgram,
    /// Each packet a frame.
    Seqpacket,
    /// vhost-user: frames in shared rings.
    VhostUser,
}

impl MonitorKind {
    /// All ways.
    pub const ALL: [Self; 4] = [Self::Stream, Self::Dgram, Self::Seqpacket, Self::VhostUser];

    /// The option of `brodo vm`.
    pub const fn option(self) -> &'static str {
        match self {
            Self::Stream => "--socket",
            Self::Dgram => "--dgram",
            Self::Seqpacket => "--seqpacket",
            Self::VhostUser => "--vhost-user",
        }
    }

    /// Its word on the probe's command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stream => "stream",
            Self::Dgram => "dgram",
            Self::Seqpacket => "seqpacket",
            Self::VhostUser => "vhost-user",
        }
    }
}

/// The link's addresses, by number where several machines have a peer in one namespace.
#[derive(Debug, Args)]
pub(super) struct Subnet {
    /// Third number of the machine's IPv4 addresses; brodo's default is 2
    #[arg(long = "subnet", default_value_t = SUBNET)]
    pub(super) number: u8,
}

/// That of brodo's defaults.
const SUBNET: u8 = 2;

impl Subnet {
    pub(super) fn v4(&self, host: u8) -> String {
        format!("10.0.{}.{host}", self.number)
    }

    pub(super) fn v6(&self, host: u8) -> String {
        if self.number == SUBNET {
            format!("fd00::{host}")
        } else {
            format!("fd00:0:0:{}::{host}", self.number)
        }
    }
}

/// The machine.
#[derive(Debug, Args)]
pub(super) struct Machine {
    kind: MonitorKind,
    path: PathBuf,
    #[arg(long)]
    mtu: u32,
    /// Router of a /24 in place of the subnet's; the machine has the address behind it
    #[arg(long)]
    gateway: Option<Ipv4Addr>,
    /// Offloads of the guest: by sockets its frames are as libkrun passes them on
    #[arg(long)]
    offload: bool,
    /// Lose the first connection after so many milliseconds
    #[arg(long, value_name = "MS")]
    lose_after: Option<u64>,
    /// Reset the device, as a driver does that is loaded again, every so many milliseconds (vhost-user)
    #[arg(long, value_name = "MS")]
    reset_every: Option<u64>,
    #[command(flatten)]
    subnet: Subnet,
    #[command(flatten)]
    rings: Rings,
}

/// Connects the interface to the socket until the end of standard input.
pub(super) fn run(machine: &Machine) -> io::Result<()> {
    if machine.kind == MonitorKind::VhostUser {
        return run_rings(machine);
    }
    let mut tap = tap(machine.offload)?;
    // Configured after the first connection: a network that is up is connected.
    let mut socket = connection(machine);
    configure(machine)?;
    if let Some(ms) = machine.lose_after {
        let first = socket.clone();
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(ms));
            first.shutdown(Shutdown::Both)
        });
    }
    let current: Arc<Mutex<Option<Arc<Socket>>>> = Arc::default();
    let (kind, from, to) = (machine.kind, tap.try_clone()?, current.clone());
    thread::spawn(move || send_frames(kind, from, &to));
    end_with_input();
    loop {
        *current.lock().unwrap_or_else(PoisonError::into_inner) = Some(socket.clone());
        let lost = receive_frames(kind, &socket, &mut tap);
        *current.lock().unwrap_or_else(PoisonError::into_inner) = None;
        eprintln!("probe: the connection is lost: {lost}");
        socket = connection(machine);
    }
}

/// The same by vhost-user.
fn run_rings(machine: &Machine) -> io::Result<()> {
    let tap = tap(machine.offload)?;
    let device = Device::start(machine.rings, &tap)?;
    let mut socket = connection(machine);
    end_with_input();
    // Configured after the first set-up: a network that is up is connected.
    let mut set_up = device.set_up(&socket);
    configure(machine)?;
    if let Some(way) = machine.rings.hostile {
        set_up?;
        device.harass(way, socket, || connection(machine))?;
        return Err(ErrorKind::UnexpectedEof.into());
    }
    loop {
        let end = set_up.and_then(|()| match machine.reset_every {
            Some(ms) => device.reset_on(&socket, Duration::from_millis(ms)),
            None => (&*socket).read(&mut [0; 1]),
        });
        let lost = end.map_or_else(|error| error, |_| ErrorKind::UnexpectedEof.into());
        eprintln!("probe: the connection is lost: {lost}");
        thread::sleep(RETRY);
        socket = connection(machine);
        set_up = device.set_up(&socket);
    }
}

/// Ends the process with its standard input.
fn end_with_input() {
    thread::spawn(|| {
        let _ = super::wait_for_end_of_input();
        std::process::exit(0);
    });
}

/// A connection, as soon as brodo takes one.
fn connection(machine: &Machine) -> Arc<Socket> {
    loop {
        match connect(machine) {
            Ok(socket) => return Arc::new(socket),
            Err(_) => thread::sleep(RETRY),
        }
    }
}

/// The interface; its reads wait.
fn tap(offload: bool) -> io::Result<File> {
    let wanted = if offload { Wanted::Everything } else { Wanted::NoOffload };
    let fd = Tap::create(NAME, wanted).map_err(|e| io::Error::other(e.to_string()))?.into_fd();
    fcntl(&fd, FcntlArg::F_SETFL(OFlag::O_RDWR))?;
    Ok(fd.into())
}

/// Brings the interface up with the addresses of brodo's defaults, or of another subnet.
fn configure(machine: &Machine) -> io::Result<()> {
    let Machine { mtu, ref subnet, gateway, .. } = *machine;
    let gateway_v4 = gateway.map_or_else(|| subnet.v4(2), |router| router.to_string());
    let own_v4 =
        gateway.map_or_else(|| subnet.v4(15), |router| Ipv4Addr::from_bits(router.to_bits() + 1).to_string());
    let sysctl = |name: &str, value| std::fs::write(format!("/proc/sys/net/ipv6/conf/{NAME}/{name}"), value);
    // Those of a router advertisement would come later, a second time.
    sysctl("accept_ra", "0")?;
    sysctl("disable_ipv6", "0")?;
    let lines = format!(
        "link set lo up\nlink set {NAME} mtu {mtu} up\n\
         addr add {}/24 dev {NAME}\naddr add {}/64 dev {NAME} nodad\n\
         route add default via {}\nroute add default via {}\n",
        own_v4,
        subnet.v6(15),
        gateway_v4,
        subnet.v6(2)
    );
    let made = ip_batch(&[], &lines).and_then(|()| await_local(&[], &[&subnet.v6(15)]));
    made.map_err(|e| io::Error::other(e.0))
}

/// A connection to brodo.
fn connect(machine: &Machine) -> io::Result<Socket> {
    let kind = match machine.kind {
        MonitorKind::Stream | MonitorKind::VhostUser => Type::STREAM,
        MonitorKind::Dgram => Type::DGRAM,
        MonitorKind::Seqpacket => Type::SEQPACKET,
    };
    let socket = Socket::new(Domain::UNIX, kind, None)?;
    if machine.kind == MonitorKind::Dgram {
        let own = machine.path.with_extension("machine");
        let _ = std::fs::remove_file(&own);
        socket.bind(&SockAddr::unix(own)?)?;
    }
    socket.connect(&SockAddr::unix(&machine.path)?)?;
    if machine.kind == MonitorKind::Dgram {
        // brodo knows this address from the first datagram, and a lost connection by its end alone.
        socket.send(b"VFKT")?;
        socket.set_read_timeout(None)?;
    }
    Ok(socket)
}

/// Frames of the guest; those without a connection are lost, as with a cable unplugged.
fn send_frames(kind: MonitorKind, mut tap: File, to: &Mutex<Option<Arc<Socket>>>) {
    let mut buffer = vec![0; HEADER_LEN + FRAME_MAX];
    while let Ok(len) = tap.read(&mut buffer[..]) {
        let socket = to.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(socket) = socket.filter(|_| len > HEADER_LEN) else { continue };
        // The length takes the place of the header's end.
        let from = if kind == MonitorKind::Stream { HEADER_LEN - PREFIX } else { HEADER_LEN };
        let prefix = ((len - HEADER_LEN) as u32).to_be_bytes();
        buffer[HEADER_LEN - PREFIX..HEADER_LEN].copy_from_slice(&prefix);
        // An error shows to the reader as well, except with datagrams, where it is this one that notices.
        if (&*socket).write_all(&buffer[from..len]).is_err() {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

/// Frames to the guest, until the connection is lost.
fn receive_frames(kind: MonitorKind, socket: &Socket, tap: &mut File) -> io::Error {
    let mut buffer = vec![0; HEADER_LEN + FRAME_MAX];
    let mut next = || -> io::Result<()> {
        let len = if kind == MonitorKind::Stream {
            let mut prefix = [0; PREFIX];
            (&*socket).read_exact(&mut prefix)?;
            let len = u32::from_be_bytes(prefix) as usize;
            let frame = buffer.get_mut(HEADER_LEN..HEADER_LEN + len).ok_or(ErrorKind::InvalidData)?;
            (&*socket).read_exact(frame)?;
            len
        } else {
            (&*socket).read(&mut buffer[HEADER_LEN..])?
        };
        if len == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        // An interface that is down loses frames too.
        let _ = tap.write(&buffer[..HEADER_LEN + len]);
        Ok(())
    };
    loop {
        if let Err(error) = next() {
            return error;
        }
    }
}
