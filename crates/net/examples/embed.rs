//! A VMM's view: a guest inside this process downloads 64 MiB from a server on the host, through brodo.
use brodo_net::{Config, Network, channel};
use smoltcp::iface::{Config as IfaceConfig, Interface, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, IpCidr, Ipv4Address};
use std::io::Write;
use std::net::TcpListener;
use std::time::Duration;

const LEN: usize = 64 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = TcpListener::bind("127.0.0.1:0")?;
    let port = server.local_addr()?.port();
    std::thread::spawn(move || server.accept().and_then(|(mut to, _)| to.write_all(&vec![7; LEN])));

    // The network: one link, and 10.0.2.4 stands for the host's loopback.
    let (link, mut guest) = channel::pair(channel::Options::default())?;
    let mut config = Config { mtu: 1500, ..Config::default() };
    config.v4.as_mut().ok_or("IPv4 is on by default")?.host_loopback = Some([10, 0, 2, 4].into());
    let running = Network::builder().link(link).config(config).build()?.spawn()?;

    // The guest: smoltcp's TCP/IP, which drives the channel's other end as its device.
    let mac = EthernetAddress([2, 0, 0, 0, 0, 1]);
    let mut iface = Interface::new(IfaceConfig::new(mac.into()), &mut guest, Instant::now());
    iface.update_ip_addrs(|own| own.extend([IpCidr::new(Ipv4Address::new(10, 0, 2, 15).into(), 24)]));
    let mut sockets = SocketSet::new(vec![]);
    let buffer = |len| SocketBuffer::new(vec![0; len]);
    let tcp = sockets.add(Socket::new(buffer(1 << 20), buffer(4096)));
    sockets.get_mut::<Socket>(tcp).connect(iface.context(), (Ipv4Address::new(10, 0, 2, 4), port), 49_152)?;
    let mut received = 0;
    while received < LEN {
        iface.poll(Instant::now(), &mut guest, &mut sockets);
        let (socket, before) = (sockets.get_mut::<Socket>(tcp), received);
        while socket.can_recv() {
            received += socket.recv(|data| (data.len(), data.len()))?;
        }
        if received == before {
            guest.wait(iface.poll_delay(Instant::now(), &sockets).map(Duration::from))?;
        }
    }
    println!("{received} bytes through brodo");
    running.stop()?;
    Ok(())
}
