//! brodo-linux: descriptors, namespaces and interfaces; everything brodo asks of a Linux kernel.
pub mod namespace;
pub mod netlink;
pub mod process;
pub mod setup;
