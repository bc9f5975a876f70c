//! Protection of a client's Initial packets (RFC 9001, 5; RFC 9369, 3.3): AES-128-GCM over the payload, and a
//! mask over the packet number and the low bits of the first byte.

use super::{LongPacket, LongType, Version};
use aes::Aes128;
use aes::cipher::BlockCipherEncrypt;
use aes_gcm::aead::AeadInOut;
use aes_gcm::{Aes128Gcm, KeyInit};
use hkdf::Hkdf;
use sha2::Sha256;

const KEY_LEN: usize = 16;
const IV_LEN: usize = 12;
const TAG_LEN: usize = 16;
const SAMPLE_LEN: usize = 16;
/// Longest packet number on the wire, in bytes; the sample is taken as if it had this length.
const NUMBER_LEN_MAX: usize = 4;
/// Low bits of a long header's first byte that are protected, and those of them with the number's length.
const PROTECTED_BITS: u8 = 0x0f;
const NUMBER_LEN_BITS: u8 = 0x03;

/// Salt of the keys (RFC 9001, 5.2; RFC 9369, 3.3.1).
const SALT_V1: [u8; 20] = [
    0x38, 0x76, 0x2c, 0xf7, 0xf5, 0x59, 0x34, 0xb3, 0x4d, 0x17, 0x9a, 0xe6, 0xa4, 0xc8, 0x0c, 0xad, 0xcc,
    0xbb, 0x7f, 0x0a,
];
const SALT_V2: [u8; 20] = [
    0x0d, 0xed, 0xe3, 0xde, 0xf7, 0x00, 0xa6, 0xdb, 0x81, 0x93, 0x81, 0xbe, 0x6e, 0x26, 0x9d, 0xcb, 0xf9,
    0xbd, 0x2e, 0xd9,
];

/// Keys of a client's Initials.
pub struct ClientKeys {
    aead: Aes128Gcm,
    header: Aes128,
    iv: [u8; IV_LEN],
}

impl std::fmt::Debug for ClientKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientKeys").finish_non_exhaustive()
    }
}

impl ClientKeys {
    /// Keys that follow from the destination connection ID of a client's first Initial.
    pub fn new(version: Version, destination: &[u8]) -> Self {
        let (salt, labels) = match version {
            Version::V1 => (&SALT_V1, ["quic key", "quic iv", "quic hp"]),
            Version::V2 => (&SALT_V2, ["quicv2 key", "quicv2 iv", "quicv2 hp"]),
        };
        let initial = Hkdf::<Sha256>::new(Some(salt), destination);
        let secret: [u8; 32] = expand(&initial, "client in");
        // A pseudorandom key as long as the hash is always taken.
        let client = Hkdf::<Sha256>::from_prk(&secret).unwrap_or(initial);
        let [key, iv, header] = labels;
        Self {
            aead: Aes128Gcm::new(&expand::<KEY_LEN>(&client, key).into()),
            header: Aes128::new(&expand::<KEY_LEN>(&client, header).into()),
            iv: expand(&client, iv),
        }
    }

    /// Payload of an Initial; `None` if its tag does not fit these keys. The packet number is taken as it is
    /// written: a client's Initials are its first packets.
    pub fn open(&self, packet: &LongPacket<'_>) -> Option<Vec<u8>> {
        if packet.kind != LongType::Initial {
            return None;
        }
        let mut bytes = packet.bytes.to_vec();
        let number_at = packet.number_at;
        let sample_at = number_at + NUMBER_LEN_MAX;
        let mask = self.mask(*bytes.get(sample_at..)?.first_chunk()?);
        bytes[0] ^= mask[0] & PROTECTED_BITS;
        let number_len = usize::from(bytes[0] & NUMBER_LEN_BITS) + 1;
        let payload_at = number_at + number_len;
        let mut number = 0;
        for (byte, mask) in bytes[number_at..payload_at].iter_mut().zip(&mask[1..]) {
            *byte ^= mask;
            number = number << 8 | u64::from(*byte);
        }
        let (header, payload) = bytes.split_at_mut(payload_at);
        let (text, tag) = payload.split_at_mut_checked(payload.len().checked_sub(TAG_LEN)?)?;
        let tag: [u8; TAG_LEN] = *tag.first_chunk()?;
        let nonce = self.nonce(number);
        self.aead.decrypt_inout_detached(&nonce.into(), header, text.into(), &tag.into()).ok()?;
        Some(text.to_vec())
    }

    /// An Initial as a client sends it, from `header` up to its packet number of four bytes (the last of
    /// `header`): for simulations of clients. The length in the header counts the number, the payload and 16
    /// bytes of tag.
    pub fn seal(&self, header: &[u8], payload: &[u8]) -> Vec<u8> {
        let number_at = header.len() - NUMBER_LEN_MAX;
        let number = header[number_at..].iter().fold(0, |number, &byte| number << 8 | u64::from(byte));
        let mut text = payload.to_vec();
        let sealed =
            self.aead.encrypt_inout_detached(&self.nonce(number).into(), header, text[..].as_mut().into());
        let tag = sealed.unwrap_or_default();
        let mut packet = [header, &text, &tag].concat();
        let sample_at = number_at + NUMBER_LEN_MAX;
        let mask =
            packet.get(sample_at..).and_then(|rest| rest.first_chunk()).map(|sample| self.mask(*sample));
        let mask = mask.unwrap_or_default();
        packet[0] ^= mask[0] & PROTECTED_BITS;
        for (byte, mask) in packet[number_at..sample_at].iter_mut().zip(&mask[1..]) {
            *byte ^= mask;
        }
        packet
    }

    /// Mask over the header (RFC 9001, 5.4.3).
    fn mask(&self, sample: [u8; SAMPLE_LEN]) -> [u8; SAMPLE_LEN] {
        let mut block = sample.into();
        self.header.encrypt_block(&mut block);
        block.into()
    }

    fn nonce(&self, number: u64) -> [u8; IV_LEN] {
        let mut nonce = self.iv;
        for (byte, of_number) in nonce[IV_LEN - 8..].iter_mut().zip(number.to_be_bytes()) {
            *byte ^= of_number;
        }
        nonce
    }
}

/// HKDF-Expand-Label without context (RFC 8446, 7.1).
fn expand<const LEN: usize>(secret: &Hkdf<Sha256>, label: &str) -> [u8; LEN] {
    const PREFIX: &str = "tls13 ";
    let mut info = vec![0, LEN as u8, (PREFIX.len() + label.len()) as u8];
    info.extend_from_slice(PREFIX.as_bytes());
    info.extend_from_slice(label.as_bytes());
    info.push(0);
    let mut out = [0; LEN];
    let expanded = secret.expand(&info, &mut out);
    debug_assert!(expanded.is_ok(), "every length here is below 255 hashes");
    out
}
