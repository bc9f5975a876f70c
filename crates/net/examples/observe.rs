//! Flows as they begin and end: a guest asks for two connections, one of which a rule denies, and an observer
//! prints what became of each.
mod guest;

use brodo_net::{Config, Deny, Network, Recording, Rules, channel};
use guest::Guest;
use std::sync::mpsc;
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let port = guest::server(0)?;

    let (link, end) = channel::pair(channel::Options::default())?;
    let mut config = Config { mtu: 1500, ..Config::default() };
    config.v4.as_mut().ok_or("IPv4 is on by default")?.host_loopback = Some([10, 0, 2, 4].into());
    let (to, ends) = mpsc::channel();
    let recording = Recording { openings: true, ends: true };
    let observer = move |records: brodo_net::FlowRecords| {
        for flow in records.openings {
            println!("began  {} -> {}", flow.key.guest, flow.key.remote);
        }
        for end in records.ends {
            // The receiver is gone once both ends were seen.
            let _ = to.send(end);
        }
    };
    let private = Deny::new([10, 9, 0, 0].into(), 16, None).ok_or("a prefix of 16 bits is valid")?;
    let rules = Rules { deny: vec![private], ..Rules::default() };
    let network = Network::builder().link(link).config(config).policy(rules);
    let running = network.on_flow_records(recording, observer).build()?.spawn()?;

    let mut guest = Guest::new(end);
    let remotes = [([10, 0, 2, 4], port), ([10, 9, 9, 9], 80)];
    for (address, port) in remotes {
        guest.connect(address.into(), port, 4096)?;
    }
    let mut seen = 0;
    while seen < remotes.len() {
        guest.turn()?;
        for end in ends.try_iter() {
            let why = end.rule.as_deref().map(|rule| format!(" by the rule {rule}")).unwrap_or_default();
            println!("{:<9} {} -> {}{why}", end.cause.name(), end.info.key.guest, end.info.key.remote);
            seen += 1;
        }
        guest.end.wait(Some(Duration::from_millis(10)))?;
    }
    running.stop()?;
    Ok(())
}
