//! Paths of existing files, and paths taken over by another process.

use super::*;
use brodo_control::instance::dial;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// A folder of this test's own, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("brodo-listener-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn path(&self) -> PathBuf {
        self.0.join("socket")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_socket_is_private_and_its_path_goes_with_it() {
    let folder = Folder::new("private");
    let listener = PrivateListener::bind(&folder.path()).unwrap();
    assert_eq!(listener.path(), folder.path());
    assert_eq!(folder.path().metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1, "no temporary name is left");
    drop(listener);
    assert!(!folder.path().exists());
}

#[test]
fn a_dead_socket_is_replaced_and_a_live_one_or_a_file_is_not() {
    let folder = Folder::new("dead");
    let path = folder.path();
    drop(UnixListener::bind(&path).unwrap());
    let live = PrivateListener::bind(&path).expect("no process listens on what is there");
    assert_eq!(PrivateListener::bind(&path).unwrap_err().kind(), ErrorKind::AddrInUse);
    dial(&path).expect("the live socket is still there");
    drop(live);
    fs::write(&path, "precious").unwrap();
    assert_eq!(PrivateListener::bind(&path).unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
}

#[test]
fn a_file_of_another_process_stays_at_the_end() {
    let folder = Folder::new("taken-over");
    let path = folder.path();
    let first = PrivateListener::bind(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let second = PrivateListener::bind(&path).unwrap();
    drop(first);
    dial(&path).expect("the second socket is still there");
    fs::remove_file(&path).unwrap();
    fs::write(&path, "text").unwrap();
    drop(second);
    assert_eq!(fs::read_to_string(&path).unwrap(), "text");
}
