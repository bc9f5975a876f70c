//! Forwards in messages: the control protocol's request for a forward also carries it between the
//! processes of brodo, with one parser for all of them.

use brodo_control::flow::Protocol;
use brodo_control::method::{AddForward, Side};
use brodo_net::forward::{Forward, ForwardDirection, Transport};

/// The request that asks for a forward.
pub(crate) fn request(forward: &Forward) -> AddForward {
    let Forward { direction, transport, spec } = forward;
    AddForward {
        side: if *direction == ForwardDirection::In { Side::Host } else { Side::Guest },
        protocol: if *transport == Transport::Tcp { Protocol::Tcp } else { Protocol::Udp },
        spec: spec.to_string(),
    }
}

/// The requested forward.
///
/// # Errors
/// The specification is invalid, or the protocol has no ports.
pub(crate) fn parse(wanted: &AddForward) -> Result<Forward, String> {
    let AddForward { side, protocol, spec } = wanted;
    Ok(Forward {
        spec: spec.parse().map_err(|why| format!("{spec}: {why}"))?,
        transport: match protocol {
            Protocol::Tcp => Transport::Tcp,
            Protocol::Udp => Transport::Udp,
            _ => return Err("ports of TCP and of UDP can be forwarded".to_owned()),
        },
        direction: if *side == Side::Host { ForwardDirection::In } else { ForwardDirection::Out },
    })
}
