//! The trace probes in the built binary: SystemTap's notes, read from the ELF file as bpftrace and gdb read
//! them. The probes that `tools/trace` names must be there, each under one semaphore, because a tracer raises
//! only one per name.

#![cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// One site of a probe in the code.
#[derive(Debug)]
struct Site {
    provider: String,
    name: String,
    semaphore: u64,
    arguments: usize,
}

/// Name of every probe, and how many arguments it has.
const PROBES: [(&str, usize); 5] =
    [("connect", 2), ("limited", 5), ("retransmission", 4), ("tuned", 6), ("window_update", 3)];

fn number<const N: usize>(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word[..N].copy_from_slice(&bytes[at..at + N]);
    u64::from_le_bytes(word)
}

fn offset<const N: usize>(bytes: &[u8], at: usize) -> usize {
    usize::try_from(number::<N>(bytes, at)).expect("an offset in a file that was read")
}

fn c_string(bytes: &[u8]) -> &str {
    let end = bytes.iter().position(|&byte| byte == 0).expect("a text ends");
    std::str::from_utf8(&bytes[..end]).expect("a text")
}

/// The content of a section of a 64-bit little-endian ELF file.
fn section<'a>(file: &'a [u8], wanted: &str) -> Option<&'a [u8]> {
    assert_eq!(file[..6], *b"\x7fELF\x02\x01", "64 bits, little endian");
    let (table, size, count) = (offset::<8>(file, 0x28), offset::<2>(file, 0x3a), offset::<2>(file, 0x3c));
    let header = |index: usize| &file[table + index * size..][..size];
    let content = |header: &[u8]| &file[offset::<8>(header, 0x18)..][..offset::<8>(header, 0x20)];
    let names = content(header(offset::<2>(file, 0x3e)));
    (0..count).map(header).find(|header| c_string(&names[offset::<4>(header, 0)..]) == wanted).map(content)
}

/// The notes of version 3: three addresses (probe, base, semaphore), then provider, name and arguments.
fn sites(mut notes: &[u8]) -> Vec<Site> {
    let mut found = Vec::new();
    while !notes.is_empty() {
        let (name_len, len) = (offset::<4>(notes, 0), offset::<4>(notes, 4));
        let (owner, rest) = notes[12..].split_at(name_len.next_multiple_of(4));
        assert_eq!((c_string(owner), number::<4>(notes, 8)), ("stapsdt", 3));
        let mut texts =
            rest[24..len].split(|&byte| byte == 0).map(|text| std::str::from_utf8(text).expect("text"));
        let mut text = || texts.next().expect("provider, name and arguments");
        let (provider, name) = (text().to_owned(), text().to_owned());
        let arguments = text().split_whitespace().count();
        found.push(Site { provider, name, semaphore: number::<8>(rest, 16), arguments });
        notes = &rest[len.next_multiple_of(4)..];
    }
    found
}

#[test]
fn the_binary_has_the_probes_and_each_has_one_semaphore() {
    let file = fs::read(env!("CARGO_BIN_EXE_brodo")).expect("the program");
    let sites = sites(section(&file, ".note.stapsdt").expect("a section with notes"));
    let ours: Vec<_> = sites.iter().filter(|site| site.provider == "brodo").collect();
    let mut semaphores: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::new();
    for site in &ours {
        semaphores.entry(&site.name).or_default().insert(site.semaphore);
        let expected = PROBES.iter().find(|(name, _)| *name == site.name);
        assert_eq!(expected.map(|(_, arguments)| *arguments), Some(site.arguments), "{site:?}");
    }
    assert_eq!(semaphores.keys().copied().collect::<Vec<_>>(), PROBES.map(|(name, _)| name));
    for (name, semaphores) in &semaphores {
        assert!(semaphores.len() == 1 && !semaphores.contains(&0), "{name}: {semaphores:x?}");
    }
}

/// The pages of the file that are mapped for writing at the start, as offsets of first and last byte and the
/// address of the first.
fn writable_segments(file: &[u8]) -> Vec<(u64, u64, u64)> {
    const PAGE: u64 = 0x1000;
    let (table, size, count) = (offset::<8>(file, 0x20), offset::<2>(file, 0x36), offset::<2>(file, 0x38));
    let header = |index: usize| &file[table + index * size..][..size];
    let writable = |header: &&[u8]| number::<4>(header, 0) == 1 && number::<4>(header, 4) & 2 != 0;
    let pages = |header: &[u8]| {
        let (at, address, len) =
            (number::<8>(header, 0x08), number::<8>(header, 0x10), number::<8>(header, 0x20));
        (at / PAGE * PAGE, (at + len).next_multiple_of(PAGE), address / PAGE * PAGE)
    };
    (0..count).map(header).filter(writable).map(pages).collect()
}

#[test]
fn the_page_with_the_semaphores_is_mapped_once() {
    let file = fs::read(env!("CARGO_BIN_EXE_brodo")).expect("the program");
    let segments = writable_segments(&file);
    let sites = sites(section(&file, ".note.stapsdt").expect("a section with notes"));
    for site in sites.iter().filter(|site| site.provider == "brodo") {
        let own = segments
            .iter()
            .find(|&&(first, end, address)| (address..address + (end - first)).contains(&site.semaphore));
        let &(first, _, address) = own.unwrap_or_else(|| panic!("not writable: {site:?}"));
        let at = site.semaphore - address + first;
        let mapped = segments.iter().filter(|&&(first, end, _)| (first..end).contains(&at)).count();
        assert_eq!(
            mapped, 1,
            "a process that starts under a tracer would not notice it: {site:?} {segments:x?}"
        );
    }
}

#[test]
fn scripts_use_only_probes_and_arguments_that_exist() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/trace");
    let mut used = BTreeSet::new();
    for entry in fs::read_dir(&folder).expect("tools/trace") {
        let path = entry.expect("entry").path();
        let script = fs::read_to_string(&path).expect("a script");
        for block in script.split("usdt:$1:brodo:").skip(1) {
            let (name, body) = block.split_once('\n').expect("a body");
            let (name, expected) = PROBES
                .iter()
                .find(|(known, _)| *known == name)
                .unwrap_or_else(|| panic!("{}: no probe {name}", path.display()));
            used.insert(*name);
            let body = body.split_once("\n}").expect("the end of the body").0;
            for argument in body.split("arg").skip(1) {
                let index = argument.chars().next().and_then(|digit| digit.to_digit(10));
                let exists = index.is_some_and(|index| (index as usize) < *expected);
                assert!(exists, "{}: {name} has no arg{argument}", path.display());
            }
        }
    }
    assert_eq!(used.into_iter().collect::<Vec<_>>(), PROBES.map(|(name, _)| name));
}
