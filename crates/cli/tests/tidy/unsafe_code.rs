//! `unsafe` stands only in the files listed here: where descriptors, kernel structures and allocators are
//! handled. That each block says why it is sound is clippy's rule (`undocumented_unsafe_blocks`).

use crate::{assert_none, files};
use proc_macro2::{TokenStream, TokenTree};

/// Files that may contain `unsafe`, and why. The list is part of the design: an addition needs its reason in
/// the commit.
const FILES: &[&str] = &[
    // Experiment with io_uring: operations on memory that the kernel reads and writes.
    "crates/bench/src/probe/ring.rs",
    // Ioctls of TUN and of Unix sockets.
    "crates/link/src/sys.rs",
    // Memory of a virtual machine: mappings of its files, copies from and to them, and system calls on it.
    "crates/link/src/virtio/memory.rs",
    "crates/link/src/virtio/unread.rs",
    // Counting allocator: `GlobalAlloc` is an unsafe trait.
    "crates/net/src/driver/allocations.rs",
    // sendmsg, recvmmsg, epoll_pwait: structures rustix lacks.
    "crates/net/src/sys.rs",
    // Descriptors by number and shared memory of a process that has crashed.
    "crates/net/src/sys/inherited.rs",
    // Socket options of TCP_REPAIR: structures rustix lacks.
    "crates/net/src/sys/repair.rs",
    // Signals, descriptor tables.
    "crates/netns/src/process/raw.rs",
    // fork, clone into namespaces, close_range, PR_SET_MDWE; memory of arguments and environment.
    "crates/sandbox/src/raw.rs",
    // System calls that only an intruder makes.
    "crates/sandbox/tests/villain/raw.rs",
    // unshare(2) between fork and exec, for tests that need a network namespace of their own.
    "crates/testns/src/lib.rs",
];

/// Lines on which the keyword `unsafe` stands as a token: not in a comment or a string, but also inside
/// macros.
fn lines_of_unsafe(tokens: TokenStream, lines: &mut Vec<usize>) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => lines_of_unsafe(group.stream(), lines),
            TokenTree::Ident(ident) if ident == "unsafe" => lines.push(ident.span().start().line),
            _ => {}
        }
    }
}

fn found_in(path: &str, text: &str) -> Vec<usize> {
    let mut lines = Vec::new();
    lines_of_unsafe(text.parse().unwrap_or_else(|e| panic!("{path}: {e}")), &mut lines);
    lines
}

#[test]
fn unsafe_stays_in_its_files() {
    let mut offences = Vec::new();
    let mut unused = FILES.to_vec();
    for file in files::rust() {
        let lines = found_in(&file.path, &file.text);
        if FILES.contains(&file.path.as_str()) {
            unused.retain(|listed| *listed != file.path || lines.is_empty());
        } else {
            offences.extend(
                lines.iter().map(|line| format!("{}:{line}: unsafe outside of its files", file.path)),
            );
        }
    }
    offences.extend(unused.iter().map(|path| format!("{path}: has no unsafe: take it from the list")));
    assert_none(&offences);
}

#[test]
fn notices_unsafe() {
    let text = "fn f() {\n  g!({ unsafe { h() } });\n}\n// unsafe\nconst S: &str = \"unsafe\";\n";
    assert_eq!(found_in("a.rs", text), [2]);
}
