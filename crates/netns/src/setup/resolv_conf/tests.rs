//! The text, and the place covered without a file. The mounts themselves are tested by the command.

use super::*;
use std::os::unix::fs::symlink;

#[test]
fn the_text_lists_servers_and_search_names() {
    let servers = ["10.0.2.3".parse().unwrap(), "fd00::3".parse().unwrap()];
    let text = resolv_conf(&servers, &["example.org".into(), "example.net".into()]);
    let lines: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(lines, ["nameserver 10.0.2.3", "nameserver fd00::3", "search example.org example.net"]);
    assert!(!resolv_conf(&servers, &[]).contains("search"));
}

#[test]
fn a_link_that_leads_nowhere_is_followed_to_the_last_directory_that_exists() {
    let base = std::env::temp_dir().join(format!("brodo-resolv-{}", std::process::id()));
    fs::create_dir_all(base.join("etc")).unwrap();
    fs::create_dir_all(base.join("run")).unwrap();
    let real = fs::canonicalize(&base).unwrap();
    let link = base.join("etc/resolv.conf");

    let absent = missing_path(&link).unwrap();
    assert_eq!(absent, FilePath { directory: real.join("etc"), rest: "resolv.conf".into() });

    symlink("../run/systemd/resolve/stub-resolv.conf", &link).unwrap();
    let place = missing_path(&link).unwrap();
    let rest = "systemd/resolve/stub-resolv.conf".into();
    assert_eq!(place, FilePath { directory: real.join("run"), rest });

    fs::remove_file(&link).unwrap();
    symlink("/no-such-directory-here/resolv.conf", &link).unwrap();
    assert!(missing_path(&link).is_err(), "the root directory cannot be covered");
    fs::remove_file(&link).unwrap();
    symlink("gone/../../run/resolv.conf", &link).unwrap();
    assert!(missing_path(&link).is_err(), "a way back up out of nothing leads nowhere");

    fs::remove_dir_all(&base).unwrap();
}

#[test]
fn mounts_below_a_directory_are_noticed() {
    let mountinfo = "21 1 8:1 / / rw - ext4 /dev/a rw\n22 21 8:1 /x /etc rw - ext4 /dev/a rw\n\
                     23 22 0:5 / /etc/hosts rw - tmpfs tmpfs rw\n24 21 0:5 / /runtime rw - tmpfs tmpfs rw\n";
    assert!(has_mounts_below(mountinfo, Path::new("/etc")));
    assert!(!has_mounts_below(mountinfo, Path::new("/etc/hosts")));
    assert!(!has_mounts_below(mountinfo, Path::new("/run")));
    assert!(has_mounts_below("", Path::new("/a b")), "not to be compared");
}
