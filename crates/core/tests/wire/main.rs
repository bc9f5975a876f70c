//! The wire formats against arbitrary input and against two independent implementations, etherparse and
//! smoltcp: each parses the other's output. (DHCP is compared with dhcproto in the services' own tests.)

mod oracle_etherparse;
mod oracle_smoltcp;
mod properties;
mod strategies;
