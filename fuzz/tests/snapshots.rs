//! The seeds of the target `restore`: snapshots of scripts, each with another part of a stack's state. The
//! files of the corpus are made from them: `BRODO_BLESS=1 cargo test -p brodo-fuzz --test snapshots`
//! writes them; without it the test compares them.

use brodo_fuzz::restore::config;
use brodo_sim::samples::{SAMPLES, script, snapshot};
use std::path::Path;

#[test]
fn the_corpus_holds_the_snapshots() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/restore");
    for (name, play) in SAMPLES {
        let mut script = script(config());
        play(&mut script);
        let bytes = snapshot(&script).bytes;
        let path = directory.join(name);
        if std::env::var_os("BRODO_BLESS").is_some() {
            std::fs::create_dir_all(&directory).expect("the corpus can be written");
            std::fs::write(&path, &bytes).expect("the corpus can be written");
        }
        let found = std::fs::read(&path).unwrap_or_default();
        assert!(found == bytes, "{} is not what this test makes; BRODO_BLESS=1 writes it", path.display());
    }
}
