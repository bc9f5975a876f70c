//! IP fragmentation and reassembly of the guest's kernel, independent of the stack under test.

use smoltcp::wire::checksum;
use std::collections::BTreeMap;

/// Bytes of Ethernet and IP headers of a frame without extensions, and whether it is IPv4.
fn headers(frame: &[u8]) -> (usize, bool) {
    if frame[14] >> 4 == 4 { (34, true) } else { (54, false) }
}

/// Replaces the lengths and checksum of an IP header by those of `payload` bytes behind it.
fn finish(header: &mut [u8], payload: usize) {
    if headers(header).1 {
        header[16..18].copy_from_slice(&((20 + payload) as u16).to_be_bytes());
        header[24..26].fill(0);
        let sum = !checksum::data(&header[14..34]);
        header[24..26].copy_from_slice(&sum.to_be_bytes());
    } else {
        header[18..20].copy_from_slice(&(payload as u16).to_be_bytes());
    }
}

/// The fragments of a frame that carries a whole packet, each with `piece` bytes of content, a multiple of
/// eight, but the last.
pub fn cut(frame: &[u8], piece: usize, ident: u32) -> Vec<Vec<u8>> {
    let (start, v4) = headers(frame);
    let (header, content) = frame.split_at(start);
    let pieces = content.chunks(piece).enumerate();
    pieces
        .map(|(n, part)| {
            let offset = n * piece;
            let more = offset + part.len() < content.len();
            let mut out = header.to_vec();
            if v4 {
                out[18..20].copy_from_slice(&(ident as u16).to_be_bytes());
                let field = (offset / 8) as u16 | u16::from(more) << 13;
                out[20..22].copy_from_slice(&field.to_be_bytes());
                finish(&mut out, part.len());
            } else {
                out[20] = 44;
                out.extend([header[20], 0]);
                out.extend((offset as u16 | u16::from(more)).to_be_bytes());
                out.extend(ident.to_be_bytes());
                finish(&mut out, 8 + part.len());
            }
            out.extend(part);
            out
        })
        .collect()
}

/// Fragments of incomplete packets.
#[derive(Debug, Default)]
pub struct Joint {
    /// By identification: headers, and the content so far.
    packets: BTreeMap<u32, (Vec<u8>, Vec<u8>)>,
}

/// Result of reassembly for one frame.
#[derive(Debug, PartialEq, Eq)]
pub enum Joined {
    /// It is not a fragment.
    Whole,
    /// The packet is not complete.
    Waits,
    /// The frame with the whole packet.
    Complete(Vec<u8>),
}

impl Joint {
    /// Takes a frame; fragments have to come in order, as they do on a link.
    ///
    /// # Errors
    /// The fault of a fragment.
    pub fn take(&mut self, frame: &[u8]) -> Result<Joined, String> {
        let ethertype = frame.get(12..14).unwrap_or_default();
        let (ident, offset, more, header, content) = match ethertype {
            [0x08, 0x00] if frame.len() > 34 && frame[14] == 0x45 => {
                let field = u16::from_be_bytes([frame[20], frame[21]]);
                let (offset, more) = (usize::from(field & 0x1fff) * 8, field & 0x2000 != 0);
                if offset == 0 && !more {
                    return Ok(Joined::Whole);
                }
                if checksum::data(&frame[14..34]) != 0xffff {
                    return Err("header checksum of a fragment".to_owned());
                }
                let mut header = frame[..34].to_vec();
                header[20..22].fill(0);
                let ident = u32::from(u16::from_be_bytes([frame[18], frame[19]]));
                (ident, offset, more, header, &frame[34..])
            }
            [0x86, 0xdd] if frame.len() > 62 && frame[20] == 44 => {
                let field = u16::from_be_bytes([frame[56], frame[57]]);
                let mut header = frame[..54].to_vec();
                header[20] = frame[54];
                let ident = u32::from_be_bytes([frame[58], frame[59], frame[60], frame[61]]);
                (ident, usize::from(field & 0xfff8), field & 1 != 0, header, &frame[62..])
            }
            _ => return Ok(Joined::Whole),
        };
        let length = if headers(frame).1 {
            20 + content.len() == usize::from(u16::from_be_bytes([frame[16], frame[17]]))
        } else {
            8 + content.len() == usize::from(u16::from_be_bytes([frame[18], frame[19]]))
        };
        let whole = self.packets.entry(ident).or_insert_with(|| (header, Vec::new()));
        if !length || offset != whole.1.len() || (more && !content.len().is_multiple_of(8)) {
            return Err(format!("a fragment of {} bytes at {offset}", content.len()));
        }
        whole.1.extend(content);
        if more {
            return Ok(Joined::Waits);
        }
        let (mut header, content) = self.packets.remove(&ident).unwrap_or_default();
        finish(&mut header, content.len());
        Ok(Joined::Complete([header, content].concat()))
    }
}
