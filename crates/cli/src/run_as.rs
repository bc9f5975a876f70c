//! `--run-as`: another user for a service that root starts, once all that takes root is done.
//!
//! Namespace, interface, ports, logs and sockets are root's by then; the processes beside this one stay as
//! they are (broker and keeper root's, the engine that of the user `nobody`). Later actions of root fail as
//! for any user: logs in root's folders are not rotated, sockets there are not removed at the end, and there
//! is no upgrade in place.

use crate::failure::Failure;
use std::fs::read_to_string;
use std::str::FromStr;

/// Users and groups by name. Those of directory services are not in these files; their numbers do.
const USERS: &str = "/etc/passwd";
const GROUPS: &str = "/etc/group";

/// A user and a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunAs {
    user: u32,
    group: u32,
}

impl FromStr for RunAs {
    type Err = String;

    /// `USER[:GROUP]`, names or numbers; without a group the user's own, or that of its number.
    fn from_str(word: &str) -> Result<Self, String> {
        let read = |path| read_to_string(path).unwrap_or_default();
        parse(word, &read(USERS), &read(GROUPS))
    }
}

fn parse(word: &str, users: &str, groups: &str) -> Result<RunAs, String> {
    let unknown = |what: &str, name: &str| format!("{what} {name:?} is not known here");
    let (user, group) = word.split_once(':').map_or((word, None), |(user, group)| (user, Some(group)));
    let entry = |field: usize| users.lines().find(|line| line.split(':').nth(field) == Some(user));
    let number = |line: &str, field: usize| line.split(':').nth(field)?.parse::<u32>().ok();
    let (user, own) = match user.parse::<u32>() {
        Ok(id) => (id, entry(2).and_then(|line| number(line, 3)).unwrap_or(id)),
        Err(_) => entry(0)
            .and_then(|line| number(line, 2).zip(number(line, 3)))
            .ok_or_else(|| unknown("user", user))?,
    };
    let group = match group.map(|name| (name, name.parse::<u32>())) {
        None => own,
        Some((_, Ok(id))) => id,
        Some((name, Err(_))) => groups
            .lines()
            .find(|line| line.split(':').next() == Some(name))
            .and_then(|line| number(line, 2))
            .ok_or_else(|| unknown("group", name))?,
    };
    // The number that the kernel takes for "unchanged".
    if [user, group].contains(&u32::MAX) {
        return Err(format!("expected USER[:GROUP], got {word:?}"));
    }
    Ok(RunAs { user, group })
}

/// Whether this process is root's, in the initial user namespace (`user_namespaces(7)`: all ids are mapped
/// there, by one line): root of a container is an ordinary user outside.
pub(crate) fn is_root_of_the_system() -> bool {
    let map = read_to_string("/proc/self/uid_map").unwrap_or_default();
    let is_initial = map.split_whitespace().eq(["0", "0", "4294967295"]);
    is_initial && rustix::process::geteuid().is_root()
}

impl RunAs {
    /// Checks that this process can become that user.
    ///
    /// # Errors
    /// It is an ordinary user, and another one.
    pub(crate) fn check(self) -> Result<(), Failure> {
        if self.is_here() || rustix::process::geteuid().is_root() {
            Ok(())
        } else {
            Err(Failure::Usage("--run-as: root alone can become another user".to_owned()))
        }
    }

    fn is_here(self) -> bool {
        rustix::process::geteuid().as_raw() == self.user && rustix::process::getegid().as_raw() == self.group
    }

    /// Numbers of the user and its group, unless this process is theirs.
    pub(crate) fn other(self) -> Option<(u32, u32)> {
        (!self.is_here()).then_some((self.user, self.group))
    }

    /// Becomes that user. Only while there is one thread.
    ///
    /// # Errors
    /// Its number is not mapped in this user namespace.
    pub(crate) fn apply(self) -> Result<(), Failure> {
        let Some((user, group)) = self.other() else { return Ok(()) };
        let what = format!("become user {user} of group {group}: setgroups, setresgid, setresuid");
        brodo_sandbox::become_user(user, group).map_err(Failure::io(what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_groups_by_name_or_number() {
        let users = "root:x:0:0::/root:/bin/sh\nbrodo:x:977:978::/:/bin/false\nbroken:x:::\n";
        let groups = "root:x:0:\nnet:x:44:brodo\n";
        for (word, user, group) in [
            ("brodo", 977, 978),
            ("977", 977, 978),
            ("1234", 1234, 1234),
            ("brodo:net", 977, 44),
            ("brodo:5", 977, 5),
            ("5:net", 5, 44),
            ("0", 0, 0),
        ] {
            assert_eq!(parse(word, users, groups), Ok(RunAs { user, group }), "{word}");
        }
        for word in
            ["", "other", "broken", "brodo:other", "brodo:", ":net", "-1", "4294967295", "1:4294967295"]
        {
            assert!(parse(word, users, groups).is_err(), "{word}");
        }
    }
}
