//! Messages arrive as they were sent, a descriptor arrives as a descriptor, and an end is not an error.

use super::*;

#[test]
fn descriptors_arrive_usable_and_in_order() {
    let (ours, theirs) = Handoff::pair().unwrap();
    for count in [1, 4, DESCRIPTORS_MAX] {
        let (reads, writes): (Vec<_>, Vec<_>) = (0..count).map(|_| std::io::pipe().unwrap()).unzip();
        theirs.send(&Message::Ready(writes.into_iter().map(Into::into).collect())).unwrap();
        let Ok(Message::Ready(writes)) = ours.expect() else { panic!("no descriptors") };
        assert_eq!(writes.len(), count);
        for (number, (read, write)) in reads.into_iter().zip(writes).enumerate() {
            rustix::io::write(&write, &[number as u8]).unwrap();
            let mut bytes = [0; 16];
            assert_eq!(rustix::io::read(&read, &mut bytes), Ok(1));
            assert_eq!(bytes[0], number as u8);
        }
    }
    let too_many = (0..=DESCRIPTORS_MAX).map(|_| std::io::pipe().unwrap().1.into()).collect();
    assert!(theirs.send(&Message::Ready(too_many)).is_err());
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
