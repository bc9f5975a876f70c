//! `brodo man` and `brodo completions`, made from the definition of the command line.

use crate::args::Cli;
use crate::failure::Failure;
use crate::personality::Personality;
use crate::plugin::Plugin;
use crate::standard_output::printed;
use clap::{Command, CommandFactory};
use clap_complete::Shell;

/// Prints the completions of a shell, for brodo or a program in whose place it runs.
pub(crate) fn completions(shell: Shell, program: Option<&str>) -> Result<u8, Failure> {
    let program = program.and_then(|name| Personality::named(name.as_ref()));
    let mut definition = offered(program.map_or_else(Cli::command, Personality::definition));
    let name = definition.get_name().to_owned();
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut definition, name, &mut text);
    print(&text)
}

/// Prints the manual page of brodo, of one of its commands, or of a program or plugin in whose place
/// it runs.
pub(crate) fn man(page: Option<&str>) -> Result<u8, Failure> {
    if let Some(program) = page.and_then(|page| Personality::named(page.as_ref())) {
        return render(program.definition());
    }
    if let Some(plugin) = page.and_then(Plugin::named) {
        return render(plugin.definition());
    }
    let mut command = Cli::command();
    // Completes the names of subcommands.
    command.build();
    let command = match page.and_then(|page| command.find_subcommand(page)) {
        Some(subcommand) => subcommand.clone(),
        None => command,
    };
    render(command)
}

/// A definition without hidden options: a shell would complete what the command then refuses. Options for
/// all subcommands are in each of them.
fn offered(mut definition: Command) -> Command {
    definition.build();
    without_hidden(&definition)
}

fn without_hidden(command: &Command) -> Command {
    let shown: Vec<_> = command.get_arguments().filter(|arg| !arg.is_hide_set()).collect();
    let is_shown = |id: &clap::Id| shown.iter().any(|arg| arg.get_id() == id);
    let groups = command.get_groups().filter(|group| group.get_args().all(is_shown)).cloned();
    let arguments = shown.iter().map(|&arg| arg.clone().global(false));
    let about = command.get_about().cloned().unwrap_or_default();
    // Clap keeps names of the program alone; this one ends with its output.
    let name: &'static str = command.get_name().to_owned().leak();
    Command::new(name)
        .about(about)
        .version("")
        .disable_help_flag(true)
        .disable_version_flag(true)
        .disable_help_subcommand(true)
        .groups(groups)
        .args(arguments)
        .subcommands(command.get_subcommands().map(without_hidden))
}

fn render(command: Command) -> Result<u8, Failure> {
    let mut text = Vec::new();
    clap_mangen::Man::new(command).render(&mut text).map_err(Failure::io("make the manual page"))?;
    print(&text)
}

/// To standard output.
fn print(text: &[u8]) -> Result<u8, Failure> {
    printed(|out| out.write_all(text)).map(|_| 0)
}
