//! The seeds of the targets `restore` and `recover`: snapshots of scripts, each with another part of a
//! stack's state, and the journal of all of them. The files of the corpus are made from them:
//! `BRODO_BLESS=1 cargo test -p brodo-fuzz --test snapshots` writes them; without it the tests compare them.

use brodo_fuzz::recover::everything;
use brodo_fuzz::restored::config;
use brodo_sim::samples::{SAMPLES, script, snapshot};
use std::path::Path;

/// Compares a seed with its file, or writes it.
fn check(target: &str, name: &str, bytes: &[u8]) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let path = directory.join(name);
    if std::env::var_os("BRODO_BLESS").is_some() {
        std::fs::create_dir_all(&directory).expect("the corpus can be written");
        std::fs::write(&path, bytes).expect("the corpus can be written");
    }
    let found = std::fs::read(&path).unwrap_or_default();
    assert!(found == bytes, "{} is not what this test makes; BRODO_BLESS=1 writes it", path.display());
}

#[test]
fn the_corpus_holds_the_snapshots() {
    for (name, play) in SAMPLES {
        let mut script = script(config());
        play(&mut script);
        check("restore", name, &snapshot(&script).bytes);
    }
}

#[test]
fn the_corpus_holds_a_journal() {
    let words = everything().iter().flatten();
    check("recover", "journal", &words.flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>());
    // No edit, and one of each word of the first record.
    let edits: Vec<u8> = (0..12).flat_map(|word| [0, word, 8 * word, 1 << (word % 8)]).collect();
    check("recover", "edits", &edits);
}
