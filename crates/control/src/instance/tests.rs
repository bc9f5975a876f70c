//! Live and dead sockets, and folders that fail the check.
use super::*;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;

/// A folder of this test's own, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = env::temp_dir().join(format!("brodo-instance-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        DirBuilder::new().mode(0o700).create(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_dead_are_removed_and_the_living_found() {
    let folder = Folder::new("dead");
    let path = |name: &str| folder.0.join(name);
    let _living = UnixListener::bind(path("12.sock")).unwrap();
    drop(UnixListener::bind(path("13.sock")).unwrap());
    drop(UnixListener::bind(path("other.sock")).unwrap());
    fs::write(path("14.txt"), "").unwrap();
    assert_eq!(running_in(&folder.0), [Instance { pid: 12, path: path("12.sock") }]);
    assert!(!path("13.sock").exists());
    assert!(path("other.sock").exists() && path("14.txt").exists(), "a foreign file stays");
}

#[test]
fn a_folder_that_others_may_enter_does_not_count() {
    let folder = Folder::new("open");
    check(&folder.0).unwrap();
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o750)).unwrap();
    assert!(check(&folder.0).unwrap_err().to_string().contains("is open to other users"));
    let link = folder.0.join("link");
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o700)).unwrap();
    std::os::unix::fs::symlink(&folder.0, &link).unwrap();
    assert!(check(&link).unwrap_err().to_string().contains("is not a directory"));
}

#[test]
fn a_number_is_a_process_and_all_else_a_path() {
    assert_eq!("4711".parse(), Ok(Which::Pid(4711)));
    assert_eq!("./4711".parse(), Ok(Which::Path("./4711".into())));
    assert!("".parse::<Which>().is_err());
}

#[test]
fn a_long_path_is_refused_in_words() {
    let error = dial(Path::new(&"x".repeat(200))).unwrap_err();
    assert!(error.to_string().contains("too long"), "{error}");
}
