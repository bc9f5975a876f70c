//! Driven from the caller's epoll: guest and network share one thread and one epoll instance, as in a VMM
//! with a loop of its own. The guest downloads 16 MiB; the loop sleeps whenever neither side has work.
mod guest;

use brodo_net::{Config, Network, channel};
use guest::Guest;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use std::error::Error;
use std::time::Duration;

const LEN: usize = 16 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let port = guest::server(LEN)?;

    let (link, end) = channel::pair(channel::Options::default())?;
    let mut config = Config { mtu: 1500, ..Config::default() };
    config.v4.as_mut().ok_or("IPv4 is on by default")?.host_loopback = Some([10, 0, 2, 4].into());
    let mut network = Network::builder().link(link).config(config).build()?;

    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, network.descriptor(), EventData::new_u64(0), EventFlags::IN)?;
    epoll::add(&epoll, end.descriptor(), EventData::new_u64(1), EventFlags::IN | EventFlags::ET)?;

    let mut guest = Guest::new(end);
    guest.connect([10, 0, 2, 4].into(), port, 1 << 20)?;
    let (mut received, mut sleeps) = (0, 0u64);
    while received < LEN {
        // Both sides' work, then a sleep until the earlier of their deadlines.
        let more = guest.turn()?;
        received += more;
        if let Some(wake) = network.turn()? {
            println!("notice: {wake:?}");
        }
        let timeout = [guest.timeout(), network.timeout()].into_iter().flatten().min();
        if more == 0 && timeout != Some(Duration::ZERO) {
            sleeps += 1;
            guest::wait(&epoll, timeout)?;
        }
    }
    println!("{received} bytes in one thread, {sleeps} sleeps");
    Ok(())
}
