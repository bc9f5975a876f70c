//! Debian packages: each file and link that the lists in Cargo.toml name is there, and each file that
//! scripts/package-files makes is in a package. The packages themselves are built by `make deb`. Their
//! scripts run here too, as dpkg runs them.

use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Folder of cargo's that cargo-deb knows by this name, and the folder of scripts/package-files in it.
const BUILT: &str = "target/release/";
const MADE: &str = "target/release/package/";

/// A file or link of a package, with the place where it is installed.
#[derive(Debug)]
enum Asset {
    File { source: String, dest: PathBuf },
    Link { to: PathBuf, dest: PathBuf },
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The lists of all packages, by the name of each.
fn packages() -> Vec<(String, Vec<Asset>)> {
    let words = ["metadata", "--no-deps", "--offline", "--format-version=1"];
    let output = Command::new(env!("CARGO")).args(words).current_dir(root()).output().expect("cargo");
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let own = metadata["packages"].as_array().expect("a list").iter().find(|it| it["name"] == "brodo");
    let deb = &own.expect("brodo")["metadata"]["deb"];
    let variants = deb["variants"].as_object().expect("variants").values();
    let variants =
        variants.map(|variant| (variant["name"].as_str().expect("a name").to_owned(), assets(variant)));
    std::iter::once(("brodo".to_owned(), assets(deb))).chain(variants).collect()
}

fn assets(package: &Value) -> Vec<Asset> {
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let asset = |value: &Value| match value {
        Value::Array(parts) => {
            let (source, dest) = (text(&parts[0]), text(&parts[1]));
            let name = Path::new(&source).file_name().expect("a name");
            // A destination that ends in a slash is a folder.
            let dest = if dest.ends_with('/') { Path::new(&dest).join(name) } else { dest.into() };
            Asset::File { source, dest }
        }
        link => {
            let dest = PathBuf::from(text(&link["dest"]));
            let to = dest.parent().expect("a folder").join(text(&link["link_name"]));
            Asset::Link { to: without_dots(&to), dest }
        }
    };
    package["assets"].as_array().expect("a list").iter().map(asset).collect()
}

/// A path without `..`.
fn without_dots(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut path, part| {
        if part == Component::ParentDir {
            path.pop();
        } else {
            path.push(part);
        }
        path
    })
}

/// The files that scripts/package-files makes with the program under test, as the lists name them.
fn made() -> &'static BTreeSet<String> {
    static MADE: OnceLock<BTreeSet<String>> = OnceLock::new();
    MADE.get_or_init(make)
}

fn make() -> BTreeSet<String> {
    let folder = std::env::temp_dir().join(format!("brodo-package-{}", std::process::id()));
    let script = root().join("scripts/package-files");
    let made = Command::new(script).arg(env!("CARGO_BIN_EXE_brodo")).arg(&folder).status().expect("bash");
    assert!(made.success());
    let mut files = BTreeSet::new();
    for kind in fs::read_dir(&folder).expect("folders") {
        for file in fs::read_dir(kind.expect("an entry").path()).expect("files") {
            let file = file.expect("an entry");
            assert!(file.metadata().expect("a file").len() > 100, "{} is empty", file.path().display());
            let path = file.path();
            let path = path.strip_prefix(&folder).expect("inside").to_str().expect("UTF-8");
            files.insert(format!("{MADE}{path}"));
        }
    }
    fs::remove_dir_all(&folder).expect("removed");
    files
}

/// Whether a name in a list, with at most one star, is that of `file`.
fn names(pattern: &str, file: &str) -> bool {
    match pattern.split_once('*') {
        Some((before, after)) => {
            file.len() >= before.len() + after.len() && file.starts_with(before) && file.ends_with(after)
        }
        None => pattern == file,
    }
}

#[test]
fn every_file_and_link_of_a_package_is_there_and_every_made_file_is_in_one() {
    let (packages, made) = (packages(), made());
    let all: Vec<&Asset> = packages.iter().flat_map(|(_, assets)| assets).collect();
    let mut installed: BTreeSet<PathBuf> = BTreeSet::new();
    for asset in &all {
        let Asset::File { source, dest } = asset else { continue };
        if source.starts_with(MADE) {
            let files: Vec<_> = made.iter().filter(|file| names(source, file)).collect();
            assert!(!files.is_empty(), "scripts/package-files makes no {source}");
            let folder = dest.parent().expect("a folder");
            let names = files.iter().filter_map(|file| Path::new(file).file_name());
            installed.extend(names.map(|name| folder.join(name)));
        } else {
            let is_there =
                source.starts_with(BUILT) || Path::new(env!("CARGO_MANIFEST_DIR")).join(source).is_file();
            assert!(is_there, "{source} is not there");
            installed.insert(dest.clone());
        }
    }
    for asset in &all {
        if let Asset::Link { to, dest } = asset {
            assert!(
                installed.contains(to),
                "{} leads to {}, which no package has",
                dest.display(),
                to.display()
            );
        }
    }
    let packed = |file: &&String| {
        !all.iter().any(|asset| matches!(asset, Asset::File { source, .. } if names(source, file)))
    };
    let left: Vec<_> = made.iter().filter(packed).collect();
    assert!(left.is_empty(), "in no package: {left:?}");
}

#[test]
fn no_two_packages_have_the_same_path() {
    let mut seen = BTreeSet::new();
    for (name, assets) in packages() {
        for asset in assets {
            let (Asset::File { dest, .. } | Asset::Link { dest, .. }) = asset;
            assert!(seen.insert(dest.clone()), "{name} has {} too", dest.display());
        }
    }
}

#[test]
fn programs_in_whose_place_brodo_runs_have_a_link_and_a_page() {
    let packages = packages();
    let (_, own) = packages.first().expect("brodo");
    let made = made();
    for program in ["pasta", "passt", "pesto", "slirp4netns"] {
        let path = Path::new("usr/libexec/brodo").join(program);
        assert!(
            own.iter().any(|asset| matches!(asset, Asset::Link { dest, .. } if *dest == path)),
            "{program}"
        );
        assert!(made.contains(&format!("{MADE}man/brodo-{program}.1.gz")), "{program}");
    }
}

/// A folder in a system's place, where a package's scripts run; AppArmor's programs write down the words that
/// they get.
struct System {
    root: PathBuf,
    package: &'static str,
}

impl System {
    /// With what `dpkg-query` reports as the state of passt.
    fn new(package: &'static str, test: &str, passt: &str) -> Self {
        let root = std::env::temp_dir().join(format!("brodo-{test}-{}-{package}", std::process::id()));
        for folder in ["etc/apparmor.d/abi/4.0", "etc/apparmor.d/disable", "usr/share", "bin"] {
            fs::create_dir_all(root.join(folder)).expect("a folder");
        }
        let parser = format!("echo \"$@\" >> {}", root.join("log").display());
        let state = format!("echo {passt}");
        for (program, line) in
            [("aa-enabled", "exit 0"), ("apparmor_parser", &parser), ("dpkg-query", &state)]
        {
            let path = root.join("bin").join(program);
            fs::write(&path, format!("#!/bin/sh\n{line}\n")).expect("a program");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("chmod");
        }
        Self { root, package }
    }

    fn script(&self, name: &str, word: &str) {
        let folder = root().join("packaging").join(self.package.replacen("brodo", "debian", 1));
        let Ok(text) = fs::read_to_string(folder.join(name)) else { return };
        let inside = |folder: &str| self.root.join(folder).display().to_string();
        let text = text.replace("/etc/", &inside("etc/")).replace("/usr/share/", &inside("usr/share/"));
        let path = format!("{}:{}", inside("bin"), std::env::var("PATH").expect("a path"));
        let status = Command::new("sh").args(["-c", &text, name, word]).env("PATH", path).status();
        assert!(status.expect("a shell").success(), "{} {name} {word}", self.package);
    }

    /// A first version or the next one, with this profile.
    fn install(&self, profile: &str) {
        let shipped = self.root.join("usr/share").join(self.package);
        let is_upgrade = shipped.exists();
        if is_upgrade {
            self.script("prerm", "upgrade");
        }
        fs::create_dir_all(&shipped).expect("a folder");
        for file in ["apparmor", "apparmor-abstraction"] {
            fs::write(shipped.join(file), profile).expect("unpacked");
        }
        if is_upgrade {
            self.script("postrm", "upgrade");
        }
        self.script("postinst", "configure");
    }

    fn remove(&self) {
        self.script("prerm", "remove");
        fs::remove_dir_all(self.root.join("usr/share").join(self.package)).expect("removed");
        self.script("postrm", "remove");
    }

    fn profile(&self) -> Option<String> {
        fs::read_to_string(self.root.join("etc/apparmor.d").join(self.package)).ok()
    }
}

impl Drop for System {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

#[test]
fn a_profile_of_apparmor_is_updated_and_goes_unless_it_was_changed() {
    for package in ["brodo", "brodo-passt"] {
        let system = System::new(package, "profile", "not-installed");
        system.install("one");
        system.install("two");
        assert_eq!(system.profile().as_deref(), Some("two"), "{package}");
        system.script("prerm", "upgrade");
        system.script("postinst", "abort-upgrade");
        assert_eq!(system.profile().as_deref(), Some("two"), "{package}");
        system.remove();
        assert_eq!(system.profile(), None, "{package}");
        system.install("two");
        fs::write(system.root.join("etc/apparmor.d").join(package), "changed").expect("changed");
        system.install("three");
        system.remove();
        assert_eq!(system.profile().as_deref(), Some("changed"), "{package}");
        system.script("postrm", "purge");
        assert_eq!(system.profile(), None, "{package}");
        assert!(!fs::read_to_string(system.root.join("log")).expect("a log").is_empty());
    }
}

#[test]
fn an_abstraction_is_there_for_libvirt_and_another_one_stays() {
    let system = System::new("brodo-passt", "abstraction", "not-installed");
    let folder = system.root.join("etc/apparmor.d/abstractions");
    fs::create_dir(&folder).expect("a folder");
    let file = folder.join("passt");
    let found = || fs::read_to_string(&file).ok();
    system.install("one");
    system.install("two");
    assert_eq!(found().as_deref(), Some("two"));
    system.remove();
    assert_eq!(found(), None);
    fs::write(&file, "of passt").expect("left behind");
    system.install("three");
    assert_eq!(found().as_deref(), Some("of passt"));
    system.remove();
    system.script("postrm", "purge");
    assert_eq!(found().as_deref(), Some("of passt"));
}

#[test]
fn the_profile_of_a_passt_that_was_removed_is_disabled_and_no_other() {
    for (state, link, expected) in [
        ("config-files", None, "../usr.bin.passt"),
        ("config-files", Some("/etc/apparmor.d/usr.bin.passt"), "/etc/apparmor.d/usr.bin.passt"),
        ("installed", None, ""),
        ("", None, ""),
    ] {
        let system = System::new("brodo-passt", &format!("passt-{state}-{}", link.is_some()), state);
        let folder = system.root.join("etc/apparmor.d");
        fs::write(folder.join("usr.bin.passt"), "").expect("a profile");
        let disabled = folder.join("disable/usr.bin.passt");
        if let Some(to) = link {
            std::os::unix::fs::symlink(to, &disabled).expect("a link");
        }
        let found = || fs::read_link(&disabled).unwrap_or_default();
        system.install("one");
        system.install("two");
        assert_eq!(found(), Path::new(expected), "{state}");
        let log = fs::read_to_string(system.root.join("log")).expect("a log");
        assert_eq!(log.contains("-R "), expected.starts_with(".."), "{state}: {log}");
        system.remove();
        assert_eq!(found(), Path::new(link.unwrap_or_default()), "{state}");
    }
}
