//! What `run` and `attach` share: facts about the host before, the worker during, the report after.

use crate::args::NetworkOptions;
use crate::config::{HostFacts, Settings};
use crate::failure::Failure;
use brodo_core::link::Link;
use brodo_core::stack::{Keys, Stack};
use brodo_linux::capture::Capture;
use brodo_linux::clock::Clock;
use brodo_linux::driver::{Wake, Worker};
use brodo_linux::link::GuestLink;
use brodo_linux::link::tap::Tap;
use brodo_linux::namespace::{Made, leave_interface};
use brodo_linux::resolv::{ResolvConf, Watch};
use brodo_linux::ring::RingWatch;
use brodo_linux::sockets::{Sockets, raise_nofile};
use brodo_linux::{process, setup};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::rand::{GetRandomFlags, getrandom};
use std::ops::ControlFlow;
use std::path::Path;

const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Descriptors that brodo needs for itself, besides one per flow.
const DESCRIPTORS_RESERVED: u64 = 64;

/// Tags of descriptors that the worker watches: the guest's end, and changes of its interface.
const GUEST: u32 = 0;
const RING: u32 = 1;

/// Said once, when the guest pings another host.
const PING_FORBIDDEN: &str = "brodo: ping to other hosts does not work because the host lets no group of this user open \
    ping sockets (socket: Permission denied); `sysctl -w net.ipv4.ping_group_range='0 2147483647'` on the host allows \
    it; everything else works\n";

/// All that is checked and opened before anything is made.
pub(crate) struct Preparation {
    pub(crate) settings: Settings,
    ready: Option<OwnedFd>,
    capture: Option<Capture>,
    clock: Clock,
    report: bool,
    quiet: bool,
}

impl Preparation {
    /// Checks the options and opens what they name.
    pub(crate) fn new(options: &NetworkOptions) -> Result<Self, Failure> {
        // First of all, while no descriptor but the inherited ones is open.
        let ready = options.ready_fd.map(|number| {
            process::inherited(number).map_err(|_| {
                Failure::Usage(format!("--ready-fd {number} is not a descriptor brodo was started with"))
            })
        });
        let ready = ready.transpose()?;
        let host = HostFacts {
            ipv6: setup::ipv6_available(),
            // Without a file there is no resolver to ask; everything else works.
            resolv_conf: ResolvConf::read(Path::new(RESOLV_CONF)).unwrap_or_default(),
        };
        let settings = Settings::new(options, &host).map_err(Failure::Usage)?;
        let clock = Clock::start();
        let capture = options.pcap.as_deref().map(|path| {
            Capture::create(path, &options.ifname, clock)
                .map_err(Failure::io(format!("write the capture {}: open", path.display())))
        });
        let capture = capture.transpose()?;
        Ok(Self { settings, ready, capture, clock, report: options.verbose, quiet: options.quiet })
    }

    /// A service for the interface that was made.
    pub(crate) fn serve(self, made: Made) -> Result<Service, Failure> {
        let link = Tap::from_fd(made.tap, self.settings.plan.offload).map_err(Failure::Tap)?;
        let ring = RingWatch::new(made.watch, &self.settings.plan.interface.name).map_err(|errno| {
            Failure::Io("watch the network interface: ioctl SIOCGIFINDEX".into(), errno.into())
        })?;
        let mut config = self.settings.stack;
        let flows_max = raise_nofile().saturating_sub(DESCRIPTORS_RESERVED).max(1);
        config.max_flows = config.max_flows.min(usize::try_from(flows_max).unwrap_or(usize::MAX));
        let stack = Stack::new(config, keys()?, link.caps());
        let sockets = Sockets::new().map_err(Failure::io("wait for sockets: epoll_create1"))?;
        let mut worker = Worker::new(stack, link, sockets, self.clock)
            .map_err(Failure::io("wait for the network interface: epoll_ctl"))?;
        if let Some(capture) = self.capture {
            worker.capture(capture);
        }
        if self.settings.follow_resolvers {
            worker.follow_resolvers(Watch::new(RESOLV_CONF.into()));
        }
        worker
            .watch(ring.descriptor(), RING)
            .map_err(Failure::io("watch the network interface: epoll_ctl"))?;
        let mut service = Service {
            worker,
            ring,
            ring_dropped: 0,
            ready: self.ready,
            report: self.report,
            quiet: self.quiet,
        };
        service.look_at_ring();
        Ok(service)
    }
}

/// Fresh keys for the flow table and for sequence numbers.
fn keys() -> Result<Keys, Failure> {
    let mut keys = Keys { table: [0; 16], isn: [0; 16] };
    for key in [&mut keys.table, &mut keys.isn] {
        // At most 256 bytes are given whole or not at all.
        getrandom(&mut key[..], GetRandomFlags::empty())
            .map_err(|errno| Failure::Io("draw random keys: getrandom".into(), errno.into()))?;
    }
    Ok(keys)
}

/// A network that is being served.
pub(crate) struct Service {
    worker: Worker<Tap>,
    ring: RingWatch,
    /// Frames that the ring has dropped, as of the last look.
    ring_dropped: u64,
    ready: Option<OwnedFd>,
    report: bool,
    quiet: bool,
}

impl Service {
    /// Asks to be called back by [`Service::run`] when `descriptor` is readable.
    pub(crate) fn watch(&mut self, descriptor: BorrowedFd<'_>) -> Result<(), Failure> {
        self.worker.watch(descriptor.as_fd(), GUEST).map_err(Failure::io("wait for the guest: epoll_ctl"))
    }

    /// Tells whoever waits for it that the network is there.
    pub(crate) fn announce(&mut self) {
        if let Some(ready) = self.ready.take() {
            // If nobody listens any more nobody needs to know.
            let _ = rustix::io::write(ready, b"\n");
        }
    }

    /// Serves until `check` breaks, which is asked whenever a watched descriptor is readable, or until the guest's
    /// interface is gone (`None`).
    pub(crate) fn run<T>(
        &mut self,
        mut check: impl FnMut() -> Result<ControlFlow<T>, Failure>,
    ) -> Result<Option<T>, Failure> {
        loop {
            match self.worker.run().map_err(Failure::io("serve the network interface: epoll_wait"))? {
                Wake::Extra(RING) => self.look_at_ring(),
                Wake::Extra(_) => {
                    if let ControlFlow::Break(value) = check()? {
                        return Ok(Some(value));
                    }
                }
                Wake::GuestGone => return Ok(None),
                Wake::CaptureFailed(error) if !self.quiet => {
                    crate::report::tell(&format!("brodo: the capture has ended early: {error}\n"));
                }
                Wake::PingForbidden if !self.quiet => crate::report::tell(PING_FORBIDDEN),
                Wake::CaptureFailed(_) | Wake::PingForbidden => {}
            }
        }
    }
}

impl Service {
    /// Tells the stack how many frames the ring holds now, and notes how many it has dropped. Once the interface is gone there is
    /// nothing new to tell.
    fn look_at_ring(&mut self) {
        if let Ok(state) = self.ring.look() {
            let loses = !self.worker.link().has_back_pressure();
            self.worker.stack_mut().set_ring(loses.then_some(state.frames));
            self.ring_dropped = state.dropped;
        }
    }

    /// To be called when the command is done whose namespace was made for this service.
    pub(crate) fn leave_interface(&self) {
        leave_interface(self.worker.link().descriptor());
    }
}

impl Drop for Service {
    /// Prints the counters if they were asked for, however the service ended.
    fn drop(&mut self) {
        if self.report {
            self.look_at_ring();
            let losses = self.worker.link().losses();
            let link = [("link_down", losses.down), ("link_refused", losses.refused)];
            let text = crate::report::report(self.worker.stack().counters(), self.ring_dropped, &link);
            crate::report::tell(&text);
        }
    }
}
