//! The command's own /etc/resolv.conf, in a mount namespace of its own.
//!
//! The file lives on a small tmpfs that is mounted nowhere else, and covers the host's file in this mount namespace
//! only: nothing is written to the host's file systems and nothing is left behind. Symbolic links are followed, so
//! that the file systemd-resolved or NetworkManager keeps under /run is covered, not the link.
//!
//! Where there is no file to cover (none at all, or a link that leads nowhere), the directory that ought to hold it
//! is covered by an overlay of a tmpfs and itself, read-only because nothing that the command wrote there would last.
//!
//! System calls: mount, `open_tree`, `move_mount`, umount2; open, write, mkdir on the tmpfs.

use super::{SetupError, Step, path_error};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount, mount_change,
    move_mount, open_tree, unmount,
};
use std::ffi::CString;
use std::fs;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

const PATH: &str = "/etc/resolv.conf";

/// Symbolic links followed before a chain is taken for a loop, as the kernel does.
const LINKS_MAX: usize = 40;

/// The text of a resolv.conf.
pub fn resolv_conf(servers: &[IpAddr], search: &[String]) -> String {
    let mut lines = vec!["# Made by brodo for this command; the host's file is unchanged.".to_owned()];
    lines.extend(servers.iter().map(|server| format!("nameserver {server}")));
    if !search.is_empty() {
        lines.push(format!("search {}", search.join(" ")));
    }
    lines.join("\n") + "\n"
}

/// Separates the mounts of the caller's mount namespace from the host's: what the host mounts later appears here,
/// what is mounted here does not appear there.
pub(crate) fn separate_mounts() -> Result<(), SetupError> {
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
        .map_err(|errno| SetupError::new(Step::PrivateMounts, errno, ""))
}

/// Puts `text` in the place of /etc/resolv.conf in the caller's mount namespace.
pub(crate) fn install(text: &str) -> Result<(), SetupError> {
    match fs::canonicalize(PATH) {
        Ok(file) => cover_file(text, &file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let place = missing_place(Path::new(PATH))
                .map_err(|error| SetupError::from_io(Step::MissingResolvConf, &error, PATH))?;
            cover_directory(text, &place)
        }
        Err(error) => Err(SetupError::from_io(Step::ResolvConf, &error, PATH)),
    }
}

/// Mounts a file over a file.
fn cover_file(text: &str, file: &Path) -> Result<(), SetupError> {
    let fail = |errno| path_error(Step::ResolvConf, Path::new(PATH))(errno);
    // The tmpfs is mounted for a moment, in this namespace only, to make a mount of the one file on it.
    let directory = Path::new("/etc");
    mount_tmpfs(directory).map_err(fail)?;
    let written = write_new(&directory.join("resolv.conf"), text);
    written.map_err(|error| SetupError::from_io(Step::ResolvConf, &error, PATH))?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = open_tree(CWD, PATH, flags).map_err(fail)?;
    unmount(directory, UnmountFlags::DETACH).map_err(fail)?;
    move_mount(&tree, "", CWD, file, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).map_err(fail)
}

/// Where a file that does not exist ought to be.
#[derive(Debug, PartialEq, Eq)]
struct MissingPlace {
    /// The nearest directory that exists, without symbolic links.
    directory: PathBuf,
    /// The rest of the way, at least the file's name.
    rest: PathBuf,
}

/// Follows the symbolic links of `path`, the last of which leads nowhere.
fn missing_place(path: &Path) -> io::Result<MissingPlace> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let Ok(target) = fs::read_link(&path) else { break };
        path = path.parent().unwrap_or(Path::new("/")).join(target);
    }
    let mut directory = path.as_path();
    while let Some(parent) = directory.parent() {
        directory = parent;
        if let Ok(existing) = fs::canonicalize(directory) {
            let rest = path.strip_prefix(directory).unwrap_or(Path::new("")).to_owned();
            let plain = rest.components().all(|part| matches!(part, Component::Normal(_)));
            // An overlay on the root directory would not be seen by a process whose root it is.
            return if plain && existing != Path::new("/") {
                Ok(MissingPlace { directory: existing, rest })
            } else {
                Err(io::ErrorKind::NotFound.into())
            };
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

/// Mounts an overlay over a directory, in which the missing file exists.
fn cover_directory(text: &str, place: &MissingPlace) -> Result<(), SetupError> {
    let fail = |errno| path_error(Step::MissingResolvConf, Path::new(PATH))(errno);
    let below =
        rustix::fs::open(&place.directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(fail)?;
    mount_tmpfs(&place.directory).map_err(fail)?;
    let file = place.directory.join(&place.rest);
    let written = file.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| write_new(&file, text));
    written.map_err(|error| SetupError::from_io(Step::MissingResolvConf, &error, PATH))?;
    let above =
        rustix::fs::open(&place.directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(fail)?;
    // Descriptors instead of paths: a path may hold the characters that separate options.
    let layers = format!("lowerdir=/proc/self/fd/{}:/proc/self/fd/{}", above.as_raw_fd(), below.as_raw_fd());
    let layers = CString::new(layers).map_err(|_| fail(rustix::io::Errno::INVAL))?;
    let flags = MountFlags::RDONLY | MountFlags::NODEV | MountFlags::NOSUID;
    mount("overlay", &place.directory, "overlay", flags, layers.as_c_str()).map_err(fail)
}

fn mount_tmpfs(directory: &Path) -> rustix::io::Result<()> {
    let flags = MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOEXEC;
    mount("tmpfs", directory, "tmpfs", flags, c"mode=0755,size=64k,nr_inodes=16")
}

/// Writes a file that everybody may read, whatever the umask says.
fn write_new(path: &Path, text: &str) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o644).open(path)?;
    file.write_all(text.as_bytes())?;
    rustix::fs::fchmod(&file, Mode::from_raw_mode(0o644))?;
    Ok(())
}

#[cfg(test)]
mod tests;
