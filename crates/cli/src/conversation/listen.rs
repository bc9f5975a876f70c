//! Requests for a listening socket, and the replies.

use brodo_net::forward::{ForwardDirection, ListenSpec, PortSharing, Transport};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Longest request or reply, in bytes.
pub(crate) const MESSAGE_MAX: usize = 4 << 10;

/// Request for a listening socket.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Listen {
    inbound: bool,
    tcp: bool,
    address: IpAddr,
    port: u16,
    interface: Option<String>,
    /// Whether flows of the guest's may share the port, and whether some have it by now.
    shared: bool,
    joins: bool,
}

/// Reply: without a failure the socket comes with it.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Listening {
    pub(crate) failure: Option<Refused>,
}

/// The system call that failed.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Refused {
    pub(crate) call: String,
    pub(crate) errno: i32,
}

impl From<&ListenSpec> for Listen {
    fn from(place: &ListenSpec) -> Self {
        Self {
            inbound: place.direction == ForwardDirection::In,
            tcp: place.transport == Transport::Tcp,
            address: place.address,
            port: place.port,
            interface: place.interface.clone(),
            shared: place.shared != PortSharing::None,
            joins: place.shared == PortSharing::Now,
        }
    }
}

impl From<Listen> for ListenSpec {
    fn from(Listen { inbound, tcp, address, port, interface, shared, joins }: Listen) -> Self {
        Self {
            direction: if inbound { ForwardDirection::In } else { ForwardDirection::Out },
            transport: if tcp { Transport::Tcp } else { Transport::Udp },
            address,
            port,
            interface,
            shared: match (shared, joins) {
                (_, true) => PortSharing::Now,
                (true, false) => PortSharing::Later,
                (false, false) => PortSharing::None,
            },
        }
    }
}
