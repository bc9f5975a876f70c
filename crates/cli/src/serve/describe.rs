//! An instance in words: for the status, and for the log.

use super::Purpose;
use crate::config::Settings;
use crate::control::InstanceInfo;
use crate::conversation::message::Ready;
use crate::engine::launch::GuestSide;
use crate::failure::Failure;
use crate::host;
use crate::log;
use crate::option_values::Confine;
use crate::warden::resume::Facts;
use brodo_control::method::GuestNetwork;
use brodo_core::config::{BufferBounds, Config};
use serde_json::Value;

/// Constant properties of an instance, for the control socket.
pub(super) fn instance_info(
    purpose: Purpose,
    interface: String,
    config: &Config,
    facts: Facts,
) -> InstanceInfo {
    let v4 = config.v4.map(|net| GuestNetwork {
        address: net.guest.into(),
        prefix_len: net.prefix_len,
        gateway: net.gateway.into(),
        dns: net.dns.map(Into::into),
        host_loopback: net.host_loopback.map(Into::into),
    });
    let v6 = config.v6.map(|net| GuestNetwork {
        address: net.guest.into(),
        prefix_len: net.prefix_len,
        gateway: net.gateway.into(),
        dns: net.dns.map(Into::into),
        host_loopback: net.host_loopback.map(Into::into),
    });
    InstanceInfo {
        command: purpose.command,
        target: purpose.target,
        interface,
        mtu: config.mtu,
        networks: v4.into_iter().chain(v6).collect(),
        flows_max: facts.flows_max,
        confinement: facts.confinement,
        no_promotion: facts.no_promotion,
    }
}

/// Logs the set-up.
pub(super) fn log_setup(settings: &Settings, side: &GuestSide, max_flows: u64) {
    let texts = |list: Vec<String>| Value::from(list);
    let (stack, interface) = (&settings.stack, &settings.plan.interface);
    let v4 = stack.v4.map(|net| (format!("{}/{}", net.guest, net.prefix_len), net.gateway.to_string()));
    let v6 = stack.v6.map(|net| (format!("{}/{}", net.guest, net.prefix_len), net.gateway.to_string()));
    let (addresses, gateways) = v4.into_iter().chain(v6).unzip();
    let made = if side.is_made() { "made the guest's interface" } else { "offering the guest its network" };
    log::info(
        made,
        &[
            ("interface", host::interface_name(settings, side).into()),
            ("addresses", texts(addresses)),
            ("gateways", texts(gateways)),
            ("mtu", interface.mtu.into()),
        ],
    );
    log::info(
        "serving DNS",
        &[
            ("at", texts(stack.dns_addresses().iter().map(ToString::to_string).collect())),
            ("resolvers", texts(stack.resolvers.iter().map(ToString::to_string).collect())),
            ("search", texts(stack.search.clone())),
        ],
    );
    log::info(
        "serving the network",
        &[
            ("flows at most", max_flows.into()),
            ("bytes of memory", stack.memory.into()),
            ("workers", settings.plan.queues.into()),
        ],
    );
    let mac = |octets: [u8; 6]| octets.map(|octet| format!("{octet:02x}")).join(":");
    let bounds = |bounds: BufferBounds| format!("{}..{}", bounds.initial, bounds.max);
    log::debug(
        "details of the set-up",
        &[
            ("guest's mac", mac(interface.mac).into()),
            ("brodo's mac", mac(stack.mac.0).into()),
            ("tx-queue-len", interface.tx_queue_len.into()),
            ("offload", format!("{:?}", settings.plan.offload).into()),
            ("tcp-rx-buffer", bounds(stack.tcp_rx).into()),
            ("tcp-tx-buffer", bounds(stack.tcp_tx).into()),
            ("resolvers are followed", settings.follow.resolvers.into()),
        ],
    );
}

/// The confinement of the first engine in words.
///
/// # Errors
/// It is not full, and `--confine required`.
pub(super) fn confinement(wanted: Confine, ready: &Ready) -> Result<String, Failure> {
    if wanted == Confine::Required && !ready.gaps.is_empty() {
        return Err(Failure::Limit(format!(
            "--confine required: this system does not allow full confinement ({})",
            gaps(ready)
        )));
    }
    Ok(confinement_of(wanted, ready))
}

/// The confinement of an engine in words.
pub(super) fn confinement_of(wanted: Confine, ready: &Ready) -> String {
    match (ready.gaps.is_empty(), wanted) {
        (_, Confine::Off) => "off".to_owned(),
        (true, Confine::Log) => "full, but a system call that is not allowed is only logged".to_owned(),
        (true, _) => "full".to_owned(),
        (false, _) => format!("partial ({})", gaps(ready)),
    }
}

fn gaps(ready: &Ready) -> String {
    let gaps: Vec<_> = ready.gaps.iter().map(|(stage, reason)| format!("{stage}: {reason}")).collect();
    gaps.join("; ")
}
