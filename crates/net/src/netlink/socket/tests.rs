//! Dumps, answers and refusals, from a kernel that is a thread of the test.

use super::*;
use rustix::net::socketpair;
use std::collections::VecDeque;
use std::thread;

/// One message of an answer: its kind, its flags, and what it is about.
type Entry = (i32, u16, i32);
const ITEM: i32 = 77;
const PORT: u32 = 4711;

/// Dumps numbers from a kernel that gives these answers in turn and then the last one again and again; the
/// numbers found, and the requests that it took.
fn dump_from(answers: Vec<Vec<Entry>>) -> (Result<Vec<i32>, Errno>, usize) {
    let unix = AddressFamily::UNIX;
    let (ours, theirs) = socketpair(unix, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let kernel = thread::spawn(move || {
        let (mut answers, mut requests) = (VecDeque::from(answers), 0);
        let mut request = [0; 64];
        while let Ok((16, _)) = rustix::net::recv(&theirs, &mut request[..], RecvFlags::empty()) {
            requests += 1;
            let sequence = NetlinkBuffer::new(&request[..16]).sequence_number();
            let answer = if answers.len() > 1 { answers.pop_front() } else { answers.front().cloned() };
            // Before it what is left of an earlier request, and a change made by another socket's request of
            // the same number: neither is to be believed.
            let entries = [(ITEM, 0, -1), (ITEM, 0, -2)].into_iter().chain(answer.unwrap());
            for (index, (kind, flags, number)) in entries.enumerate() {
                let mut message = [0; 20];
                message[16..].copy_from_slice(&number.to_ne_bytes());
                let mut header = NetlinkBuffer::new(&mut message[..]);
                header.set_length(20);
                header.set_message_type(kind as u16);
                header.set_flags(flags);
                header.set_sequence_number(if index == 0 { sequence - 1 } else { sequence });
                header.set_port_number(if index == 1 { PORT + 1 } else { PORT });
                rustix::net::send(&theirs, &message, SendFlags::empty()).unwrap();
            }
        }
        requests
    });
    let request = |sequence: u32| {
        let mut request = vec![0; 16];
        NetlinkBuffer::new(&mut request[..]).set_sequence_number(sequence);
        request
    };
    let socket = NetlinkSocket { fd: ours, port: AtomicU32::new(PORT), sequence: AtomicU32::new(6) };
    let found = socket.dump(request, 3, |kind, payload| {
        assert_eq!(i32::from(kind), ITEM);
        payload.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes))
    });
    drop(socket);
    (found, kernel.join().unwrap())
}

#[test]
fn a_dump_whose_list_has_changed_meanwhile_is_repeated() {
    let (done, cut) = ((libc::NLMSG_DONE, 0, 0), NLM_F_DUMP_INTR);
    let whole = vec![(ITEM, 0, 1), (ITEM, 0, 2), (ITEM, 0, 3), done];
    assert_eq!(dump_from(vec![whole.clone()]), (Ok(vec![1, 2, 3]), 1));
    // The second is missing; the kernel's flag for that is in a message behind the gap, or at the end.
    for without in [vec![(ITEM, 0, 1), (ITEM, cut, 3), done], vec![(ITEM, 0, 1), (libc::NLMSG_DONE, cut, 0)]]
    {
        assert_eq!(dump_from(vec![without.clone(), without, whole.clone()]), (Ok(vec![1, 2, 3]), 3));
    }
    let changing = vec![(ITEM, cut, 1), done];
    assert_eq!(dump_from(vec![changing]), (Ok(vec![1]), DUMPS_MAX), "a list that never stands still");
    let long = [(ITEM, 0, 4); 5].into_iter().chain([done]).collect();
    assert_eq!(dump_from(vec![long]), (Ok(vec![4; 3]), 1), "as many as are wanted");
}

#[test]
fn a_dump_that_is_refused_is_an_error() {
    let refused = vec![(ITEM, 0, 1), (libc::NLMSG_ERROR, 0, -libc::ENOENT)];
    assert_eq!(dump_from(vec![refused]), (Err(Errno::NOENT), 1));
    assert_eq!(refusal(&(-19i32).to_ne_bytes()), Errno::NODEV);
    assert_eq!(refusal(&[]), Errno::BADMSG);
}
