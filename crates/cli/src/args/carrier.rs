//! `--bulk auto` of forms without an interface that brodo makes: flows stay where they are.

use super::Command;
use crate::option_values::BulkOption;

impl Command {
    /// The same command, with the choice of a carrier that depends on its form made.
    pub(crate) fn settled(mut self) -> Self {
        let bulk = match &mut self {
            Self::Vm(options) => Some(&mut options.network.bulk),
            Self::Attach(options) if options.tap_fd.is_some() => Some(&mut options.network.bulk),
            _ => None,
        };
        if let Some(bulk @ BulkOption::Auto) = bulk {
            *bulk = BulkOption::Tap;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::Parser;

    #[test]
    fn machines_and_given_taps_have_no_kernel_sockets_unless_they_are_asked_for() {
        for (line, bulk) in [
            ("brodo run", BulkOption::Auto),
            ("brodo run --bulk tap", BulkOption::Tap),
            ("brodo run --bulk=tap --bulk=kernel", BulkOption::Kernel),
            ("brodo attach 1", BulkOption::Auto),
            ("brodo attach --tap-fd 5", BulkOption::Tap),
            ("brodo attach --tap-fd 5 --bulk kernel", BulkOption::Kernel),
            ("brodo vm --socket /s", BulkOption::Tap),
            ("brodo vm --socket /s --bulk kernel", BulkOption::Kernel),
        ] {
            let command = Cli::try_parse_from(line.split(' ')).expect(line).command.settled();
            let (Command::Run(crate::args::Run { network, .. })
            | Command::Attach(crate::args::Attach { network, .. })
            | Command::Vm(crate::args::Vm { network, .. })) = command
            else {
                panic!("{line}")
            };
            assert_eq!(network.bulk, bulk, "{line}");
        }
    }
}
