//! Regions of memfds: what is found where, and what is refused.

use super::*;
use crate::virtio::driver::memfd;

fn place(guest: u64, size: u64, user: u64, offset: u64) -> RegionPlace {
    RegionPlace { guest, size, user, offset }
}

#[test]
fn bytes_are_found_by_either_address_and_never_beyond_the_region() {
    let file = memfd(0x3000);
    let mut memory = GuestMemory::default();
    memory.add(Region::map(&file, place(0x1000, 0x1000, 0x70_0000, 0)).expect("low")).expect("low");
    memory.add(Region::map(&file, place(0x2000, 0x1000, 0x90_0000, 0x2000)).expect("high")).expect("high");
    assert_eq!(memory.guest(0x1ff0, 32).expect("low").write(b"0123456789abcdefgh"), 16);
    assert_eq!(memory.guest(0x2000, 32).expect("high").write(b"ghi"), 3);
    let mut found = [0; 32];
    assert_eq!(memory.user(0x70_0ff0, 16).expect("low").read(&mut found), 16);
    assert_eq!(&found[..16], b"0123456789abcdef");
    assert_eq!(memory.user(0x90_0000, 3).expect("high").structure(0), *b"ghi");
    assert!(memory.user(0x70_0ff0, 17).is_none(), "the next region is elsewhere for the monitor");
    for address in [0, 0xfff, 0x3000, u64::MAX] {
        assert!(memory.guest(address, 1).is_none(), "{address:x}");
    }
}

#[test]
fn fields_outside_of_a_slice_are_neither_read_nor_written() {
    let file = memfd(0x1000);
    let mut memory = GuestMemory::default();
    memory.add(Region::map(&file, place(0, 0x1000, 0, 0)).expect("region")).expect("region");
    let slice = memory.guest(0, 4).expect("slice");
    slice.store(2, 0x1234, Ordering::Release);
    slice.store(4, 0xffff, Ordering::Release);
    assert_eq!((slice.load(2, Ordering::Acquire), slice.load(4, Ordering::Acquire)), (0x1234, 0));
    assert_eq!(slice.structure::<5>(0), [0; 5]);
    assert_eq!(memory.guest(0, 8).expect("slice").structure::<8>(0), [0, 0, 0x34, 0x12, 0, 0, 0, 0]);
    assert_eq!(slice.skip(9).len(), 0);
}

#[test]
fn impossible_regions_are_refused() {
    let file = memfd(0x2000);
    for (place, error) in [
        (place(0, 0, 0, 0), RegionError::Range),
        (place(u64::MAX, 0x1000, 0, 0), RegionError::Range),
        (place(0, 0x1000, u64::MAX - 1, 0), RegionError::Range),
        (place(0, 0x1000, 0, u64::MAX), RegionError::Range),
        (place(0, 0x2001, 0, 0), RegionError::ShortFile),
        (place(0, 0x2000, 0, 1), RegionError::ShortFile),
    ] {
        assert_eq!(Region::map(&file, place).map(drop), Err(error), "{place:?}");
    }
    let (closed, _) = rustix::pipe::pipe().expect("pipe");
    assert_eq!(Region::map(closed, place(0, 1, 0, 0)).map(drop), Err(RegionError::ShortFile));
}

#[test]
fn overlaps_are_refused_and_regions_removed_by_their_place() {
    let file = memfd(0x2000);
    let mut memory = GuestMemory::default();
    let mut add = |guest, size| memory.add(Region::map(&file, place(guest, size, guest, 0)).expect("maps"));
    assert_eq!(add(0x1000, 0x1000), Ok(()));
    assert_eq!(add(0x1fff, 1), Err(RegionError::Overlap));
    assert_eq!(add(0, 0x1001), Err(RegionError::Overlap));
    assert_eq!(add(0x1000, 0x1000), Err(RegionError::Overlap));
    assert_eq!(add(0x2000, 0x1000), Ok(()));
    assert_eq!(add(0, 0x1000), Ok(()));
    assert!(!memory.remove(place(0x1000, 0x2000, 0x1000, 0)));
    assert!(memory.remove(place(0x1000, 0x1000, 0x1000, 0x700)));
    assert!(memory.guest(0x1000, 1).is_none() && memory.guest(0x2000, 1).is_some());
}

#[test]
fn each_page_of_a_range_is_marked_and_none_beyond_the_log() {
    let file = memfd(0x2000);
    let log = DirtyLog::map(&file, 4, 0x1000, None).expect("a log");
    for (address, len) in [(0, 1), (0x1fff, 2), (0x9000, 0), (31 << 12, 1 << 20), (u64::MAX, 2)] {
        log.mark(address, len);
    }
    let mut bits = [0; 6];
    rustix::io::pread(&file, &mut bits, 0x1000).expect("a file");
    assert_eq!(bits, [0b111, 0, 0, 0b1000_0000, 0, 0]);
    assert!(DirtyLog::map(&file, 0x1001, 0x1000, None).is_err(), "beyond the file");
}
