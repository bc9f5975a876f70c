//! Standard output of every command but the one that brodo runs: pages, tables and lines of JSON.
//!
//! A reader that has gone (`brodo flows | head`) ends the output and is no error. Any other failure, such as
//! a full disk, is one, with its sentence. `print!` of Rust's library would abort the process for both, so
//! clippy refuses it.

use crate::failure::Failure;
use std::io::{self, BufWriter, ErrorKind, Write};

/// Bytes written at a time.
const PRINT_SIZE: usize = 64 << 10;

/// Prints to standard output. False if its reader has gone, which is not an error.
pub(crate) fn print(text: &str) -> Result<bool, Failure> {
    printed(|out| out.write_all(text.as_bytes()))
}

/// Prints to standard output in large pieces.
pub(crate) fn printed(print: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<bool, Failure> {
    let mut out = BufWriter::with_capacity(PRINT_SIZE, io::stdout().lock());
    match print(&mut out).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::Io("write to standard output: write".into(), error)),
    }
}
