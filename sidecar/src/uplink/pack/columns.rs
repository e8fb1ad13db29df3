//! Splits MessagePack into two parts: a repetitive skeleton (everything but the payload of numbers), and the numbers,
//! each as the difference from the last number in the same place. It does not depend on the kinds of events, because a
//! number's place is determined by the preceding bytes of the skeleton. Joining the parts restores every byte.

use paceline_health::codec::hash::fnv;

/// The number of bytes of the skeleton that define a number's place. They are the bytes before the number, and the last
/// one is its own marker.
const PLACE: usize = 10;
const SLOTS: usize = 1024;

/// The last number of each place.
#[derive(Clone)]
pub struct Last(Box<[u64; SLOTS]>);

/// A split message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Columns {
    /// Everything but the payload of numbers.
    pub skeleton: Vec<u8>,
    /// For each number, the number of bits of its difference. For a floating point number whose difference is not zero,
    /// the number of zero bytes that were removed from the end of the difference follows.
    pub widths: Vec<u8>,
    /// The differences, as a bit string.
    pub bits: Vec<u8>,
}

/// An element of the skeleton.
enum Token {
    /// This many bytes, which are copied unchanged.
    Plain(usize),
    /// An integer, with a marker and a payload of this many bytes.
    Whole(usize),
    /// A floating point number, with a marker and a payload of this many bytes.
    Float(usize),
}

/// Parses the next element. Returns `None` for an encoding that we do not produce, or for a truncated length.
fn token(bytes: &[u8]) -> Option<Token> {
    let length = |head: usize| {
        let claim = bytes.get(1..head)?;
        let claim = claim
            .iter()
            .fold(0usize, |sum, byte| sum << 8 | usize::from(*byte));
        head.checked_add(claim)
    };
    Some(match *bytes.first()? {
        // Copy only the length of a byte string, because its contents are MessagePack again.
        0xc4 => Token::Plain(2),
        0xc5 | 0xdc | 0xde => Token::Plain(3),
        0xc6 | 0xdd | 0xdf => Token::Plain(5),
        0xca => Token::Float(4),
        0xcb => Token::Float(8),
        marker @ 0xcc..=0xd3 => Token::Whole(1 << (marker & 3)),
        text @ 0xa0..=0xbf => Token::Plain(1 + usize::from(text & 0x1f)),
        0xd9 => Token::Plain(length(2)?),
        0xda => Token::Plain(length(3)?),
        0xdb => Token::Plain(length(5)?),
        0xc1 | 0xc7..=0xc9 | 0xd4..=0xd8 => return None,
        _ => Token::Plain(1),
    })
}

impl Default for Last {
    fn default() -> Last {
        Last(Box::new([0; SLOTS]))
    }
}

impl Last {
    /// Returns the last number for the place at the end of `skeleton`.
    fn at(&mut self, skeleton: &[u8]) -> &mut u64 {
        let place = &skeleton[skeleton.len().saturating_sub(PLACE)..];
        &mut self.0[(fnv(place) >> 32) as usize % SLOTS]
    }
}

impl Columns {
    /// Splits a message, and stores its numbers in `last`. Returns `None` if it is not one of our messages.
    pub fn split(message: &[u8], last: &mut Last) -> Option<Columns> {
        let mut columns = Columns::default();
        let mut bits = Bits::default();
        let mut rest = message;
        while !rest.is_empty() {
            let (payload, is_float) = match token(rest)? {
                Token::Plain(bytes) => {
                    let (plain, after) = rest.split_at_checked(bytes)?;
                    columns.skeleton.extend_from_slice(plain);
                    rest = after;
                    continue;
                }
                Token::Whole(bytes) => (bytes, false),
                Token::Float(bytes) => (bytes, true),
            };
            let (number, after) = rest.split_at_checked(1 + payload)?;
            columns.skeleton.push(number[0]);
            let value = number[1..]
                .iter()
                .fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
            let was = last.at(&columns.skeleton);
            let mut difference = if is_float {
                value ^ *was
            } else {
                zigzag(value.wrapping_sub(*was))
            };
            *was = value;
            let zeros = if is_float && difference != 0 {
                difference.trailing_zeros() / 8
            } else {
                0
            };
            difference >>= zeros * 8;
            let width = 64 - difference.leading_zeros();
            columns.widths.push(width as u8);
            if is_float && width > 0 {
                columns.widths.push(zeros as u8);
            }
            bits.put(difference, width);
            rest = after;
        }
        columns.bits = bits.bytes;
        Some(columns)
    }

    /// Joins a message of at most `limit` bytes. Returns `None` if the columns are invalid.
    pub fn join(
        skeleton: &[u8],
        widths: &[u8],
        bits: &[u8],
        last: &mut Last,
        limit: usize,
    ) -> Option<Vec<u8>> {
        let mut message = Vec::with_capacity((skeleton.len() + bits.len() + 64).min(limit));
        let (mut widths, mut bits) = (widths.iter(), Taken { bits, at: 0 });
        let mut at = 0;
        while at < skeleton.len() {
            let (payload, is_float) = match token(&skeleton[at..])? {
                Token::Plain(bytes) => {
                    let plain = skeleton.get(at..at.checked_add(bytes)?)?;
                    message.extend_from_slice(plain);
                    at += bytes;
                    continue;
                }
                Token::Whole(bytes) => (bytes, false),
                Token::Float(bytes) => (bytes, true),
            };
            at += 1;
            let was = last.at(&skeleton[..at]);
            let width = u32::from(*widths.next()?);
            let zeros = match (is_float, width) {
                (true, 1..) => u32::from(*widths.next()?),
                _ => 0,
            };
            let difference = bits.take(width)?.checked_shl(zeros.checked_mul(8)?)?;
            let value = if is_float {
                *was ^ difference
            } else {
                was.wrapping_add(unzigzag(difference))
            };
            // The value is larger than its payload. The writer never writes such a value, so the data is damaged.
            if payload < 8 && value >> (payload * 8) != 0 {
                return None;
            }
            *was = value;
            message.push(skeleton[at - 1]);
            message.extend_from_slice(&value.to_be_bytes()[8 - payload..]);
            if message.len() > limit {
                return None;
            }
        }
        let is_whole = widths.next().is_none() && message.len() <= limit;
        is_whole.then_some(message)
    }
}

/// Maps small differences of either sign to small numbers.
fn zigzag(difference: u64) -> u64 {
    (difference << 1) ^ ((difference as i64 >> 63) as u64)
}

fn unzigzag(number: u64) -> u64 {
    (number >> 1) ^ (number & 1).wrapping_neg()
}

#[derive(Default)]
struct Bits {
    bytes: Vec<u8>,
    /// The number of free bits in the last byte.
    free: u32,
}

impl Bits {
    /// Writes the lowest `width` bits of `value`, except for the highest of them, which is always one.
    fn put(&mut self, value: u64, width: u32) {
        for bit in (0..width.saturating_sub(1)).rev() {
            if self.free == 0 {
                self.bytes.push(0);
                self.free = 8;
            }
            self.free -= 1;
            if let Some(byte) = self.bytes.last_mut() {
                *byte |= (((value >> bit) & 1) as u8) << self.free;
            }
        }
    }
}

struct Taken<'a> {
    bits: &'a [u8],
    at: usize,
}

impl Taken<'_> {
    fn take(&mut self, width: u32) -> Option<u64> {
        if width == 0 {
            return Some(0);
        }
        if width > 64 {
            return None;
        }
        let mut value = 1u64;
        for _ in 1..width {
            let byte = self.bits.get(self.at / 8)?;
            value = value << 1 | u64::from(byte >> (7 - self.at % 8) & 1);
            self.at += 1;
        }
        Some(value)
    }
}
