//! Manifests: each dependency has its reason beside it, and a published crate has all that a registry shows.

use crate::{assert_none, files};

/// Dependencies with neither a comment on the line above nor one on their own line. Crates of this workspace
/// and `workspace = true` (explained where the workspace declares them) need none.
fn unexplained_dependencies(path: &str, text: &str) -> Vec<String> {
    let mut offences = Vec::new();
    let (mut in_dependencies, mut previous) = (false, "");
    for (number, line) in text.lines().enumerate() {
        if line.starts_with('[') {
            in_dependencies = line.trim_end_matches(']').ends_with("dependencies");
        } else if in_dependencies && line.starts_with(|c: char| c.is_ascii_alphabetic()) {
            let own = line.starts_with("brodo-") || line.contains("workspace = true");
            if !own && !previous.starts_with('#') && !line.contains('#') {
                offences.push(format!("{path}:{}: say why in a comment: {line}", number + 1));
            }
        }
        previous = line;
    }
    offences
}

#[test]
fn every_dependency_has_a_reason() {
    let manifests = files::with_extension("toml").filter(|file| file.path.ends_with("Cargo.toml"));
    let offences: Vec<String> =
        manifests.flat_map(|file| unexplained_dependencies(&file.path, &file.text)).collect();
    assert_none(&offences);
}

/// Keys of a published crate's manifest: what crates.io requires, and what its pages show.
const PUBLISHED_KEYS: [&str; 8] = [
    "description",
    "version",
    "license",
    "readme",
    "keywords",
    "categories",
    "rust-version",
    "publish = true",
];

/// Files that a package must hold beside its manifest: the licences' texts.
const PUBLISHED_FILES: [&str; 2] = ["LICENSE-MIT", "LICENSE-APACHE"];

/// Keys that the `[package]` of a manifest lacks.
fn missing_keys(text: &str) -> Vec<&'static str> {
    let package = text.split("\n[").next().unwrap_or_default();
    let has = |key: &&str| package.lines().any(|line| line.starts_with(*key));
    PUBLISHED_KEYS.into_iter().filter(|key| !has(key)).collect()
}

#[test]
fn published_crates_have_what_a_registry_shows() {
    let manifests = files::with_extension("toml").filter(|file| file.text.contains("\npublish = true\n"));
    let (mut offences, mut count) = (Vec::new(), 0);
    for manifest in manifests {
        count += 1;
        offences
            .extend(missing_keys(&manifest.text).iter().map(|key| format!("{}: no {key}", manifest.path)));
        let folder = files::root().join(&manifest.path);
        let beside = |name: &str| folder.with_file_name(name);
        let readme =
            manifest.text.lines().find_map(|line| line.strip_prefix("readme = ")).unwrap_or_default();
        let needed = PUBLISHED_FILES.into_iter().chain([readme.trim_matches('"')]);
        let missing = needed.filter(|name| !beside(name).is_file());
        offences.extend(missing.map(|name| format!("{}: no file {name}", manifest.path)));
    }
    assert_eq!(count, 3, "published crates");
    assert_none(&offences);
}

#[test]
fn notices_a_missing_key() {
    let manifest = "[package]\nname = \"a\"\ndescription = \"b\"\n\n[dependencies]\nreadme = \"1\"\n";
    assert_eq!(missing_keys(manifest), PUBLISHED_KEYS[1..]);
}

#[test]
fn notices_unexplained_dependencies() {
    let manifest = "[dependencies]\n# Why.\na = \"1\"\nb = \"2\"\nc = \"3\" # why\nbrodo-core = { workspace = true }\n\
                    [features]\nd = []\n";
    let found = unexplained_dependencies("Cargo.toml", manifest);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("Cargo.toml:4:"), "{found:?}");
}
