//! Dumps and refusals of rtnetlink, without a namespace of one's own; the requests are tested by the
//! command's namespace tests, which look at the outcome with other programs.

use super::*;
use rustix::net::socketpair;
use std::collections::VecDeque;
use std::thread;

/// One message of an answer: its kind, its flags, and what it is about.
type Entry = (i32, u16, i32);
const ITEM: i32 = 77;

/// Dumps numbers from a kernel that gives these answers in turn and then the last one again and again; the
/// numbers found, and the requests that it took.
fn dump_from(answers: Vec<Vec<Entry>>) -> (Result<Vec<i32>, Errno>, usize) {
    let unix = rustix::net::AddressFamily::UNIX;
    let (ours, theirs) = socketpair(unix, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let kernel = thread::spawn(move || {
        let (mut answers, mut requests) = (VecDeque::from(answers), 0);
        let mut request = [0; 64];
        while let Ok((16, _)) = rustix::net::recv(&theirs, &mut request[..], RecvFlags::empty()) {
            requests += 1;
            let sequence = NetlinkBuffer::new(&request[..16]).sequence_number();
            let answer = if answers.len() > 1 { answers.pop_front() } else { answers.front().cloned() };
            // Before it what is left of an earlier request, which is not to be believed.
            let entries = [(ITEM, 0, -1)].into_iter().chain(answer.unwrap());
            for (index, (kind, flags, number)) in entries.enumerate() {
                let mut message = [0; 20];
                message[16..].copy_from_slice(&number.to_ne_bytes());
                let mut header = NetlinkBuffer::new(&mut message[..]);
                header.set_length(20);
                header.set_message_type(kind as u16);
                header.set_flags(flags);
                header.set_sequence_number(if index == 0 { sequence - 1 } else { sequence });
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
    let found = dump(&ours, &mut 6, request, 3, |kind, payload| {
        assert_eq!(i32::from(kind), ITEM);
        payload.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes))
    });
    drop(ours);
    (found, kernel.join().unwrap())
}

#[test]
fn a_dump_whose_list_has_changed_meanwhile_is_repeated() {
    let (done, cut) = ((libc::NLMSG_DONE, 0, 0), NLM_F_DUMP_INTR);
    let whole = vec![(ITEM, 0, 1), (ITEM, 0, 2), (ITEM, 0, 3), done];
    assert_eq!(dump_from(vec![whole.clone()]), (Ok(vec![1, 2, 3]), 1));
    // The second is missing; the kernel says so with a message behind the gap, or at the end.
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

#[test]
fn the_broadcast_address_has_all_host_bits_set() {
    for (address, prefix_len, expected) in [
        ([10, 0, 2, 15], 24, [10, 0, 2, 255]),
        ([10, 0, 2, 15], 30, [10, 0, 2, 15]),
        ([172, 16, 1, 1], 12, [172, 31, 255, 255]),
        ([1, 2, 3, 4], 32, [1, 2, 3, 4]),
    ] {
        assert_eq!(
            broadcast(address.into(), prefix_len),
            Ipv4Addr::from(expected),
            "{address:?}/{prefix_len}"
        );
    }
}

#[test]
fn the_kernel_s_refusal_comes_back_as_its_error_number() {
    let mut netlink = Netlink::open().unwrap();
    assert_eq!(netlink.index_of("lo"), Ok(1));
    assert_eq!(netlink.index_of("no-such-link"), Err(Errno::NODEV));
    // Nothing exists at this index, so nothing can be changed by this request.
    assert!(matches!(netlink.set_up(0x7fff_fff0), Err(Errno::NODEV | Errno::PERM)));
}
