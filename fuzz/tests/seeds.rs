//! The seeds of the target `stack`: plausible conversations, written as operations, so that a fuzzer begins
//! where connections are open and data flows. The files of the corpus are made from these lines:
//! `BRODO_BLESS=1 cargo test -p brodo-fuzz --test seeds` writes them; without it the test compares them.

use brodo_fuzz::stack::op::{Kind, encode};
use std::path::Path;

type Step = (Kind, u8, u8, u16);

/// Eight bytes of configuration for each set-up that the conversations are held in.
const SETUPS: [(&str, [u8; 8]); 10] = [
    ("plain", [0, 48, 0, 0, 0, 0, 0, 0]),
    ("offloads-v6", [7, 48, 0, 0, 0, 0, 0, 0]),
    ("wrap", [0, 48, 3 << 3, 2, 0, 0, 0, 0]),
    ("no-sack-unscaled", [32 | 64, 48, 0, 0, 0, 0, 0, 0]),
    ("tiny-mss", [0, 8, 0, 0, 1 | 1 << 3, 0, 0, 0]),
    ("little-memory", [6, 48, 0, 0, 5 | 5 << 3, 3, 0, 0]),
    ("pending-chatty", [16 | 8, 48, 3, 0, 2 | 2 << 3, 0, 0, 0]),
    ("timestamps-step", [128, 48, 4, 2 << 3, 4 | 4 << 3 | 1 << 6, 0, 0, 0]),
    ("pressure", [6, 51, 5, 3 << 3, 5 | 5 << 3 | 2 << 6, 7, 0, 0]),
    ("wrap-sack-scale14", [2, 51, 5 << 3, 5, 6 | 6 << 3, 4, 0, 0]),
];

/// A handshake on flow `f`.
fn open(f: u8) -> Vec<Step> {
    vec![(Kind::Syn, f, 0, 0), (Kind::Connected, f, 0, 0), (Kind::Ack, f, 0, 0)]
}

/// Both sides close.
fn close(f: u8) -> Vec<Step> {
    vec![(Kind::Fin, f, 0, 0), (Kind::HostFin, f, 0, 0), (Kind::Ack, f, 0, 0), (Kind::Time, f, 12, 0)]
}

/// Steps on flow `f`.
fn on(f: u8, steps: &[(Kind, u8, u16)]) -> Vec<Step> {
    steps.iter().map(|&(kind, a, v)| (kind, f, a, v)).collect()
}

/// A seed: its name and its operations.
type Conversation = (&'static str, Vec<Step>);

fn conversations() -> Vec<Conversation> {
    [plain_transfers(), losses(), obstacles(), ends()].concat()
}

/// Seeds with data in both directions.
fn plain_transfers() -> Vec<Conversation> {
    use Kind::*;
    vec![
        ("echo", [open(0), on(0, &[(Data, 0, 100), (HostSend, 0, 100), (Ack, 0, 0)]), close(0)].concat()),
        (
            "upload",
            [
                open(0),
                on(0, &[(Bulk, 40, 1459), (Bulk, 60, 1459), (Take, 0, 60_000), (Super, 0, 60_000)]),
                close(0),
            ]
            .concat(),
        ),
        (
            "download",
            [
                open(0),
                on(
                    0,
                    &[
                        (HostSend, 0, 60_000),
                        (Ack, 0, 0),
                        (HostSend, 0, 60_000),
                        (AckHalf, 0, 0),
                        (Ack, 0, 0),
                    ],
                ),
                close(0),
            ]
            .concat(),
        ),
    ]
}

/// Seeds with losses.
fn losses() -> Vec<Conversation> {
    use Kind::*;
    vec![
        (
            "lost-down",
            [
                open(0),
                on(
                    0,
                    &[
                        (HostSend, 0, 5000),
                        (Ack, 0, 0),
                        (Lose, 2, 0),
                        (HostSend, 0, 20_000),
                        (Ack, 0, 0),
                        (Deadline, 0, 0),
                        (Ack, 0, 0),
                        (Time, 9, 2),
                        (Ack, 0, 0),
                    ],
                ),
                close(0),
            ]
            .concat(),
        ),
        (
            "lost-up",
            [
                open(0),
                on(
                    0,
                    &[
                        (Data, 0, 999),
                        (DataAt, 2, 0x21f4),
                        (DataAt, 4, 0x2384),
                        (Ack, 0, 0),
                        (Again, 3, 1459),
                        (DataAt, 246, 900),
                    ],
                ),
                close(0),
            ]
            .concat(),
        ),
        (
            "time-outs",
            [
                open(0),
                on(
                    0,
                    &[
                        (HostSend, 0, 9000),
                        (Deadline, 0, 0),
                        (Deadline, 0, 0),
                        (Deadline, 0, 0),
                        (Deadline, 0, 0),
                        (Ack, 0, 0),
                        (SackLie, 3, 0x8303),
                        (Time, 11, 3),
                        (Ack, 0, 0),
                    ],
                ),
            ]
            .concat(),
        ),
    ]
}

/// Seeds with windows, credit and hostile segments.
fn obstacles() -> Vec<Conversation> {
    use Kind::*;
    vec![
        (
            "windows",
            [
                open(0),
                on(
                    0,
                    &[
                        (Window, 0, 0),
                        (HostSend, 0, 3000),
                        (Deadline, 0, 0),
                        (Deadline, 0, 0),
                        (Window, 4, 0),
                        (Window, 1, 0),
                        (Window, 9, 0),
                        (Bulk, 50, 1459),
                        (Space, 0, 3000),
                        (Take, 0, 9000),
                        (Time, 3, 0),
                        (Space, 0, 60_000),
                        (KeepAlive, 1, 0),
                    ],
                ),
                close(0),
            ]
            .concat(),
        ),
        (
            "hostile",
            [
                open(0),
                on(
                    0,
                    &[
                        (Data, 0, 10),
                        (Reset, 5, 0),
                        (SynAt, 250, 0),
                        (SynAt, 5, 0x8000),
                        (AckAt, 20, 0x4000),
                        (AckAt, 200, 0xc000),
                        (Flags, 0x3b, 0x0101),
                        (Options, 5, 0x0305),
                        (FinAt, 9, 0x4000),
                        (Duplicate, 9, 20),
                        (Reset, 0, 0x4000),
                    ],
                ),
                open(0),
                on(0, &[(Data, 0, 10)]),
            ]
            .concat(),
        ),
        (
            "credit",
            [
                open(0),
                on(
                    0,
                    &[
                        (Credit, 0, 0),
                        (HostSend, 0, 9000),
                        (Data, 0, 10),
                        (Credit, 1, 0),
                        (Credit, 2, 0),
                        (Time, 9, 0),
                        (Ack, 0, 0),
                        (Credit, 128, 0),
                        (Ack, 0, 0),
                        (AtMost, 0, 100),
                        (Bulk, 5, 1000),
                        (AtMost, 0, 0),
                    ],
                ),
                close(0),
            ]
            .concat(),
        ),
    ]
}

/// Seeds with several connections and their ends.
fn ends() -> Vec<Conversation> {
    use Kind::*;
    vec![
        (
            "three",
            [
                open(0),
                open(1),
                open(2),
                on(0, &[(HostSend, 0, 50_000), (Bulk, 9, 1000)]),
                on(1, &[(Bulk, 9, 1000), (HostSend, 0, 9000), (Reset, 0, 0x4000)]),
                on(2, &[(HostSend, 0, 50_000), (HostError, 0, 0), (Ack, 0, 0)]),
                on(0, &[(Ack, 0, 0), (Time, 15, 0), (Ack, 0, 0)]),
                close(0),
            ]
            .concat(),
        ),
        ("refused", vec![(Syn, 0, 0, 0), (Time, 0, 9, 0), (Connected, 0, 4, 0), (Syn, 0, 0, 0)]),
        (
            "called",
            [
                on(0, &[(Call, 0, 0), (HostSend, 0, 5000), (Ack, 0, 0), (Data, 0, 700), (Take, 0, 9000)]),
                on(1, &[(Call, 1, 0), (HostSend, 0, 100), (Data, 0, 9), (Accept, 0, 0), (Ack, 0, 0)]),
                on(2, &[(Lose, 1, 0), (Call, 0, 0), (Deadline, 0, 0), (Accept, 0, 0), (Reset, 0, 0x4000)]),
                close(0),
                on(0, &[(Call, 0, 0), (HostSend, 0, 50)]),
            ]
            .concat(),
        ),
        (
            "device-reset",
            [
                open(0),
                open(1),
                on(
                    0,
                    &[(Data, 0, 700), (HostSend, 0, 5000), (DeviceReset, 0, 0), (Time, 13, 0), (Ack, 0, 0)],
                ),
                on(1, &[(Reset, 0, 0x4000)]),
                on(0, &[(DeviceReset, 0, 0), (HostSend, 0, 900), (Time, 14, 1), (Ack, 0, 0)]),
                close(0),
            ]
            .concat(),
        ),
        (
            "again-after-close",
            [open(0), close(0), open(0), on(0, &[(Data, 0, 5)]), close(0), on(0, &[(SynAt, 9, 0)])].concat(),
        ),
    ]
}

#[test]
fn the_corpus_holds_the_conversations() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/stack");
    for (setup_name, setup) in SETUPS {
        for (name, steps) in conversations() {
            let mut bytes = setup.to_vec();
            for &(kind, flow, a, v) in &steps {
                bytes.extend(encode(kind, flow, a, v));
            }
            let path = directory.join(format!("{name}-{setup_name}"));
            if std::env::var_os("BRODO_BLESS").is_some() {
                std::fs::write(&path, &bytes).expect("the corpus can be written");
            }
            let found = std::fs::read(&path).unwrap_or_default();
            assert!(
                found == bytes,
                "{} is not what this test makes; BRODO_BLESS=1 writes it",
                path.display()
            );
        }
    }
}
