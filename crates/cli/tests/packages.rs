//! Debian packages: each file and link that the lists in Cargo.toml name is there, and each file that
//! scripts/package-files makes is in a package. The packages themselves are built by `make deb`.

use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
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
