//! Dependencies: each has its reason beside it, in the manifest that declares it.

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

#[test]
fn notices_unexplained_dependencies() {
    let manifest = "[dependencies]\n# Why.\na = \"1\"\nb = \"2\"\nc = \"3\" # why\nbrodo-core = { workspace = true }\n\
                    [features]\nd = []\n";
    let found = unexplained_dependencies("Cargo.toml", manifest);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("Cargo.toml:4:"), "{found:?}");
}
