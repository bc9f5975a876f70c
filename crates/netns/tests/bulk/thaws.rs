//! A thaw for which the agent's channel has no room: a proxy between driver and agent fills it at that
//! moment.

use crate::bed::{Bed, Circumstances};
use crate::transfer::there_and_back;
use brodo_core::config::Bulk;
use brodo_net::fd_passing;
use brodo_net::promotion::client::PromotionAgent;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair};
use std::fs::File;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Kind of a freeze, and the stage of repair mode in a refusal, in messages of the agent's.
const FREEZE: u8 = 3;
const REPAIR: u8 = 4;
/// Interval between two looks whether requests are to be taken again.
const LOOK_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };

/// Passes messages both ways. While `is_full` an answer to a freeze is a refusal, of a socket that is frozen
/// all the same, and from the first one on no request is taken: the channel is full as it arrives.
struct Proxy {
    agent: OwnedFd,
    driver: OwnedFd,
    /// A copy of the driver's own end.
    theirs: OwnedFd,
    is_full: Arc<AtomicBool>,
}

impl Proxy {
    /// Begins; the end for the driver.
    fn start(agent: OwnedFd, is_full: Arc<AtomicBool>) -> OwnedFd {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let proxy = Self { agent, driver: ours, theirs: theirs.try_clone().unwrap(), is_full };
        thread::spawn(move || proxy.run());
        theirs
    }

    fn run(self) {
        let (mut is_blocked, mut goes_on) = (false, true);
        while goes_on {
            is_blocked &= self.is_full.load(Ordering::SeqCst);
            let requests = if is_blocked { PollFlags::empty() } else { PollFlags::IN };
            let mut polled = [PollFd::new(&self.agent, PollFlags::IN), PollFd::new(&self.driver, requests)];
            poll(&mut polled, Some(&LOOK_INTERVAL)).unwrap();
            let [has_answer, has_request] = polled.map(|polled| !polled.revents().is_empty());
            if has_answer {
                goes_on = pass(&self.agent, &self.driver, |answer| {
                    if answer[0] == FREEZE && self.is_full.load(Ordering::SeqCst) {
                        self.fill();
                        is_blocked = true;
                        answer[9] = REPAIR;
                        answer[10..14].copy_from_slice(&Errno::PERM.raw_os_error().to_ne_bytes());
                    }
                });
            } else if has_request {
                goes_on = pass(&self.driver, &self.agent, |_| {});
            }
        }
    }

    /// Fills the driver's channel.
    fn fill(&self) {
        let mut other = PromotionAgent::on(self.theirs.try_clone().unwrap()).unwrap();
        let file = File::open("/proc/self/exe").unwrap();
        // Of requests about no socket of its own the agent takes no notice.
        while other.adopt(file.as_fd()).is_ok() {}
        assert!(!other.is_gone());
    }
}

/// Passes a message on, as it is changed; false at the end of the conversation.
fn pass(from: &OwnedFd, to: &OwnedFd, change: impl FnOnce(&mut [u8])) -> bool {
    let mut bytes = [0; 4096];
    let Ok(received) = fd_passing::receive(from, &mut bytes, 1, RecvFlags::empty()) else { return false };
    let bytes = &mut bytes[..received.length];
    if bytes.is_empty() {
        return false;
    }
    change(bytes);
    let descriptors: Vec<_> = received.descriptors.iter().map(AsFd::as_fd).collect();
    fd_passing::send(to, bytes, &descriptors, SendFlags::empty()).is_ok()
}

/// The flow stands still while it cannot be thawed, and goes on with the kernel, or comes back, as any other.
pub(crate) fn not_sent() {
    let is_full = Arc::new(AtomicBool::new(false));
    let switch = is_full.clone();
    let channel = Box::new(move |agent| Proxy::start(agent, switch.clone()));
    let bed = Bed::under(Circumstances { channel, ..Circumstances::default() });
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (mut guest, mut host) = bed.promoted_pair(&listener);
    is_full.store(true, Ordering::SeqCst);
    assert_eq!(bed.running.handle().set_bulk(Bulk::Tap), Ok(true));
    bed.until("the thaw is asked for again", |counters| counters.promotions_thaws_put_off > 2);
    let counters = bed.counters();
    assert_eq!((counters.promotions_returned, counters.promotions_broken), (0, 0));
    assert_eq!(bed.running.handle().set_bulk(Bulk::Kernel), Ok(true));
    is_full.store(false, Ordering::SeqCst);
    there_and_back(&mut guest, &mut host, &mut [7; 16 << 10]);
    let moved = counters.promoted_bytes;
    bed.until("the kernel goes on with it", |counters| counters.promoted_bytes > moved);
    assert_eq!(bed.running.handle().set_bulk(Bulk::Tap), Ok(true));
    bed.until("it comes back", |counters| counters.promotions_returned == 1);
    there_and_back(&mut guest, &mut host, &mut [7; 16 << 10]);
    drop((guest, host));
    bed.end();
}
