//! Slices of one frame for a gathering write: what stands in front of it, its headers, its payload.
//!
//! The slices are put together on the stack of the call, so that a frame costs no allocation.

use std::io::IoSlice;

/// Payload slices of a frame that are written without an allocation: all of the stack's frames, whose
/// chunks are larger.
const PAYLOAD_INLINE: usize = 32;
/// Slices in front of the payload.
const FRONT_MAX: usize = 3;

/// Calls `write` with `front`, at most three slices, and `payload` in one list.
pub(crate) fn gathered<'a, R>(
    front: &[IoSlice<'a>],
    payload: &[IoSlice<'a>],
    write: impl FnOnce(&[IoSlice<'a>]) -> R,
) -> R {
    let used = front.len() + payload.len();
    if front.len() > FRONT_MAX || payload.len() > PAYLOAD_INLINE {
        let spilled: Vec<_> = front.iter().chain(payload).copied().collect();
        return write(&spilled);
    }
    let mut inline = [IoSlice::new(&[]); FRONT_MAX + PAYLOAD_INLINE];
    inline[..front.len()].copy_from_slice(front);
    inline[front.len()..used].copy_from_slice(payload);
    write(&inline[..used])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_of_slices_keeps_its_order() {
        let bytes: Vec<u8> = (0..200).collect();
        for count in [0, 1, PAYLOAD_INLINE, PAYLOAD_INLINE + 1, 150] {
            let payload: Vec<_> = bytes[3..3 + count].chunks(1).map(IoSlice::new).collect();
            for front in 0..=FRONT_MAX + 1 {
                let front: Vec<_> = bytes[..front].chunks(1).map(IoSlice::new).collect();
                let flat =
                    |slices: &[IoSlice<'_>]| slices.iter().flat_map(|s| s.to_vec()).collect::<Vec<_>>();
                let expected = [flat(&front), flat(&payload)].concat();
                assert_eq!(gathered(&front, &payload, flat), expected);
            }
        }
    }
}
