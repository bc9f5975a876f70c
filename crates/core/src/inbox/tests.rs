//! Rules for datagrams that may share a super-datagram. Their transmission is tested by the conformance
//! scripts.

use super::*;

fn received(len: usize, segment: Option<u16>) -> Received {
    Received { len, segment, ..Received::default() }
}

#[test]
fn sizes_are_those_of_the_datagrams_inside() {
    assert_eq!(datagram_size(&received(700, None)), 700);
    assert_eq!(datagram_size(&received(0, None)), 0);
    assert_eq!(datagram_size(&received(3300, Some(1000))), 1000);
    assert_eq!(datagram_size(&received(700, Some(1000))), 700, "one, shorter than it might be");
}

#[test]
fn equals_follow_and_a_shorter_one_by_itself() {
    let follows = |next, tos| follows(&next, 1000, tos);
    assert!(follows(received(1000, None), 0));
    assert!(follows(received(3300, Some(1000)), 0));
    assert!(follows(received(1, None), 0));
    assert!(!follows(received(0, None), 0), "an empty one would be lost in the cutting");
    assert!(!follows(received(1001, None), 0));
    assert!(!follows(received(1800, Some(900)), 0), "several shorter ones");
    assert!(!follows(received(1000, None), 2), "other header fields");
}
