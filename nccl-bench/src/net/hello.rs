//! The first 32 bytes on a connection, which contain rank, purpose, group and version, and the answer to them.

use std::io::{self, Read};
use std::net::TcpStream;

const MAGIC: [u8; 4] = *b"PLnb";
/// Version of the protocol between ranks. Ranks of different versions do not measure together.
const VERSION: u16 = 1;
/// Length of a hello.
const LENGTH: usize = 32;
/// Size limit of an answer's text. An answer is a length byte and text, and an empty text accepts the connection.
const LONGEST: usize = 255;

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// Exchange of addresses.
    Meeting,
    /// The star around rank 0.
    Control,
    /// The data of a collective. The value is the number of the link if there are several between two ranks.
    Data(u16),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) purpose: Purpose,
    pub(super) group: u64,
    pub(super) rank: usize,
    pub(super) ranks: usize,
}

impl Hello {
    pub(super) fn bytes(&self) -> [u8; LENGTH] {
        let (kind, lane) = match self.purpose {
            Purpose::Meeting => (0u8, 0),
            Purpose::Control => (1, 0),
            Purpose::Data(lane) => (2, lane),
        };
        let mut bytes = [0; LENGTH];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6] = kind;
        bytes[8..10].copy_from_slice(&lane.to_le_bytes());
        bytes[12..16].copy_from_slice(&(self.rank as u32).to_le_bytes());
        bytes[16..20].copy_from_slice(&(self.ranks as u32).to_le_bytes());
        bytes[24..32].copy_from_slice(&self.group.to_le_bytes());
        bytes
    }

    /// Parses a hello. The error is the reason for rejection.
    pub(super) fn parse(bytes: &[u8; LENGTH]) -> Result<Hello, String> {
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
        if bytes[..4] != MAGIC {
            return Err("this is not a rank of nccl-bench".to_owned());
        }
        if u16_at(4) != VERSION {
            return Err(format!(
                "it speaks version {} of the protocol, not {VERSION}",
                u16_at(4)
            ));
        }
        let purpose = match bytes[6] {
            0 => Purpose::Meeting,
            1 => Purpose::Control,
            2 => Purpose::Data(u16_at(8)),
            other => return Err(format!("{other} is not a purpose of a connection")),
        };
        let group = u64::from(u32_at(24)) | u64::from(u32_at(28)) << 32;
        Ok(Hello {
            purpose,
            group,
            rank: u32_at(12) as usize,
            ranks: u32_at(16) as usize,
        })
    }

    /// Reads a hello from a blocking stream with a timeout.
    pub(super) fn read(stream: &mut TcpStream) -> io::Result<Result<Hello, String>> {
        let mut bytes = [0; LENGTH];
        stream.read_exact(&mut bytes)?;
        Ok(Hello::parse(&bytes))
    }
}

/// Returns the answer to a hello.
pub(super) fn answer(verdict: &Result<(), String>) -> Vec<u8> {
    let text = verdict.as_ref().err().map_or("", String::as_str).as_bytes();
    let text = &text[..text.len().min(LONGEST)];
    let mut bytes = vec![text.len() as u8];
    bytes.extend_from_slice(text);
    bytes
}

/// Reads the answer from a blocking stream with a timeout.
pub(super) fn read_answer(stream: &mut TcpStream) -> io::Result<Result<(), String>> {
    let mut length = [0];
    stream.read_exact(&mut length)?;
    let mut text = vec![0; usize::from(length[0])];
    stream.read_exact(&mut text)?;
    // Sanitize the text, because it is untrusted and may be printed to a terminal.
    let clean = |c: char| if c.is_control() { '.' } else { c };
    let text: String = String::from_utf8_lossy(&text).chars().map(clean).collect();
    Ok(if text.is_empty() { Ok(()) } else { Err(text) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_comes_through() {
        for purpose in [Purpose::Meeting, Purpose::Control, Purpose::Data(7)] {
            let hello = Hello {
                purpose,
                group: u64::MAX - 5,
                rank: 70_000,
                ranks: 70_001,
            };
            assert_eq!(Hello::parse(&hello.bytes()), Ok(hello));
        }
    }

    #[test]
    fn what_is_wrong_with_it_is_said() {
        let check = |at: usize, value: u8, text: &str| {
            let mut bytes = Hello {
                purpose: Purpose::Control,
                group: 1,
                rank: 0,
                ranks: 2,
            }
            .bytes();
            bytes[at] = value;
            assert_eq!(Hello::parse(&bytes).unwrap_err(), text);
        };
        check(0, b'G', "this is not a rank of nccl-bench");
        check(4, 9, "it speaks version 9 of the protocol, not 1");
        check(6, 9, "9 is not a purpose of a connection");
    }
}
