//! Slab: values found by a slot number, with deferred reuse of slots.
//!
//! The number stands where no value can: in the data of an epoll event, in the id of a socket. One wait may
//! report several events, and the first of them may end the value that the second names. So a slot whose
//! value was removed is given to another only after [`Slab::reuse_freed`], which its owner calls when the
//! events of a turn are done with; until then its number finds nothing.
//!
//! The flow table of the stack ([`brodo_core::flow::table`]) has generations instead: its ids leave the turn
//! and the process. The pool of payload memory ([`brodo_core::memory::chunk`]) keeps buffers in its free
//! slots, and each is named by one queue alone.

/// Values by slot number.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    slots: Vec<Option<T>>,
    free: Vec<u32>,
    /// Slots whose values were removed since [`Slab::reuse_freed`].
    freed: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new(), freed: Vec::new() }
    }
}

impl<T> Slab<T> {
    /// Number of values.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len() - self.freed.len()
    }

    /// The slot that the next value inserted will have, so that a descriptor can be registered under it
    /// first.
    pub(crate) fn next_slot(&self) -> u32 {
        self.free.last().copied().unwrap_or(self.slots.len() as u32)
    }

    /// Adds a value; its slot.
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        let slot = self.next_slot();
        if self.free.pop().is_some() {
            self.slots[slot as usize] = Some(value);
        } else {
            self.slots.push(Some(value));
        }
        slot
    }

    /// The value in a slot.
    pub(crate) fn get(&self, slot: u32) -> Option<&T> {
        self.slots.get(slot as usize)?.as_ref()
    }

    /// The value in a slot, to change it.
    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    /// Removes a value. Its slot stays empty until [`Slab::reuse_freed`].
    pub(crate) fn remove(&mut self, slot: u32) -> Option<T> {
        let value = self.slots.get_mut(slot as usize)?.take()?;
        self.freed.push(slot);
        Some(value)
    }

    /// Frees the slots of all removed values: no event can name them any more.
    pub(crate) fn reuse_freed(&mut self) {
        self.free.append(&mut self.freed);
    }

    /// All values.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().flatten()
    }

    /// All values, to change them.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().flatten()
    }

    /// Slots of the values for which `wanted` holds.
    pub(crate) fn slots_where(&self, wanted: impl Fn(&T) -> bool) -> Vec<u32> {
        let matching = (0..).zip(&self.slots).filter(|(_, slot)| slot.as_ref().is_some_and(&wanted));
        matching.map(|(number, _)| number).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_reused_only_when_its_turn_is_over() {
        let mut slab = Slab::default();
        assert_eq!(slab.next_slot(), 0);
        assert_eq!((slab.insert('a'), slab.insert('b')), (0, 1));
        assert_eq!(slab.remove(0), Some('a'));
        assert_eq!(slab.get(0), None, "it is empty at once");
        assert_eq!(slab.remove(0), None);
        assert_eq!((slab.len(), slab.next_slot()), (1, 2), "and not given away");
        assert_eq!(slab.insert('c'), 2);
        slab.reuse_freed();
        assert_eq!((slab.next_slot(), slab.insert('d'), slab.len()), (0, 0, 3));
        assert_eq!(slab.remove(7), None);
    }

    #[test]
    fn values_are_found_and_changed() {
        let mut slab = Slab::default();
        for value in [1, 2, 3, 4] {
            slab.insert(value);
        }
        slab.remove(1);
        slab.iter_mut().for_each(|value| *value *= 10);
        assert_eq!(slab.iter().copied().collect::<Vec<_>>(), [10, 30, 40]);
        assert_eq!(slab.slots_where(|&value| value > 10), [2, 3]);
        *slab.get_mut(0).expect("kept") = 11;
        assert_eq!(slab.get(0), Some(&11));
    }
}
