//! Messages arrive as they were sent, a descriptor arrives as a descriptor, and an end is not an error.

use super::*;

#[test]
fn descriptors_arrive_usable_and_in_order() {
    let (ours, theirs) = Handoff::pair().unwrap();
    let (read, write) = std::io::pipe().unwrap();
    theirs.send(&Message::Ready(vec![read.into(), write.into()])).unwrap();
    let Ok(Message::Ready(both)) = ours.expect() else { panic!("no descriptors") };
    let [read, write] = <[_; 2]>::try_from(both).unwrap();
    rustix::io::write(&write, b"through").unwrap();
    let mut bytes = [0; 16];
    assert_eq!(rustix::io::read(&read, &mut bytes), Ok(7));
}

#[test]
fn a_failure_arrives_as_the_error_it_was() {
    let (ours, theirs) = Handoff::pair().unwrap();
    let error = SetupError::new(Step::CreateTap, Errno::BUSY, "eth0");
    theirs.send(&Message::Failed(error.clone())).unwrap();
    assert_eq!(ours.expect().unwrap_err(), error);
}

#[test]
fn the_end_of_the_other_side_is_seen() {
    let (ours, theirs) = Handoff::pair().unwrap();
    drop(theirs);
    assert!(matches!(ours.receive(), Ok(None)));
    assert_eq!(ours.expect().unwrap_err().step, Step::ChildEnded);
    assert!(ours.send(&Message::Go).is_err(), "an error, not a signal");
}
