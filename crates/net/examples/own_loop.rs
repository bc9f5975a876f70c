//! Driven from the caller's epoll: guest and network share one thread and one epoll instance, as in a VMM
//! with a loop of its own. The guest downloads 16 MiB; the loop sleeps whenever neither side has work.
use brodo_net::{Config, Network, channel};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::time::Timespec;
use smoltcp::iface::{Config as IfaceConfig, Interface, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, IpCidr, Ipv4Address};
use std::error::Error;
use std::io::Write;
use std::net::TcpListener;
use std::time::Duration;

const LEN: usize = 16 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let server = TcpListener::bind("127.0.0.1:0")?;
    let port = server.local_addr()?.port();
    std::thread::spawn(move || server.accept().and_then(|(mut to, _)| to.write_all(&vec![7; LEN])));

    let (link, mut guest) = channel::pair(channel::Options::default())?;
    let mut config = Config { mtu: 1500, ..Config::default() };
    config.v4.as_mut().ok_or("IPv4 is on by default")?.host_loopback = Some([10, 0, 2, 4].into());
    let mut network = Network::builder().link(link).config(config).build()?;

    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, network.descriptor(), EventData::new_u64(0), EventFlags::IN)?;
    epoll::add(&epoll, guest.descriptor(), EventData::new_u64(1), EventFlags::IN | EventFlags::ET)?;

    let mac = EthernetAddress([2, 0, 0, 0, 0, 1]);
    let mut iface = Interface::new(IfaceConfig::new(mac.into()), &mut guest, Instant::now());
    iface.update_ip_addrs(|own| own.extend([IpCidr::new(Ipv4Address::new(10, 0, 2, 15).into(), 24)]));
    let mut sockets = SocketSet::new(vec![]);
    let buffer = |len| SocketBuffer::new(vec![0; len]);
    let tcp = sockets.add(Socket::new(buffer(1 << 20), buffer(4096)));
    sockets.get_mut::<Socket>(tcp).connect(iface.context(), (Ipv4Address::new(10, 0, 2, 4), port), 49_152)?;

    let (mut received, mut sleeps) = (0, 0u64);
    while received < LEN {
        // Both sides' work, then a sleep until the earlier of their deadlines.
        iface.poll(Instant::now(), &mut guest, &mut sockets);
        let (socket, before) = (sockets.get_mut::<Socket>(tcp), received);
        while socket.can_recv() {
            received += socket.recv(|data| (data.len(), data.len()))?;
        }
        if let Some(wake) = network.turn()? {
            println!("notice: {wake:?}");
        }
        let guest_timeout = iface.poll_delay(Instant::now(), &sockets).map(Duration::from);
        let timeout = [guest_timeout, network.timeout()].into_iter().flatten().min();
        if received == before && timeout != Some(Duration::ZERO) {
            sleeps += 1;
            wait(&epoll, timeout)?;
        }
    }
    println!("{received} bytes in one thread, {sleeps} sleeps");
    Ok(())
}

/// Sleeps until a descriptor of either side is ready, at most for `timeout`, rounded up to milliseconds by
/// the kernel's epoll_wait.
fn wait(epoll: &impl std::os::fd::AsFd, timeout: Option<Duration>) -> Result<(), Box<dyn Error>> {
    let timeout = timeout
        .map(|timeout| Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() });
    let mut events = Vec::with_capacity(8);
    epoll::wait(epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref())?;
    Ok(())
}
