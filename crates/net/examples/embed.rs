//! A VMM's view: a guest inside this process downloads 64 MiB from a server on the host, through brodo.
mod guest;

use brodo_net::{Config, Network, channel};
use guest::Guest;

const LEN: usize = 64 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let port = guest::server(LEN)?;

    // The network: one link, and 10.0.2.4 stands for the host's loopback.
    let (link, end) = channel::pair(channel::Options::default())?;
    let mut config = Config { mtu: 1500, ..Config::default() };
    config.v4.as_mut().ok_or("IPv4 is on by default")?.host_loopback = Some([10, 0, 2, 4].into());
    let running = Network::builder().link(link).config(config).build()?.spawn()?;

    let mut guest = Guest::new(end);
    guest.connect([10, 0, 2, 4].into(), port, 1 << 20)?;
    let mut received = 0;
    while received < LEN {
        match guest.turn()? {
            0 => {
                let timeout = guest.timeout();
                guest.end.wait(timeout)?;
            }
            more => received += more,
        }
    }
    println!("{received} bytes through brodo");
    running.stop()?;
    Ok(())
}
