//! Protection of a client's Initial packets (RFC 9001, 5; RFC 9369, 3.3): AES-128-GCM over the payload, and a
//! mask over the packet number and the low bits of the first byte.

use super::{LongPacket, LongType, Version};
use aes::Aes128Enc;
use aes::cipher::BlockCipherEncrypt;
use aes_gcm::aead::AeadInOut;
use aes_gcm::aead::consts::U12;
use aes_gcm::{AesGcm, KeyInit};
use hmac::{CODE_LEN, HmacKey, Message};
use std::sync::LazyLock;

mod hmac;

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
/// Keys of HKDF-Extract (RFC 5869, 2.2).
static EXTRACT_V1: LazyLock<HmacKey> = LazyLock::new(|| HmacKey::new(&SALT_V1));
static EXTRACT_V2: LazyLock<HmacKey> = LazyLock::new(|| HmacKey::new(&SALT_V2));

/// Derivation of a client's secret, and from it of key, initialization vector and header protection.
const CLIENT_IN: Message = label("client in", CODE_LEN);
const LABELS_V1: [Message; 3] =
    [label("quic key", KEY_LEN), label("quic iv", IV_LEN), label("quic hp", KEY_LEN)];
const LABELS_V2: [Message; 3] =
    [label("quicv2 key", KEY_LEN), label("quicv2 iv", IV_LEN), label("quicv2 hp", KEY_LEN)];

/// Message of HKDF-Expand-Label without context (RFC 8446, 7.1) for at most one code's length.
const fn label(label: &str, len: usize) -> Message {
    const PREFIX: &[u8] = b"tls13 ";
    let lengths = [0, len as u8, (PREFIX.len() + label.len()) as u8];
    // Behind the label the empty context, and the number of the first block.
    Message::new(&[&lengths, PREFIX, label.as_bytes(), &[0, 1]])
}

/// Keys of a client's Initials.
pub struct ClientKeys {
    // AES-GCM and the mask only encipher: no keys for the other direction are made.
    aead: AesGcm<Aes128Enc, U12>,
    header: Aes128Enc,
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
        let (extract, labels) = match version {
            Version::V1 => (&*EXTRACT_V1, &LABELS_V1),
            Version::V2 => (&*EXTRACT_V2, &LABELS_V2),
        };
        let initial = HmacKey::new(&extract.code(&Message::new(&[destination])));
        let client = HmacKey::new(&initial.code(&CLIENT_IN));
        let [key, iv, header] = labels.each_ref().map(|label| client.code(label));
        Self {
            aead: AesGcm::new(&front(key).into()),
            header: Aes128Enc::new(&front(header).into()),
            iv: front(iv),
        }
    }

    /// Payload of an Initial; `None` if its tag does not fit these keys. The packet number is taken as it is
    /// written: a client's Initials are its first packets.
    pub fn open(&self, packet: &LongPacket<'_>) -> Option<Vec<u8>> {
        if packet.kind != LongType::Initial {
            return None;
        }
        // The payload is deciphered in this copy, and moved to its front.
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
        let (text, tag) = payload.split_last_chunk_mut::<TAG_LEN>()?;
        let nonce = self.nonce(number);
        self.aead.decrypt_inout_detached(&nonce.into(), header, text.into(), &(*tag).into()).ok()?;
        bytes.truncate(bytes.len() - TAG_LEN);
        bytes.drain(..payload_at);
        Some(bytes)
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

/// The front of a code.
fn front<const LEN: usize>(code: [u8; CODE_LEN]) -> [u8; LEN] {
    std::array::from_fn(|at| code[at])
}
