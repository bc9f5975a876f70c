//! A cursor for the formats that are lists of options: each field goes behind the one before it.

/// Writes into a buffer that the caller has made big enough; every method panics if it was not.
pub(super) struct Writer<'a> {
    out: &'a mut [u8],
    len: usize,
}

impl<'a> Writer<'a> {
    pub(super) fn new(out: &'a mut [u8]) -> Self {
        Self { out, len: 0 }
    }

    /// Bytes written so far.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Bytes written so far.
    pub(super) fn written(&mut self) -> &mut [u8] {
        &mut self.out[..self.len]
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.out[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    pub(super) fn u8(&mut self, n: u8) {
        self.bytes(&[n]);
    }

    pub(super) fn u16(&mut self, n: u16) {
        self.bytes(&n.to_be_bytes());
    }

    pub(super) fn u32(&mut self, n: u32) {
        self.bytes(&n.to_be_bytes());
    }

    /// Writes `n` zeros.
    pub(super) fn zeros(&mut self, n: usize) {
        self.out[self.len..self.len + n].fill(0);
        self.len += n;
    }
}
