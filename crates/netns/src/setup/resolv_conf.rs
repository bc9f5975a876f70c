//! The command's own /etc/resolv.conf, in a mount namespace of its own.
//!
//! The file lives on a small tmpfs that is mounted nowhere else, and covers the host's file in this mount
//! namespace only: the host's file systems stay unchanged. Symbolic links are followed, so that the file
//! systemd-resolved or NetworkManager keeps under /run is covered, not the link.
//!
//! Without a file to cover (none at all, or a dangling link), its directory is covered by an overlay of a
//! tmpfs and itself, read-only because the command's changes there would be lost.
//!
//! The same is done with a directory in which the command has no write permission anyway. For a mount over a
//! file is gone when the host replaces the file by renaming another over it, as all programs that manage a
//! resolv.conf do: the kernel then removes the mount in all mount namespaces (`detach_mounts`), and the
//! command would see the host's file.
//!
//! System calls: mount, `open_tree`, `move_mount`, umount2; open, write, mkdir on the tmpfs.

use super::{SetupError, Step, path_error};
use rustix::fs::{Access, CWD, Mode, OFlags};
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount, mount_change,
    move_mount, open_tree, unmount,
};
use std::ffi::CString;
use std::fs;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
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

/// Separates the mounts of the caller's mount namespace from the host's: later mounts of the host appear
/// here, mounts made here do not appear there.
pub(crate) fn separate_mounts() -> Result<(), SetupError> {
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
        .map_err(|errno| SetupError::new(Step::PrivateMounts, errno, ""))
}

/// Replaces /etc/resolv.conf in the caller's mount namespace by `text`.
pub(crate) fn install(text: &str) -> Result<(), SetupError> {
    match fs::canonicalize(PATH) {
        Ok(file) => match overlaid_path(&file) {
            // Not every kernel and file system lets a user make overlays: the mount over the file is good
            // until then.
            Some(place) => cover_directory(text, &place).or_else(|_| cover_file(text, &file)),
            None => cover_file(text, &file),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let place = missing_path(Path::new(PATH))
                .map_err(|error| SetupError::from_io(Step::MissingResolvConf, &error, PATH))?;
            cover_directory(text, &place)
        }
        Err(error) => Err(SetupError::from_io(Step::ResolvConf, &error, PATH)),
    }
}

/// Mounts a file over a file.
fn cover_file(text: &str, file: &Path) -> Result<(), SetupError> {
    let fail = |errno| path_error(Step::ResolvConf, Path::new(PATH))(errno);
    // The tmpfs is mounted for a moment, in this namespace only, for a mount of the one file on it.
    let directory = Path::new("/etc");
    mount_tmpfs(directory).map_err(fail)?;
    let written = write_new(&directory.join("resolv.conf"), text);
    written.map_err(|error| SetupError::from_io(Step::ResolvConf, &error, PATH))?;
    let tree = clone_mount(Path::new(PATH)).map_err(fail)?;
    unmount(directory, UnmountFlags::DETACH).map_err(fail)?;
    attach_mount(&tree, file).map_err(fail)
}

/// Path of an existing or missing file.
#[derive(Debug, PartialEq, Eq)]
struct FilePath {
    /// The nearest existing directory, without symbolic links.
    directory: PathBuf,
    /// The rest of the way, at least the file's name.
    rest: PathBuf,
}

/// Path of an existing file, if an overlay over its directory takes nothing from the command: it has no write
/// permission there, and no mounts lie below, which the overlay would hide. A container's /etc has such
/// mounts; the file itself is usually one of them, and then it cannot be replaced either.
fn overlaid_path(file: &Path) -> Option<FilePath> {
    let directory = file.parent().filter(|directory| *directory != Path::new("/"))?;
    let may_write = rustix::fs::access(directory, Access::WRITE_OK).is_ok();
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let possible = !may_write && !has_mounts_below(&mounts, directory);
    possible.then(|| FilePath {
        directory: directory.into(),
        rest: file.file_name().map(PathBuf::from).unwrap_or_default(),
    })
}

/// Whether a mount of `mountinfo` (proc(5)) lies below `directory`. A directory whose name is escaped there
/// is taken to have some.
fn has_mounts_below(mountinfo: &str, directory: &Path) -> bool {
    let escaped = directory.to_string_lossy().contains([' ', '\t', '\n', '\\', char::REPLACEMENT_CHARACTER]);
    let mut points = mountinfo.lines().filter_map(|line| line.split(' ').nth(4)).map(Path::new);
    escaped || points.any(|point| point != directory && point.starts_with(directory))
}

/// Follows the symbolic links of `path`, the last of which leads nowhere.
fn missing_path(path: &Path) -> io::Result<FilePath> {
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
                Ok(FilePath { directory: existing, rest })
            } else {
                Err(io::ErrorKind::NotFound.into())
            };
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

/// Mounts an overlay over a directory, in which the file exists with `text`. Undone if it fails.
fn cover_directory(text: &str, place: &FilePath) -> Result<(), SetupError> {
    let fail = |errno| path_error(Step::MissingResolvConf, Path::new(PATH))(errno);
    let below = open_directory(&place.directory).map_err(fail)?;
    mount_tmpfs(&place.directory).map_err(fail)?;
    let covered = overlay(text, place, &below);
    if covered.is_err() {
        unmount(&place.directory, UnmountFlags::DETACH).map_err(fail)?;
    }
    covered
}

/// Mounts the tmpfs that covers the directory over what was `below` it, and both again over the directory.
fn overlay(text: &str, place: &FilePath, below: &OwnedFd) -> Result<(), SetupError> {
    let fail = |errno| path_error(Step::MissingResolvConf, Path::new(PATH))(errno);
    let file = place.directory.join(&place.rest);
    let written = file.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| write_new(&file, text));
    written.map_err(|error| SetupError::from_io(Step::MissingResolvConf, &error, PATH))?;
    let above = open_directory(&place.directory).map_err(fail)?;
    let tree = clone_mount(&file).map_err(fail)?;
    // Descriptors instead of paths: a path may hold the characters that separate options.
    let layers = format!("lowerdir=/proc/self/fd/{}:/proc/self/fd/{}", above.as_raw_fd(), below.as_raw_fd());
    let layers = CString::new(layers).map_err(|_| fail(rustix::io::Errno::INVAL))?;
    let flags = MountFlags::RDONLY | MountFlags::NODEV | MountFlags::NOSUID;
    mount("overlay", &place.directory, "overlay", flags, layers.as_c_str()).map_err(fail)?;
    // Makes the file itself writable. It covers a file of the overlay, which the host cannot replace.
    // Refused, the file is the right one all the same.
    let _ = attach_mount(&tree, &file);
    Ok(())
}

/// A mount of the one file, attached nowhere yet.
fn clone_mount(file: &Path) -> rustix::io::Result<OwnedFd> {
    open_tree(CWD, file, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)
}

/// Attaches such a mount over a file.
fn attach_mount(tree: &OwnedFd, file: &Path) -> rustix::io::Result<()> {
    move_mount(tree, "", CWD, file, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

fn open_directory(path: &Path) -> rustix::io::Result<OwnedFd> {
    rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

fn mount_tmpfs(directory: &Path) -> rustix::io::Result<()> {
    let flags = MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOEXEC;
    mount("tmpfs", directory, "tmpfs", flags, c"mode=0755,size=64k,nr_inodes=16")
}

/// Writes a world-readable file, independent of the umask.
fn write_new(path: &Path, text: &str) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o644).open(path)?;
    file.write_all(text.as_bytes())?;
    rustix::fs::fchmod(&file, Mode::from_raw_mode(0o644))?;
    Ok(())
}

#[cfg(test)]
mod tests;
