//! Notices to the user while the network is served; the warden writes them to the log, and clients of the
//! control socket get them.

use super::outbox::{Item, Outbox};
use crate::event_bus;
use crate::failure::plain;
use brodo_control::event::Level;
use brodo_net::Wake;
use brodo_net::clock::Clock;
use brodo_net::forward::ForwardError;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Notice at the first ping to another host.
const PING_FORBIDDEN: &str = "ping to other hosts does not work because the host lets no group of this user open \
    ping sockets (socket: Permission denied); `sysctl -w net.ipv4.ping_group_range='0 2147483647'` on the host allows \
    it; everything else works";

/// Notice when the guest has as many UDP flows as it may.
const UDP_PORTS_SPENT: &str = "UDP flows of the guest hold their share of the host's ephemeral ports, a quarter (sysctl \
    net.ipv4.ip_local_port_range): from now on each new one replaces the one of the lowest eviction class";

/// Notices to the user while the network is served.
#[derive(Debug)]
pub(super) struct Notices {
    outbox: Arc<Outbox>,
    clock: Clock,
    ping_noticed: AtomicBool,
    udp_ports_noticed: AtomicBool,
}

impl Notices {
    pub(super) fn new(outbox: Arc<Outbox>, clock: Clock) -> Self {
        Self {
            outbox,
            clock,
            ping_noticed: AtomicBool::new(false),
            udp_ports_noticed: AtomicBool::new(false),
        }
    }

    /// The capture has ended because of an error.
    pub(super) fn capture_failed(&self, error: &io::Error) {
        self.outbox.put(Item::CaptureEnded);
        self.notify(Level::Warn, &format!("the capture ended early: write: {}", plain(error)));
    }

    /// A forward is not in force after a crash.
    pub(super) fn forward_refused(&self, error: &ForwardError) {
        self.notify(Level::Warn, &format!("after the crash a forward is not in force: {error}"));
    }

    /// Publishes the notice of a wake-up.
    pub(super) fn publish(&self, wake: &Wake) {
        match wake {
            Wake::CaptureFailed(error) => self.capture_failed(error),
            Wake::PingForbidden if !self.ping_noticed.swap(true, Ordering::Relaxed) => {
                self.notify(Level::Warn, PING_FORBIDDEN);
            }
            Wake::UdpPortsSpent if !self.udp_ports_noticed.swap(true, Ordering::Relaxed) => {
                self.notify(Level::Warn, UDP_PORTS_SPENT);
            }
            Wake::Notice(sentence) => self.notify(Level::Info, sentence),
            _ => {}
        }
    }

    fn notify(&self, level: Level, text: &str) {
        self.outbox.put(Item::Notice(Box::new(event_bus::notice(self.clock, level, text))));
    }
}
