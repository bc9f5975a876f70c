//! A machine on shared rings: driver of two virtqueues in a memfd, and front end of vhost-user, in the place
//! of a guest's kernel and its monitor.
//!
//! Threads move frames between the interface and the rings, one for all that the guest sends and one for each
//! ring to it, each with a mapping of its own. The main thread tells brodo of them by the messages that QEMU
//! sends, in its order (the rings are enabled before the features are set), and again after a loss: the rings
//! go on where the device left them, as a guest's do that has noticed nothing.

mod hostile;

use super::FRAME_MAX;
use brodo_core::wire::checksum;
use brodo_core::wire::ethernet::EthernetHeader;
use brodo_core::wire::ipv4::Ipv4Header;
use brodo_core::wire::ipv6::Ipv6Header;
use brodo_link::vhost_user::front_end::Message;
use brodo_link::virtio::driver::{DriverRing, Shape, mapped, memfd};
use brodo_link::virtio::memory::{GuestMemory, RegionPlace};
use brodo_link::vnet::HEADER_LEN;
use clap::Args;
pub use hostile::Hostility;
use rustix::event::{EventfdFlags, eventfd};
use socket2::Socket;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Addresses of the memory: the guest's, and the monitor's own.
const GUEST: u64 = 0x4000_0000;
const USER: u64 = 0x7f00_0000_0000;
/// Bytes of a buffer that can hold any frame, and of one among several.
const WHOLE: u32 = 68 << 10;
const MERGEABLE: u32 = 4096;
/// Bytes of one of Linux's at first: an Ethernet frame with a tag, and the header.
const MERGEABLE_OF_LINUX: u32 = 1518 + HEADER_LEN as u32;
/// Most buffers that Linux takes from a ring before it looks whether to refill it (NAPI_POLL_WEIGHT).
const POLL_WEIGHT: u16 = 64;
/// Longest descriptor of a chain.
const PIECE: u32 = 16 << 10;
/// Indices of the rings of a pair.
const TO_GUEST: usize = 0;
const FROM_GUEST: usize = 1;

/// Feature bits.
const PROTOCOL_FEATURES: u64 = 1 << 30;
const MRG_RXBUF: u64 = 1 << 15;
const INDIRECT: u64 = 1 << 28;
const EVENT_INDEX: u64 = 1 << 29;

/// Properties of the driver.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct Rings {
    /// Entries of each ring
    #[arg(long, default_value = "256")]
    ring_size: u16,
    /// Feature bits that the driver does without, hexadecimal
    #[arg(long, default_value = "0", value_parser = hexadecimal)]
    without: u64,
    /// Have mergeable buffers as short as Linux, and refill a ring as late: when half of it is used
    #[arg(long)]
    late_refill: bool,
    /// Queue pairs
    #[arg(long, default_value = "1")]
    queues: usize,
    /// Have the guest's frames move to the next pair after so many, as a thread does that moves between
    /// processors; by default each flow keeps to its pair
    #[arg(long)]
    wander: Option<usize>,
    /// Harass the back end
    #[arg(long)]
    pub(super) hostile: Option<Hostility>,
}

fn hexadecimal(word: &str) -> Result<u64, std::num::ParseIntError> {
    u64::from_str_radix(word, 16)
}

impl Rings {
    fn has(self, bit: u64) -> bool {
        self.without & bit == 0
    }

    /// Most used buffers that are not yet offered again after a frame.
    fn spent_max(self) -> usize {
        match self.hostile {
            Some(Hostility::Stalled) => usize::MAX,
            _ if self.late_refill => (self.ring_size.min(POLL_WEIGHT) / 2).into(),
            _ => 0,
        }
    }

    /// Number of rings.
    fn count(self) -> usize {
        2 * self.queues.max(1)
    }

    fn shape(self, ring: usize) -> Shape {
        let (slot, piece) = if ring % 2 == TO_GUEST {
            let mergeable = if self.late_refill { MERGEABLE_OF_LINUX } else { MERGEABLE };
            (if self.has(MRG_RXBUF) { mergeable } else { WHOLE }, None)
        } else {
            (WHOLE, self.has(INDIRECT).then_some(PIECE))
        };
        Shape { size: self.ring_size, slot, piece, event_index: self.has(EVENT_INDEX) }
    }
}

/// The machine's memory and descriptors.
pub(super) struct Device {
    file: OwnedFd,
    size: u64,
    /// Address of each ring, as the monitor sees it.
    bases: Vec<u64>,
    options: Rings,
    kicks: Vec<OwnedFd>,
    calls: Vec<Arc<File>>,
}

impl Device {
    /// A device whose threads serve the interface.
    pub(super) fn start(options: Rings, tap: &File) -> io::Result<Self> {
        let (mut bases, mut size) = (Vec::new(), 0);
        for ring in 0..options.count() {
            bases.push(USER + size);
            size += DriverRing::bytes(options.shape(ring)).next_multiple_of(4096);
        }
        let kick = |_| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let call = |_| eventfd(0, EventfdFlags::CLOEXEC).map(|fd| Arc::new(File::from(fd)));
        let device = Self {
            file: memfd(size),
            size,
            kicks: (0..bases.len()).map(kick).collect::<Result<_, _>>()?,
            calls: (0..bases.len()).map(call).collect::<Result<_, _>>()?,
            bases,
            options,
        };
        let queues = |from: usize| {
            (from..device.bases.len())
                .step_by(2)
                .map(|ring| device.queue(ring))
                .collect::<io::Result<Vec<_>>>()
        };
        for queue in queues(TO_GUEST)? {
            let to_interface = tap.try_clone()?;
            thread::spawn(move || ended(queue.receive(to_interface)));
        }
        if matches!(options.hostile, None | Some(Hostility::Stalled)) {
            let sender = Sender { queues: queues(FROM_GUEST)?, wander: options.wander };
            let from_interface = tap.try_clone()?;
            thread::spawn(move || ended(sender.run(from_interface)));
        }
        Ok(device)
    }

    fn place(&self) -> RegionPlace {
        RegionPlace { guest: GUEST, size: self.size, user: USER, offset: 0 }
    }

    /// A mapping for one thread.
    fn memory(&self) -> GuestMemory {
        mapped(&self.file, self.place())
    }

    fn ring(&self, index: usize) -> DriverRing {
        DriverRing::new(self.options.shape(index), self.bases[index], GUEST.wrapping_sub(USER))
    }

    fn queue(&self, index: usize) -> io::Result<Queue> {
        Ok(Queue {
            memory: self.memory(),
            ring: self.ring(index),
            slot: self.options.shape(index).slot,
            spent_max: self.options.spent_max(),
            kick: self.kicks[index].try_clone()?.into(),
            call: self.calls[index].clone(),
        })
    }

    /// Sets the device up on this connection.
    pub(super) fn set_up(&self, socket: &Socket) -> io::Result<()> {
        let ask = |request| ask(socket, &Message::new(request, &[]), false);
        let offered = ask(1)?;
        tell(socket, &Message::new(16, &[ask(15)?]))?;
        ask(17)?;
        tell(socket, &Message::new(3, &[]))?;
        self.start_rings(socket, offered)
    }

    /// Resets the device and starts it again, until an error.
    pub(super) fn reset_on<T>(&self, socket: &Socket, pause: Duration) -> io::Result<T> {
        loop {
            thread::sleep(pause);
            tell(socket, &Message::new(34, &[]))?;
            self.start_rings(socket, ask(socket, &Message::new(1, &[]), false)?)?;
        }
    }

    /// Does what follows the begin of a driver.
    fn start_rings(&self, socket: &Socket, offered: u64) -> io::Result<()> {
        let tell = |message: Message<'_>| tell(socket, &message);
        for ring in 0..self.bases.len() {
            tell(Message::of_ring(18, ring as u32, 1))?;
        }
        tell(Message::new(2, &[offered & !self.options.without | PROTOCOL_FEATURES]))?;
        tell(Message::memory(self.place(), &self.file))?;
        let memory = self.memory();
        for index in 0..self.bases.len() {
            let (driver, kick, call) = (self.ring(index), &self.kicks[index], &*self.calls[index]);
            Message::ring(index as u32, &driver, &memory, kick, call).into_iter().try_for_each(tell)?;
        }
        Ok(())
    }
}

/// Sends a request that has to be met.
fn tell(socket: &Socket, message: &Message<'_>) -> io::Result<()> {
    match ask(socket, message, true)? {
        0 => Ok(()),
        failure => Err(io::Error::other(format!("request {} is refused: {failure}", message.request))),
    }
}

/// Sends a request; the number in the reply.
fn ask(socket: &Socket, message: &Message<'_>, needs_reply: bool) -> io::Result<u64> {
    message.send(socket, needs_reply)?;
    let mut reply = [0; 20];
    (&*socket).read_exact(&mut reply)?;
    let [r0, r1, r2, r3, _, _, _, _, _, _, _, _, number @ ..] = reply;
    if u32::from_ne_bytes([r0, r1, r2, r3]) != message.request {
        return Err(io::Error::other(format!("no reply to request {}: {reply:?}", message.request)));
    }
    Ok(u64::from_ne_bytes(number))
}

/// An interface that fails ends the machine.
fn ended(result: io::Result<()>) {
    if let Err(error) = result {
        eprintln!("probe: the interface: {error}");
        std::process::exit(1);
    }
}

/// Frames of the interface into the rings of all pairs.
struct Sender {
    queues: Vec<Queue>,
    wander: Option<usize>,
}

impl Sender {
    fn run(mut self, mut tap: File) -> io::Result<()> {
        let mut frame = vec![0; HEADER_LEN + FRAME_MAX];
        for number in 0.. {
            let len = tap.read(&mut frame)?;
            let frame = &frame[..len];
            let pair = match self.wander {
                Some(frames) => number / frames.max(1),
                // The guest's port, more or less: a flow keeps to its pair.
                None => frame.get(HEADER_LEN + 35).copied().unwrap_or(0).into(),
            };
            let count = self.queues.len();
            self.queues[pair % count].send(frame)?;
        }
        Ok(())
    }
}

/// One ring, on its thread.
struct Queue {
    memory: GuestMemory,
    ring: DriverRing,
    slot: u32,
    spent_max: usize,
    kick: File,
    call: Arc<File>,
}

impl Queue {
    fn kick(&mut self) {
        if self.ring.needs_kick(&self.memory) {
            // It is full only if brodo has not looked for a very long time.
            let _ = self.kick.write(&1_u64.to_ne_bytes());
        }
    }

    /// The next used slot; waits for it.
    fn used(&mut self) -> io::Result<(u16, u32)> {
        loop {
            if let Some(used) = self.ring.take_used(&self.memory) {
                return Ok(used);
            }
            self.kick();
            if !self.ring.arm(&self.memory, true) {
                (&*self.call).read_exact(&mut [0; 8])?;
            }
            self.ring.arm(&self.memory, false);
        }
    }

    /// Offers a frame.
    fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        let slot = match self.ring.take_free() {
            Some(slot) => slot,
            None => self.used()?.0,
        };
        if let Some(place) = self.memory.user(self.ring.slot(slot), frame.len()) {
            place.write(frame);
        }
        self.ring.offer(&self.memory, slot, frame.len() as u32, false);
        self.kick();
        Ok(())
    }

    /// Frames of the ring to the interface.
    fn receive(mut self, mut tap: File) -> io::Result<()> {
        while let Some(slot) = self.ring.take_free() {
            self.ring.offer(&self.memory, slot, self.slot, true);
        }
        let mut frame = vec![0; HEADER_LEN + FRAME_MAX];
        let (mut spent, mut offered) = (Vec::new(), 0);
        loop {
            let (mut filled, mut parts) = (0, 1);
            while parts > 0 {
                let (slot, written) = self.used()?;
                let room = frame.get_mut(filled..).unwrap_or_default();
                if let Some(place) = self.memory.user(self.ring.slot(slot), written as usize) {
                    filled += place.read(room);
                }
                if parts == 1 && filled == written as usize {
                    // `num_buffers` stands in the first.
                    parts = u16::from_le_bytes([frame[10], frame[11]]).max(1);
                }
                parts -= 1;
                spent.push(slot);
            }
            if spent.len() > self.spent_max {
                offered += spent.len();
                spent.drain(..).for_each(|slot| self.ring.offer(&self.memory, slot, self.slot, true));
            }
            // As Linux does: one kick for many buffers.
            if offered >= 16 {
                self.kick();
                offered = 0;
            }
            leave_checksum(&mut frame[..filled]);
            // An interface that is down loses frames too.
            let _ = tap.write(&frame[..filled]);
        }
    }
}

/// Flags of a virtio-net header.
const NEEDS_CSUM: u8 = 1;
const DATA_VALID: u8 = 2;

/// A checksum that the device says is good, where it has left the field as it was (passt): a driver believes
/// it, a TAP does not know of it. So it is left to the interface instead, with the sum that this expects.
fn leave_checksum(frame: &mut [u8]) {
    if frame.first() != Some(&DATA_VALID) {
        return;
    }
    let Some((begin, field, sum)) = frame.get(HEADER_LEN..).and_then(pseudo_sum) else { return };
    let at = HEADER_LEN + begin + field;
    if let Some(place) = frame.get_mut(at..at + 2) {
        place.copy_from_slice(&sum.to_be_bytes());
        frame[0] = NEEDS_CSUM;
        frame[6..8].copy_from_slice(&(begin as u16).to_le_bytes());
        frame[8..10].copy_from_slice(&(field as u16).to_le_bytes());
    }
}

/// Of an Ethernet frame with TCP or UDP: offset of that, of its checksum therein, and the sum of the
/// pseudo-header.
fn pseudo_sum(frame: &[u8]) -> Option<(usize, usize, u16)> {
    let packet = frame.get(EthernetHeader::LEN..)?;
    let (src, dst, protocol, content): (IpAddr, IpAddr, u8, &[u8]) = if packet.first()? >> 4 == 4 {
        let (ip, content) = Ipv4Header::parse(packet).ok()?;
        (ip.src.into(), ip.dst.into(), ip.protocol, content)
    } else {
        let (ip, content) = Ipv6Header::parse(packet).ok()?;
        (ip.src.into(), ip.dst.into(), ip.next_header, content)
    };
    let field = match protocol {
        6 => 16,
        17 => 6,
        _ => return None,
    };
    let begin = content.as_ptr().addr() - frame.as_ptr().addr();
    let sum = checksum::pseudo_header(src, dst, protocol, content.len() as u32);
    Some((begin, field, checksum::fold(sum)))
}
