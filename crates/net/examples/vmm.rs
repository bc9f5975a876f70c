//! A VMM's network device: rings in its guest's memory, served in the VMM's own event loop.
//!
//! A VMM's own side is here too: the guest's memory as a file, the addresses of the rings and the features
//! that the driver has accepted (from its registers), an eventfd for each kick (KVM's ioeventfd) and each
//! call (irqfd). In the place of a guest behind KVM stands a driver in this process, with smoltcp on it.
mod driver;
mod guest;

use brodo_link::virtio::device::{NetDevice, Role};
use brodo_link::virtio::link::VirtioLink;
use brodo_link::virtio::memory::{GuestMemory, Region, RegionPlace};
use brodo_link::virtio::queues::FrameFormat;
use brodo_net::{Config, Network};
use driver::Driver;
use guest::Guest;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

const LEN: usize = 16 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let port = guest::server(LEN)?;

    // The guest's memory: a VMM gives the same file to KVM. `user` is where the VMM itself has mapped it, in
    // whose addresses rings are named.
    let (file, size) = driver::memory();
    let mut memory = GuestMemory::default();
    memory.add(Region::map(&file, RegionPlace { guest: 0, size, user: driver::USER, offset: 0 })?)?;
    let memory = Arc::new(memory);
    let driver = Driver::new(memory.clone())?;

    // One queue pair, one worker. With several pairs and workers, `VirtioLink::all` has a link for each.
    let device = NetDevice::new(2, 1)?;
    let link = VirtioLink::new(device.clone(), 0);
    let mut config = Config { mtu: 1500, ..Config::default() };
    config.v4.as_mut().ok_or("IPv4 is on by default")?.host_loopback = Some([10, 0, 2, 4].into());
    let mut network = Network::builder().link(link).config(config).build()?;

    // At the driver's DRIVER_OK. `NetDevice::stop_ring` and `clear` are for its reset. Without offloads
    // accepted the capabilities stay none.
    device.set_memory(&memory);
    let format = FrameFormat { modern: true, mergeable: true };
    for ring in 0..2 {
        device.set_kick(ring, Some(driver.kick(ring)?.into()));
        device.set_call(ring, Some(driver.call(ring)?.into()));
        device.start_ring(ring, Role::of_pair(ring), driver.layout(ring), format)?;
        device.enable_ring(ring, true);
    }
    device.announce();

    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, network.descriptor(), EventData::new_u64(0), EventFlags::IN)?;
    epoll::add(&epoll, driver.call(0)?, EventData::new_u64(1), EventFlags::IN | EventFlags::ET)?;
    let mut guest = Guest::new(driver);
    guest.connect([10, 0, 2, 4].into(), port, 1 << 20)?;
    let (mut received, mut sleeps) = (0, 0u64);
    while received < LEN {
        let more = guest.turn()?;
        received += more;
        if let Some(wake) = network.turn()? {
            println!("notice: {wake:?}");
        }
        let timeout = [guest.timeout(), network.timeout()].into_iter().flatten().min();
        if more == 0 && timeout != Some(Duration::ZERO) && !guest.end.arm() {
            sleeps += 1;
            guest::wait(&epoll, timeout)?;
        }
    }
    println!("{received} bytes over the rings of a device, {sleeps} sleeps");
    Ok(())
}
