//! Options whose condition is not met: an interface that brodo makes, or the guest's network namespace.

use crate::args::NetworkOptions;
use crate::option_values::BulkOption;
use brodo_net::forward::spec::{Ports, Spec};

/// Refuses options of an interface that brodo makes.
///
/// # Errors
/// One is given; the sentence ends with `why` there is none.
pub(crate) fn interface(options: &NetworkOptions, why: &str) -> Result<(), String> {
    let given = [
        ("--ifname", options.ifname.is_some()),
        ("--tx-queue-len", options.tx_queue_len.is_some()),
        ("--no-configure", options.no_configure),
    ];
    match given.into_iter().find(|(_, given)| *given) {
        Some((option, _)) => Err(format!("{option} is for an interface that brodo makes, and {why}")),
        None => Ok(()),
    }
}

/// Refuses options that take the guest's network namespace.
///
/// # Errors
/// One is given; the sentence ends with `why` there is none, or the remedy.
pub(crate) fn namespace(options: &NetworkOptions, why: &str) -> Result<(), String> {
    let opens = |specs: &[Spec]| specs.iter().any(|spec| spec.ports != Ports::None);
    let follows = |specs: &[Spec]| specs.iter().any(Spec::is_auto);
    let given = [
        ("-T", opens(&options.tcp_ns)),
        ("-U", opens(&options.udp_ns)),
        ("-t auto", follows(&options.tcp_ports)),
        ("-u auto", follows(&options.udp_ports)),
        ("--bulk kernel", options.bulk == BulkOption::Kernel),
    ];
    match given.into_iter().find(|(_, given)| *given) {
        Some((option, _)) => Err(format!("{option} needs the guest's network namespace: {why}")),
        None => Ok(()),
    }
}
