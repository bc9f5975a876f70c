//! The wire formats against arbitrary input and against two independent implementations, etherparse and smoltcp:
//! what we write they read, and what they write we read. (DHCP is compared with dhcproto in the services' own tests.)

mod oracle_etherparse;
mod oracle_smoltcp;
mod properties;
mod strategies;
