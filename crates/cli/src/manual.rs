//! `brodo man` and `brodo completions`, made from the definition of the command line.

use crate::args::Cli;
use crate::failure::Failure;
use crate::personality::Personality;
use crate::plugin::Plugin;
use crate::standard_output::printed;
use clap::{Arg, Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use std::io;

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
    match page.and_then(|page| command.find_subcommand(page)) {
        Some(command) if command.has_subcommands() => {
            let mut text = Vec::new();
            whole(command, &mut text).map_err(cannot_make())?;
            print(&text)
        }
        Some(command) => render(command.clone()),
        None => render(command),
    }
}

/// The page of a command whose subcommands have no pages of their own.
fn whole(command: &Command, page: &mut Vec<u8>) -> io::Result<()> {
    let man = Man::new(command.clone());
    man.render_title(page)?;
    let mut text = Vec::new();
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    add_lines(page, &text, |_| None);
    for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
        // Options of the command are in its own section.
        let is_repeated = |arg: &Arg| arg.is_global_set() || arg.get_id() == "help";
        let own = subcommand.clone().mut_args(|arg| if is_repeated(&arg) { arg.hide(true) } else { arg });
        let name = own.get_bin_name().unwrap_or_default().to_uppercase();
        let man = Man::new(own);
        text.clear();
        man.render_synopsis_section(&mut text)?;
        man.render_description_section(&mut text)?;
        man.render_options_section(&mut text)?;
        add_lines(page, &text, |heading| {
            Some(if heading == "SYNOPSIS" { format!(".SH \"{name}\"") } else { ".PP".to_owned() })
        });
    }
    text.clear();
    if command.get_after_help().is_some() {
        man.render_extra_section(&mut text)?;
    }
    add_lines(page, &text, |_| None);
    Ok(())
}

/// Adds a part of a page, without what only its begin has; `instead` may replace a heading.
fn add_lines(page: &mut Vec<u8>, part: &[u8], instead: impl Fn(&str) -> Option<String>) {
    for line in String::from_utf8_lossy(part).lines() {
        let defines = line.starts_with(".ie ") || line.starts_with(".el ");
        let replaced = line.strip_prefix(".SH ").and_then(&instead);
        if !defines {
            page.extend_from_slice(replaced.as_deref().unwrap_or(line).as_bytes());
            page.push(b'\n');
        }
    }
}

fn cannot_make() -> impl FnOnce(io::Error) -> Failure {
    Failure::io("make the manual page")
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
    Man::new(command).render(&mut text).map_err(cannot_make())?;
    print(&text)
}

/// To standard output.
fn print(text: &[u8]) -> Result<u8, Failure> {
    printed(|out| out.write_all(text)).map(|_| 0)
}
