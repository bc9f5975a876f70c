//! `brodo man` and `brodo completions`, made from the definition of the command line.

use crate::args::Cli;
use crate::failure::Failure;
use clap::CommandFactory;
use clap_complete::Shell;
use std::io::{self, ErrorKind, Write};

/// Prints the completions of a shell.
pub(crate) fn completions(shell: Shell) -> Result<u8, Failure> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "brodo", &mut text);
    print(&text)
}

/// Prints the manual page of brodo, or of one of its commands.
pub(crate) fn man(page: Option<&str>) -> Result<u8, Failure> {
    let mut command = Cli::command();
    // Completes the names of subcommands.
    command.build();
    let command = match page.and_then(|page| command.find_subcommand(page)) {
        Some(subcommand) => subcommand.clone(),
        None => command,
    };
    let mut text = Vec::new();
    clap_mangen::Man::new(command).render(&mut text).map_err(Failure::io("make the manual page"))?;
    print(&text)
}

/// To standard output. A reader that has gone is no error.
fn print(text: &[u8]) -> Result<u8, Failure> {
    match io::stdout().write_all(text) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::Io("write to standard output: write".into(), error))
        }
        _ => Ok(0),
    }
}
