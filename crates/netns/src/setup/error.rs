//! Set-up errors: the step, the kernel's error and the user's remedy, as one sentence.
//!
//! Set-up runs in a forked child, so an error has a form that crosses a socket ([`SetupError::encode`]).

use rustix::io::Errno;
use std::fmt;
use std::fs;

macro_rules! steps {
    ($($(#[doc = $doc:literal])+ $name:ident => ($what:literal, $call:literal),)+) => {
        /// One step of set-up, which is one system call that can fail.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Step { $($(#[doc = $doc])+ $name,)+ }

        impl Step {
            /// Every step, in order of declaration.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The step in words, with `{}` in the place of its subject.
            const fn what(self) -> &'static str {
                match self { $(Self::$name => $what,)+ }
            }

            /// The failed system call.
            const fn call(self) -> &'static str {
                match self { $(Self::$name => $call,)+ }
            }
        }
    };
}

steps! {
    /// The socket pair between brodo and the child.
    Channel => ("connect to the process in the namespace", "socketpair"),
    /// The child.
    Fork => ("start a process", "fork"),
    /// Fresh namespaces.
    Unshare => ("create a user and network namespace", "unshare"),
    /// User and group ids of the fresh user namespace.
    IdMap => ("map user and group ids in {}", "write"),
    /// The child's life is tied to brodo's.
    DeathSignal => ("tie the command's life to brodo's", "prctl"),
    /// The TUN control device.
    OpenTun => ("open {}", "open"),
    /// The TAP.
    CreateTap => ("create the network interface {}", "ioctl TUNSETIFF"),
    /// Frame format of the TAP.
    PrepareTap => ("prepare the network interface {}", "ioctl TUNSETVNETHDRSZ"),
    /// The route socket.
    OpenNetlink => ("open a route socket", "socket"),
    /// Interface properties.
    ConfigureLink => ("set MAC address, MTU and queue length of {}", "sendto RTM_SETLINK"),
    /// Interface up.
    LinkUp => ("bring up {}", "sendto RTM_SETLINK"),
    /// An address.
    AddAddress => ("add the address {}", "sendto RTM_NEWADDR"),
    /// A default route.
    AddRoute => ("add a default route by {}", "sendto RTM_NEWROUTE"),
    /// Inherited descriptors are closed.
    CloseInherited => ("close inherited descriptors: {}", "open"),
    /// Mounts of the namespace are separated from the host's.
    PrivateMounts => ("separate the command's mounts from the host's", "mount"),
    /// The command's own host name.
    HostName => ("set the host name {}", "sethostname"),
    /// The command's own resolv.conf.
    ResolvConf => ("give the command its own {}", "mount"),
    /// A missing resolv.conf, in a directory where none could be put.
    MissingResolvConf => ("give the command its own {}, of which the host has none", "mount"),
    /// The conversation with the child.
    Handoff => ("read from the process in the namespace", "recvmsg"),
    /// Silent end of the child.
    ChildEnded => ("set up the namespace, as the process in it has ended", "recvmsg"),
    /// The child's end.
    Wait => ("wait for the command", "waitpid"),
    /// Signals as a descriptor.
    Signals => ("receive signals", "signalfd"),
    /// The command itself.
    Execute => ("run {}", "execve"),
    /// The process to attach to.
    FindProcess => ("find process {}", "pidfd_open"),
    /// A namespace file.
    OpenNamespace => ("open the namespace {}", "open"),
    /// A file that is not a namespace.
    NotANamespace => ("use {} as a namespace", "ioctl NS_GET_USERNS"),
    /// The target is the namespace brodo lives in.
    OwnNamespace => ("attach to {}", "stat"),
    /// The target's user namespace.
    JoinUser => ("join the user namespace of {}", "setns"),
    /// The target's network namespace.
    JoinNet => ("join the network namespace of {}", "setns"),
    /// The broker in the guest's namespace gives up rights and descriptors.
    Confine => ("confine the process that opens sockets in the namespace", "prctl"),
    /// A socket of the guest's namespace.
    GuestSocket => ("open a socket in the guest's namespace", "socket"),
    /// The agent for promoted flows gives up rights and descriptors.
    ConfineAgent => ("confine the process that serves bulk flows beside {}", "prctl"),
    /// The netfilter socket.
    OpenNetfilter => ("open a netfilter socket beside {}", "socket"),
    /// The namespace for promoted flows.
    MiddleNamespace => ("create a network namespace beside {}", "unshare"),
    /// The veth pair to it.
    WayBeside => ("create a veth pair beside {}", "sendto RTM_NEWLINK"),
    /// Rules, routes and neighbours in it.
    MiddleAddresses => ("make a namespace beside {} answer for all addresses", "sendto RTM_NEWROUTE"),
    /// Frames that come in beside the interface count as received by it.
    Redirect => ("let {} receive frames from beside it (clsact, u32, mirred)", "sendto RTM_NEWTFILTER"),
    /// A socket that takes the state of a connection.
    RepairMode => ("make a kernel socket for connections of {} in repair mode", "setsockopt TCP_REPAIR"),
    /// Table and chain of nf_tables.
    Steering => ("steer segments of {} by nf_tables at its egress hook", "sendto NFT_MSG_NEWCHAIN"),
    /// A timer.
    Timer => ("set a timer", "timerfd_create"),
}

/// A failed set-up. `Display` gives one sentence with the system call and the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetupError {
    /// The failed step.
    pub step: Step,
    /// Error of the kernel.
    pub errno: Errno,
    /// Subject of the step: a path, an interface, an address; empty for a step without one.
    pub subject: String,
}

impl std::error::Error for SetupError {}

impl SetupError {
    /// An error of `step` with its subject.
    pub fn new(step: Step, errno: Errno, subject: impl Into<String>) -> Self {
        Self { step, errno, subject: subject.into() }
    }

    /// As [`SetupError::new`], from an error of the standard library.
    pub(crate) fn from_io(step: Step, error: &std::io::Error, subject: impl Into<String>) -> Self {
        Self::new(step, Errno::from_io_error(error).unwrap_or(Errno::IO), subject)
    }

    /// Exit status: 127 and 126 as a shell's if the command cannot be run, otherwise 125, so that it is not
    /// mistaken for the command's own.
    pub fn exit_status(&self) -> u8 {
        match (self.step, self.errno) {
            (Step::Execute, Errno::NOENT) => 127,
            (Step::Execute, _) => 126,
            _ => 125,
        }
    }

    /// The form that crosses a socket: step, error number, subject.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![self.step as u8];
        bytes.extend(self.errno.raw_os_error().to_ne_bytes());
        bytes.extend(self.subject.as_bytes());
        bytes
    }

    /// The reverse of [`SetupError::encode`]; `None` for malformed bytes.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (&step, rest) = bytes.split_first()?;
        let (errno, subject) = rest.split_first_chunk()?;
        Some(Self {
            step: *Step::ALL.get(usize::from(step))?,
            errno: Errno::from_raw_os_error(i32::from_ne_bytes(*errno)),
            subject: String::from_utf8_lossy(subject).into_owned(),
        })
    }

    /// Remedy for the user, if there is one.
    fn remedy(&self) -> Option<String> {
        let fixed = match (self.step, self.errno) {
            (Step::Unshare | Step::IdMap, Errno::PERM | Errno::NOSPC | Errno::USERS | Errno::ACCESS)
            | (Step::PrivateMounts | Step::CreateTap | Step::LinkUp, Errno::PERM | Errno::ACCESS) => {
                return Some(user_namespace_remedy(self.errno));
            }
            (Step::Unshare, Errno::INVAL | Errno::NOSYS) => {
                "the kernel is built without user or network namespaces (CONFIG_USER_NS, CONFIG_NET_NS)"
            }
            (Step::OpenTun, Errno::NOENT | Errno::NODEV | Errno::NXIO) => {
                "load the tun module as root (modprobe tun), or in a container pass the device in (--device /dev/net/tun)"
            }
            (Step::OpenTun, Errno::ACCESS | Errno::PERM) => {
                "let users open it as root (chmod 0666 /dev/net/tun, the mode udev gives it), or in a container allow the device"
            }
            (Step::CreateTap, Errno::BUSY) => {
                "the namespace has an interface of this name already: choose another with --ifname"
            }
            (Step::CreateTap, Errno::INVAL) => "choose another name with --ifname",
            (Step::AddAddress, Errno::OPNOTSUPP | Errno::AFNOSUPPORT | Errno::ACCESS) => {
                "the kernel has this address family switched off: use -4 (or -6)"
            }
            (Step::AddRoute, Errno::EXIST) => {
                "the namespace has a default route already: delete it there first"
            }
            (Step::MissingResolvConf, _) => {
                "create the file as root (it may be empty), as the command sees its own instead"
            }
            (Step::ChildEnded, _) => {
                "it was killed: see the kernel log for a memory limit or a seccomp filter"
            }
            (Step::FindProcess, Errno::SRCH | Errno::INVAL) => "no process has this id",
            (Step::OpenNamespace, Errno::ACCESS | Errno::PERM) => {
                "the process or file must belong to you: run brodo as the same user, or as root"
            }
            // INVAL of the network namespace: it is a namespace of another kind.
            (Step::NotANamespace, _) | (Step::JoinNet, Errno::INVAL) => {
                "give the path of a network namespace, such as /run/netns/NAME or /proc/PID/ns/net"
            }
            (Step::OwnNamespace, _) => {
                "brodo itself runs in that network namespace: give one that is apart from it"
            }
            (Step::JoinUser | Step::JoinNet, Errno::PERM | Errno::INVAL) => {
                "the namespace must have been made by you: run brodo as the same user or as root, or name its user namespace with --userns"
            }
            (Step::Execute, Errno::NOENT) => "check the command's name and the PATH variable",
            (Step::Execute, Errno::ACCESS) => "it must be a file with permission to execute",
            _ => return None,
        };
        Some(fixed.to_owned())
    }
}

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = self.step.what().replace("{}", &self.subject);
        write!(f, "cannot {what}")?;
        // Detected by comparison, not refused by the kernel.
        if self.step != Step::OwnNamespace {
            write!(f, ": {}: {}", self.step.call(), reason(self.errno))?;
        }
        self.remedy().map_or(Ok(()), |remedy| write!(f, ": {remedy}"))
    }
}

/// The C library's message for an error number.
fn reason(errno: Errno) -> String {
    let words = std::io::Error::from(errno).to_string();
    words.split(" (os error").next().unwrap_or_default().to_owned()
}

/// The setting that forbids user namespaces, and its remedy. Distributions and container runtimes have one
/// switch each; the errno does not identify it, so all are checked.
fn user_namespace_remedy(errno: Errno) -> String {
    let read = |path: &str| fs::read_to_string(path).ok();
    let is_zero = |path: &str| read(path).is_some_and(|text| text.trim() == "0");
    for kind in ["user", "net", "mnt"] {
        if is_zero(&format!("/proc/sys/user/max_{kind}_namespaces")) {
            return format!(
                "such namespaces are switched off: as root, sysctl user.max_{kind}_namespaces=15000"
            );
        }
    }
    if is_zero("/proc/sys/kernel/unprivileged_userns_clone") {
        return "user namespaces are switched off: as root, sysctl kernel.unprivileged_userns_clone=1".into();
    }
    let restricted = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns";
    if read(restricted).is_some_and(|text| text.trim() == "1") {
        return "AppArmor restricts user namespaces: give brodo a profile that allows userns, or as root, \
                sysctl kernel.apparmor_restrict_unprivileged_userns=0"
            .into();
    }
    if matches!(errno, Errno::NOSPC | Errno::USERS) {
        return "the limit on namespaces is reached or they are nested too deep: as root, raise \
                user.max_user_namespaces and user.max_net_namespaces"
            .into();
    }
    let filtered = read("/proc/self/status").is_some_and(|text| text.contains("\nSeccomp:\t2"));
    if filtered {
        return "a seccomp filter forbids it, as container runtimes install: start the container with \
                --security-opt seccomp=unconfined, or with a profile that allows unshare and mount"
            .into();
    }
    "a security module or a chroot forbids it: run brodo outside of it".into()
}

#[cfg(test)]
mod tests;
