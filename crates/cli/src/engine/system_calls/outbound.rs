//! The system calls of an engine whose sockets have a source (`--outbound`), which that option's tests need.

use brodo_sandbox::{Alternative, SystemCall, call, option};

/// Sockets that leave by an interface.
pub(super) const INTERFACE: &[SystemCall] = &[call!(SYS_setsockopt, BIND_TO_DEVICE, "--outbound")];

/// Sockets that leave from an address.
pub(super) const ADDRESS: &[SystemCall] =
    &[call!(SYS_bind, "--outbound"), call!(SYS_setsockopt, BIND_NO_PORT, "--outbound")];

const BIND_TO_DEVICE: &[Alternative] = &[option!(SOL_SOCKET, SO_BINDTODEVICE, "--outbound")];
const BIND_NO_PORT: &[Alternative] = &[option!(SOL_IP, IP_BIND_ADDRESS_NO_PORT, "--outbound")];
