//! Flows as they begin and end: a guest asks for two connections, one of which a rule denies, and an observer
//! prints what became of each.
use brodo_net::{Config, Deny, Network, Recording, Rules, channel};
use smoltcp::iface::{Config as IfaceConfig, Interface, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, IpCidr, Ipv4Address};
use std::net::TcpListener;
use std::sync::mpsc;
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = TcpListener::bind("127.0.0.1:0")?;
    let port = server.local_addr()?.port();
    std::thread::spawn(move || server.accept().map(|(stream, _)| stream.shutdown(std::net::Shutdown::Both)));

    let (link, mut guest) = channel::pair(channel::Options::default())?;
    let mut config = Config { mtu: 1500, ..Config::default() };
    config.v4.as_mut().ok_or("IPv4 is on by default")?.host_loopback = Some([10, 0, 2, 4].into());
    let (to, ends) = mpsc::channel();
    let recording = Recording { openings: true, ends: true };
    let observer = move |records: brodo_net::FlowRecords| {
        for flow in records.openings {
            println!("began  {} -> {}", flow.key.guest, flow.key.remote);
        }
        for end in records.ends {
            // The receiver is gone once both ends were seen.
            let _ = to.send(end);
        }
    };
    let private = Deny::new([10, 9, 0, 0].into(), 16, None).ok_or("a prefix of 16 bits is valid")?;
    let rules = Rules { deny: vec![private], ..Rules::default() };
    let network = Network::builder().link(link).config(config).policy(rules);
    let running = network.on_flow_records(recording, observer).build()?.spawn()?;

    let mac = EthernetAddress([2, 0, 0, 0, 0, 1]);
    let mut iface = Interface::new(IfaceConfig::new(mac.into()), &mut guest, Instant::now());
    iface.update_ip_addrs(|own| own.extend([IpCidr::new(Ipv4Address::new(10, 0, 2, 15).into(), 24)]));
    iface.routes_mut().add_default_ipv4_route(Ipv4Address::new(10, 0, 2, 2))?;
    let mut sockets = SocketSet::new(vec![]);
    let remotes = [(Ipv4Address::new(10, 0, 2, 4), port), (Ipv4Address::new(10, 9, 9, 9), 80)];
    for (number, remote) in (0..).zip(remotes) {
        let buffer = || SocketBuffer::new(vec![0; 4096]);
        let mut socket = Socket::new(buffer(), buffer());
        socket.connect(iface.context(), remote, 49_152 + number)?;
        sockets.add(socket);
    }
    let mut seen = 0;
    while seen < remotes.len() {
        iface.poll(Instant::now(), &mut guest, &mut sockets);
        for (_, socket) in sockets.iter_mut() {
            let smoltcp::socket::Socket::Tcp(socket) = socket else { continue };
            if socket.may_send() && !socket.may_recv() {
                socket.close();
            }
        }
        for end in ends.try_iter() {
            let why = end.rule.as_deref().map(|rule| format!(" by the rule {rule}")).unwrap_or_default();
            println!("{:<9} {} -> {}{why}", end.cause.name(), end.info.key.guest, end.info.key.remote);
            seen += 1;
        }
        guest.wait(Some(Duration::from_millis(10)))?;
    }
    running.stop()?;
    Ok(())
}
