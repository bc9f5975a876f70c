//! Arguments and environment in memory: a confined process overwrites those that brodo was started with.
//! Users keep secrets there (`AWS_SECRET_ACCESS_KEY`, `GITHUB_TOKEN`).
//!
//! The kernel puts them at the top of the stack, and a fork without execve has a copy. Once they are
//! overwritten an intruder finds none, /proc/PID/environ and /proc/PID/cmdline are empty, and the name of the
//! process ([`rustix::thread::set_name`]) tells what it is. The places are read from /proc/self/stat
//! (proc(5)) before there is a process that cannot see /proc: a fork has them at the same addresses.
//!
//! *Copies that stay*: the path of the program, which stands behind the environment, and words that other
//! parts of the program have copied, such as options that were parsed.

use crate::raw;
use std::io;
use std::ops::Range;
use std::sync::OnceLock;

/// Places of arguments and environment. Read once.
static PLACES: OnceLock<Option<[Range<usize>; 2]>> = OnceLock::new();

/// Variables of tests, which a confined process reads in builds with assertions.
#[cfg(debug_assertions)]
const KEPT: &[&str] = &["BRODO_BULK_RATE", "BRODO_SYSTEM_CALLS_WITHOUT"];
#[cfg(not(debug_assertions))]
const KEPT: &[&str] = &[];

/// Index of the first of four fields in /proc/PID/stat, behind the name of the process: `arg_start`,
/// `arg_end`, `env_start`, `env_end`.
const FIRST: usize = 45;

/// Overwrites arguments and environment of this process, which has one thread, with zeros. From then on its
/// environment is empty. In builds with assertions the variables of tests stay.
///
/// # Errors
/// /proc could not be read; the process has several threads (`EBUSY`). Nothing has changed then.
pub fn forget_words() -> io::Result<()> {
    let places = places().ok_or(io::ErrorKind::NotFound)?;
    let kept: Vec<_> = KEPT.iter().filter_map(|name| Some((*name, std::env::var_os(name)?))).collect();
    raw::overwrite_words(&places, &kept)
}

/// Finds the places, while /proc is there.
pub(crate) fn places() -> Option<[Range<usize>; 2]> {
    PLACES.get_or_init(|| parse(&std::fs::read_to_string("/proc/self/stat").ok()?)).clone()
}

/// The places in a text of /proc/PID/stat.
fn parse(stat: &str) -> Option<[Range<usize>; 2]> {
    // The name may have spaces and brackets.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(FIRST).map(|field| field.parse::<usize>().ok());
    let mut place = || {
        let place = fields.next()??..fields.next()??;
        (place.start != 0 && place.start <= place.end).then_some(place)
    };
    Some([place()?, place()?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_places_stand_behind_a_name_with_spaces_and_brackets() {
        let before = "0 ".repeat(FIRST);
        assert_eq!(parse(&format!("7 (a) b) {before}10 20 20 35 0\n")), Some([10..20, 20..35]));
        assert_eq!(parse(&format!("7 (a) b) {before}0 0 0 0 0\n")), None);
        assert_eq!(parse(&format!("7 (a) b) {before}10 20 20\n")), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn a_process_with_threads_keeps_its_words() {
        let [arguments, environment] = places().expect("places");
        assert!(!arguments.is_empty() && arguments.end <= environment.start);
        assert_eq!(forget_words().expect_err("threads").raw_os_error(), Some(libc::EBUSY));
    }
}
