//! resolv.conf as written by hand and by programs, and every way in which it is replaced.

use super::{ResolvConf, Watch};
use std::net::SocketAddr;
use std::path::PathBuf;

fn parse(text: &str) -> ResolvConf {
    ResolvConf::parse(text, |name| (name == "eth0").then_some(4))
}

fn addresses(list: &[&str]) -> Vec<SocketAddr> {
    list.iter().map(|a| a.parse().expect("address")).collect()
}

#[test]
fn an_ordinary_file() {
    let conf = parse(
        "# made by hand\n; and so on\nnameserver 192.0.2.53\nnameserver\t2001:db8::53 # second\n\
         search example.org. corp.example.org\noptions ndots:5 timeout:1\n",
    );
    assert_eq!(conf.resolvers, addresses(&["192.0.2.53:53", "[2001:db8::53]:53"]));
    assert_eq!(conf.search, ["example.org", "corp.example.org"]);
}

#[test]
fn scopes_by_name_and_number() {
    let conf = parse("nameserver fe80::1%eth0\nnameserver fe80::2%9\nnameserver fe80::3%nosuch\n");
    assert_eq!(conf.resolvers, addresses(&["[fe80::1%4]:53", "[fe80::2%9]:53"]));
    assert!(super::interface_index("lo").is_some());
}

#[test]
fn the_last_of_search_and_domain_counts() {
    assert_eq!(parse("search a b\ndomain c d\n").search, ["c"]);
    assert_eq!(parse("domain c\nsearch a b").search, ["a", "b"]);
    assert_eq!(parse("search a\nsearch .").search, [""; 0]);
}

#[test]
fn invalid_lines_are_skipped_and_everything_is_bounded() {
    assert_eq!(
        parse("nameserver\nnameserver x\nnameserver 1.2.3\nfoo\n \nnameserver 10.0.0.1%eth0"),
        ResolvConf::default()
    );
    let many: Vec<String> = (0..100).map(|i| format!("nameserver 192.0.2.{}", i / 2)).collect();
    let many = many.join("\n");
    assert_eq!(parse(&many).resolvers.len(), super::RESOLVERS_MAX);
    let long = format!("search {} {}", "x".repeat(300), "y ".repeat(1000));
    assert_eq!(parse(&long).search.len(), super::SEARCH_MAX);
}

/// A directory of this test alone, removed with the value.
struct Scratch(PathBuf);

impl Scratch {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("brodo-resolv-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&path).expect("directory");
        Self(path)
    }

    fn write(&self, name: &str, server: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, format!("nameserver {server}\n")).expect("file");
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn every_way_of_changing_the_file_is_noticed() {
    let dir = Scratch::new("watch");
    let path = dir.0.join("resolv.conf");
    let mut watch = Watch::new(path.clone());
    let mut poll = || watch.poll().map(|conf| conf.resolvers);
    assert_eq!(poll(), None, "no file yet");
    dir.write("resolv.conf", "192.0.2.1");
    assert_eq!(poll(), Some(addresses(&["192.0.2.1:53"])));
    assert_eq!(poll(), None);
    // Renamed over, as NetworkManager does; same length, and the times may be equal too.
    std::fs::rename(dir.write("new", "192.0.2.2"), &path).expect("rename");
    assert_eq!(poll(), Some(addresses(&["192.0.2.2:53"])));
    // Turned into a link, and the link turned elsewhere, as systemd-resolved's modes do.
    dir.write("stub", "192.0.2.3");
    dir.write("full", "192.0.2.4");
    std::fs::remove_file(&path).expect("remove");
    assert_eq!(poll(), None, "a missing file changes nothing");
    std::os::unix::fs::symlink("stub", &path).expect("link");
    assert_eq!(poll(), Some(addresses(&["192.0.2.3:53"])));
    std::os::unix::fs::symlink("full", dir.0.join("turn")).expect("link");
    std::fs::rename(dir.0.join("turn"), &path).expect("rename");
    assert_eq!(poll(), Some(addresses(&["192.0.2.4:53"])));
    // Written in place behind the link.
    dir.write("full", "192.0.2.55");
    assert_eq!(poll(), Some(addresses(&["192.0.2.55:53"])));
}
