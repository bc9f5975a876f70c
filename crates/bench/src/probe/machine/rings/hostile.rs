//! Hostile machines: each does one thing without end that costs its back end the most for the least.

use super::{Device, FROM_GUEST, GUEST, HEADER_LEN, Queue, USER};
use crate::probe::frames::Random;
use crate::world::HOST_V4;
use brodo_link::virtio::driver::describe;
use clap::ValueEnum;
use socket2::Socket;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Way to harass a back end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Hostility {
    /// Kicks of a ring in which nothing is new
    Kicks,
    /// Frames of a protocol that no network has, as fast as the ring takes them
    Frames,
    /// An impossible index in the ring, and the device set up anew
    Indices,
    /// Chains that hold a header and no frame, all of the ring, without a kick
    Empty,
    /// Descriptors that another processor changes while they are read, and the device set up anew
    Descriptors,
    /// Downloads from the probe's server on the host, for which no buffer is ever given back, and further
    /// connections
    Stalled,
}

impl Hostility {
    /// All ways.
    pub const ALL: [Self; 6] =
        [Self::Kicks, Self::Frames, Self::Indices, Self::Empty, Self::Descriptors, Self::Stalled];

    /// Port of the probe's server in the host namespace, which sends to a machine that asks it to.
    pub const SERVER_PORT: u16 = 7000;

    /// Words of such a machine.
    pub const fn words(self) -> &'static [&'static str] {
        match self {
            Self::Kicks => &["--hostile", "kicks"],
            Self::Frames => &["--hostile", "frames"],
            Self::Indices => &["--hostile", "indices"],
            Self::Empty => &["--hostile", "empty"],
            Self::Descriptors => &["--hostile", "descriptors"],
            Self::Stalled => &["--hostile", "stalled"],
        }
    }
}

/// Bytes of a frame: the shortest of Ethernet, of a type for local experiments (IEEE 802).
const LEN: usize = 60;
const EXPERIMENTAL: [u8; 2] = [0x88, 0xb5];
/// Time for which a back end may look at an impossible index.
const LOOK: Duration = Duration::from_millis(1);
/// Downloads of a machine that gives no buffer back, each of more bytes than all rings and sockets on the way
/// have room for.
const DOWNLOADS: usize = 16;
const DOWNLOAD: &[u8] = b"source 1000000000 1\n";
/// Patience with a connection that will not be made, once the ring has no buffers.
const CONNECT: Duration = Duration::from_millis(100);
/// Time between two kicks, for a back end that has used all chains up and sleeps: rare, so that they are not
/// what it rests from.
const RARELY: Duration = Duration::from_millis(200);

impl Device {
    /// Harasses the back end behind `socket`, on which the device is set up, until an error; `again` makes
    /// another connection to it.
    pub(in super::super) fn harass(
        &self,
        way: Hostility,
        socket: Arc<Socket>,
        again: impl Fn() -> Arc<Socket>,
    ) -> io::Result<()> {
        match way {
            Hostility::Kicks => self.kick_on(),
            Hostility::Frames => self.send_on(),
            Hostility::Indices => self.break_on(2, socket, again),
            Hostility::Empty => self.offer_on(),
            Hostility::Descriptors => {
                self.change_on()?;
                self.break_on(1, socket, again)
            }
            Hostility::Stalled => download_on(),
        }
    }

    fn kick_on(&self) -> io::Result<()> {
        let mut queue = self.queue(FROM_GUEST)?;
        loop {
            // Full only if the back end reads it not: the counter is 64 bits wide.
            queue.kick.write_all(&1_u64.to_ne_bytes())?;
        }
    }

    fn send_on(&self) -> io::Result<()> {
        let mut queue = self.queue(FROM_GUEST)?;
        let mut frame = [0; HEADER_LEN + LEN];
        frame[HEADER_LEN..][..6].fill(0xff);
        frame[HEADER_LEN + 6] = 2;
        frame[HEADER_LEN + 12..][..2].copy_from_slice(&EXPERIMENTAL);
        loop {
            queue.send(&frame)?;
        }
    }

    fn offer_on(&self) -> io::Result<()> {
        let mut queue = self.queue(FROM_GUEST)?;
        // All entries of the available area are zero, and thus this descriptor's number.
        let header = queue.ring.slot(0).wrapping_sub(USER).wrapping_add(GUEST);
        describe(&queue.memory, queue.ring.descriptors(), header, HEADER_LEN as u32, 0, 0);
        loop {
            queue.kick.write_all(&1_u64.to_ne_bytes())?;
            let kicked = Instant::now();
            while kicked.elapsed() < RARELY {
                queue.offer_up_to(queue.ring.size());
            }
        }
    }

    /// Changes all descriptors of the guest's frames without end: places in the memory and outside it,
    /// lengths, flags, and chains that end nowhere.
    fn change_on(&self) -> io::Result<()> {
        let Queue { memory, ring, .. } = self.queue(FROM_GUEST)?;
        let slot = ring.slot(0).wrapping_sub(USER).wrapping_add(GUEST);
        let entries = usize::from(ring.size());
        thread::spawn(move || {
            let mut random = Random(1);
            loop {
                let place = ring.descriptors() + 16 * random.below(entries) as u64;
                let address = if random.below(16) == 0 { random.next() } else { slot };
                let (len, flags) = (random.below(70_000) as u32, random.below(8) as u16);
                describe(&memory, place, address, len, flags, random.below(2 * entries) as u16);
            }
        });
        Ok(())
    }

    /// Offers so many rings of chains, and sets the device up anew.
    fn break_on(
        &self,
        rings: u16,
        mut socket: Arc<Socket>,
        again: impl Fn() -> Arc<Socket>,
    ) -> io::Result<()> {
        let mut queue = self.queue(FROM_GUEST)?;
        loop {
            queue.offer_up_to(rings * queue.ring.size());
            queue.kick.write_all(&1_u64.to_ne_bytes())?;
            thread::sleep(LOOK);
            queue.offer_up_to(0);
            // The old connection ends before the back end takes another.
            drop(socket);
            socket = again();
            self.set_up(&socket)?;
        }
    }
}

/// Opens downloads while there are buffers for their handshakes, and then further connections, for each of
/// which the back end has an answer that it cannot send.
fn download_on() -> io::Result<()> {
    let server = HOST_V4.parse::<IpAddr>().map_err(io::Error::other)?;
    let server = SocketAddr::new(server, Hostility::SERVER_PORT);
    let connect = |_| TcpStream::connect(server);
    let mut downloads = (0..DOWNLOADS).map(connect).collect::<io::Result<Vec<_>>>()?;
    downloads.iter_mut().try_for_each(|download| download.write_all(DOWNLOAD))?;
    loop {
        // Made after all, it is one more that asks for nothing.
        downloads.extend(TcpStream::connect_timeout(&server, CONNECT));
    }
}

impl Queue {
    /// Sets the available index so far beyond the used one.
    fn offer_up_to(&self, distance: u16) {
        let index = self.ring.used_index(&self.memory).wrapping_add(distance);
        if let Some(place) = self.memory.user(self.ring.available_area() + 2, 2) {
            place.write(&index.to_le_bytes());
        }
    }
}
