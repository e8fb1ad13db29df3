//! Implements HPACK, the header compression of HTTP/2 (RFC 7541). It reads all of HPACK, but writes only its simplest
//! form.

use std::collections::VecDeque;

/// Maximum number of bytes of the peer's dynamic table. This is the protocol's default, which we never change.
const TABLE: usize = 4096;
/// Size that an entry counts in addition to its name and value (section 4.1).
const OVERHEAD: usize = 32;
/// Maximum number of bytes of a block's fields. The limit is needed because a single byte can stand for an entry of the
/// table.
pub(super) const MOST: usize = 16 << 10;

/// The name and value of a header field.
pub(super) type Field = (Vec<u8>, Vec<u8>);

/// Why a block cannot be read. The rest of the connection cannot be read either then.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Unread {
    /// The block is not HPACK.
    Malformed,
    /// The fields exceed the limit.
    TooLong,
}

/// The dynamic table that results from the peer's earlier blocks, newest entry first.
pub(super) struct Table {
    entries: VecDeque<Field>,
    size: usize,
    limit: usize,
}

impl Table {
    pub(super) fn new() -> Self {
        Table {
            entries: VecDeque::new(),
            size: 0,
            limit: TABLE,
        }
    }

    /// Decodes the fields of the next block.
    pub(super) fn read(&mut self, block: &[u8]) -> Result<Vec<Field>, Unread> {
        let mut rest = block;
        let (mut fields, mut size) = (Vec::new(), 0);
        while let Some(&first) = rest.first() {
            let field = match first {
                0x80.. => self.at(integer(&mut rest, 7)?)?,
                0x40.. => {
                    let field = self.literal(&mut rest, 6)?;
                    self.insert(&field);
                    field
                }
                0x20.. => {
                    let limit = integer(&mut rest, 5)?;
                    // A size update is valid only before the fields.
                    if limit > TABLE || !fields.is_empty() {
                        return Err(Unread::Malformed);
                    }
                    self.limit = limit;
                    self.shrink(limit);
                    continue;
                }
                _ => self.literal(&mut rest, 4)?,
            };
            size += size_of(&field);
            if size > MOST {
                return Err(Unread::TooLong);
            }
            fields.push(field);
        }
        Ok(fields)
    }

    fn at(&self, index: usize) -> Result<Field, Unread> {
        let index = index.checked_sub(1).ok_or(Unread::Malformed)?;
        if let Some((name, value)) = STATIC.get(index) {
            return Ok((name.as_bytes().to_vec(), value.as_bytes().to_vec()));
        }
        let entry = self.entries.get(index - STATIC.len());
        entry.cloned().ok_or(Unread::Malformed)
    }

    fn literal(&self, rest: &mut &[u8], bits: u32) -> Result<Field, Unread> {
        let name = match integer(rest, bits)? {
            0 => text(rest)?,
            index => self.at(index)?.0,
        };
        Ok((name, text(rest)?))
    }

    /// Adds an entry. If the entry is larger than the table, this empties the table, which is not an error (section
    /// 4.4).
    fn insert(&mut self, field: &Field) {
        let size = size_of(field);
        self.shrink(self.limit.saturating_sub(size));
        if size <= self.limit {
            self.entries.push_front(field.clone());
            self.size += size;
        }
    }

    fn shrink(&mut self, size: usize) {
        while self.size > size
            && let Some(oldest) = self.entries.pop_back()
        {
            self.size -= size_of(&oldest);
        }
    }
}

fn size_of((name, value): &Field) -> usize {
    name.len() + value.len() + OVERHEAD
}

/// Decodes an integer with an N-bit prefix (section 5.1). It must be below 2^28.
fn integer(rest: &mut &[u8], bits: u32) -> Result<usize, Unread> {
    let most = (1 << bits) - 1;
    let value = usize::from(byte(rest)?) & most;
    if value < most {
        return Ok(value);
    }
    let mut value = most;
    for shift in [0, 7, 14, 21] {
        let next = byte(rest)?;
        value += usize::from(next & 0x7f) << shift;
        if next & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(Unread::Malformed)
}

fn byte(rest: &mut &[u8]) -> Result<u8, Unread> {
    let (&first, after) = rest.split_first().ok_or(Unread::Malformed)?;
    *rest = after;
    Ok(first)
}

fn text(rest: &mut &[u8]) -> Result<Vec<u8>, Unread> {
    let is_huffman = rest.first().is_some_and(|first| first & 0x80 != 0);
    let length = integer(rest, 7)?;
    let (text, after) = rest.split_at_checked(length).ok_or(Unread::Malformed)?;
    *rest = after;
    if is_huffman {
        huffman(text).ok_or(Unread::Malformed)
    } else {
        Ok(text.to_vec())
    }
}

/// Decodes a Huffman-coded string. The code is canonical: codes of the same length are consecutive in the order of
/// their symbols, and the first one follows the last shorter code.
fn huffman(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    // The bits read of a code so far, the first code of that length, the index of its symbol, and the length.
    let (mut code, mut first, mut place, mut length) = (0, 0, 0, 0);
    let bits = |byte: &u8| {
        let byte = usize::from(*byte);
        (0..8).rev().map(move |at| byte >> at & 1)
    };
    for bit in bytes.iter().flat_map(bits) {
        code |= bit;
        length += 1;
        let count = usize::from(*LENGTHS.get(length)?);
        if code < first + count {
            // Fail at EOS, which follows the last symbol and must not occur in a string.
            text.push(*SYMBOLS.get(place + code - first)?);
            (code, first, place, length) = (0, 0, 0, 0);
        } else {
            place += count;
            first = (first + count) << 1;
            code <<= 1;
        }
    }
    // Check the padding of the last byte, which must be fewer than eight ones.
    let is_filled = length < 8 && code >> 1 == (1 << length) - 1;
    is_filled.then_some(text)
}

/// Encodes a block of fields that adds nothing to the peer's table.
pub(in super::super) fn write(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            match text.len() {
                short @ ..0x7f => block.push(short as u8),
                long => {
                    block.push(0x7f);
                    let mut rest = long - 0x7f;
                    while rest > 0x7f {
                        block.push(rest as u8 | 0x80);
                        rest >>= 7;
                    }
                    block.push(rest as u8);
                }
            }
            block.extend(text.as_bytes());
        }
    }
    block
}

/// The number of codes of each length in bits (RFC 7541, appendix B).
const LENGTHS: [u8; 31] = [
    0, 0, 0, 0, 0, 10, 26, 32, 6, 0, 5, 3, 2, 6, 2, 3, 0, 0, 0, 3, 8, 13, 26, 29, 12, 4, 15, 19, 29, 0, 4,
];

/// The symbols in the order of their codes (RFC 7541, appendix B). EOS would follow, but is never sent.
const SYMBOLS: &[u8; 256] = b"012aceiost %-./3456789=A_bdfghlmnpru:BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz&*,;XZ\
!\"()?'+|#>\0$@[]~^}<`{\\\xc3\xd0\x80\x82\x83\xa2\xb8\xc2\xe0\xe2\x99\xa1\xa7\xac\xb0\xb1\xb3\xd1\xd8\xd9\
\xe3\xe5\xe6\x81\x84\x85\x86\x88\x92\x9a\x9c\xa0\xa3\xa4\xa9\xaa\xad\xb2\xb5\xb9\xba\xbb\xbd\xbe\xc4\xc6\
\xe4\xe8\xe9\x01\x87\x89\x8a\x8b\x8c\x8d\x8f\x93\x95\x96\x97\x98\x9b\x9d\x9e\xa5\xa6\xa8\xae\xaf\xb4\xb6\
\xb7\xbc\xbf\xc5\xe7\xef\t\x8e\x90\x91\x94\x9f\xab\xce\xd7\xe1\xec\xed\xc7\xcf\xea\xeb\xc0\xc1\xc8\xc9\
\xca\xcd\xd2\xd5\xda\xdb\xee\xf0\xf2\xf3\xff\xcb\xcc\xd3\xd4\xd6\xdd\xde\xdf\xf1\xf4\xf5\xf6\xf7\xf8\xfa\
\xfb\xfc\xfd\xfe\x02\x03\x04\x05\x06\x07\x08\x0b\x0c\x0e\x0f\x10\x11\x12\x13\x14\x15\x17\x18\x19\x1a\x1b\
\x1c\x1d\x1e\x1f\x7f\xdc\xf9\n\r\x16";

/// The static table (RFC 7541, appendix A).
#[rustfmt::skip]
const STATIC: [(&str, &str); 61] = [
    (":authority", ""), (":method", "GET"), (":method", "POST"), (":path", "/"), (":path", "/index.html"),
    (":scheme", "http"), (":scheme", "https"), (":status", "200"), (":status", "204"), (":status", "206"),
    (":status", "304"), (":status", "400"), (":status", "404"), (":status", "500"), ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"), ("accept-language", ""), ("accept-ranges", ""), ("accept", ""),
    ("access-control-allow-origin", ""), ("age", ""), ("allow", ""), ("authorization", ""), ("cache-control", ""),
    ("content-disposition", ""), ("content-encoding", ""), ("content-language", ""), ("content-length", ""),
    ("content-location", ""), ("content-range", ""), ("content-type", ""), ("cookie", ""), ("date", ""), ("etag", ""),
    ("expect", ""), ("expires", ""), ("from", ""), ("host", ""), ("if-match", ""), ("if-modified-since", ""),
    ("if-none-match", ""), ("if-range", ""), ("if-unmodified-since", ""), ("last-modified", ""), ("link", ""),
    ("location", ""), ("max-forwards", ""), ("proxy-authenticate", ""), ("proxy-authorization", ""), ("range", ""),
    ("referer", ""), ("refresh", ""), ("retry-after", ""), ("server", ""), ("set-cookie", ""),
    ("strict-transport-security", ""), ("transfer-encoding", ""), ("user-agent", ""), ("vary", ""), ("via", ""),
    ("www-authenticate", ""),
];

#[cfg(test)]
#[path = "hpack_tests.rs"]
mod tests;
