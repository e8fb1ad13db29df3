//! Compresses messages. A message is split ([`columns`]) and deflated with a dictionary of common contents. Each
//! message is compressed independently, so any message can be sent again, and no state is kept per connection. The size
//! of a decompressed message is bounded, whatever the bytes claim.
//!
//! ```text
//! 0xc1 (no MessagePack begins so) | dictionary | length of the skeleton (LEB128) | length of skeleton and widths (LEB128) |
//! raw deflate of both (RFC 1951) | bits
//! ```

pub mod columns;

use std::borrow::Cow;
use std::cell::RefCell;
use std::sync::OnceLock;

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use self::columns::{Columns, Last};
use super::wire::{MAX_MESSAGE_BYTES, WireError};

/// The newest dictionary of this version. A released dictionary never changes.
pub const DICTIONARY: u8 = 1;
/// Sample messages of sidecars, one after another. `made_of_what_is_said` generates this file.
const SAID: &[u8] = include_bytes!("pack/dictionary-1.msgpack");

const MARK: u8 = 0xc1;
/// Minimum size of a message to compress. Shorter messages do not get smaller.
const WORTH: usize = 48;
/// The window size. The dictionary and a batch fit into it.
const WINDOW_BITS: u8 = 15;

/// The initial state of both ends.
struct Known {
    last: Last,
    text: Vec<u8>,
}

fn known() -> &'static Known {
    static KNOWN: OnceLock<Known> = OnceLock::new();
    KNOWN.get_or_init(|| {
        let mut last = Last::default();
        let said = Columns::split(SAID, &mut last).unwrap_or_default();
        let text = [said.widths, said.skeleton].concat();
        Known { last, text }
    })
}

struct Machines {
    deflate: Compress,
    inflate: Decompress,
}

thread_local! {
    // This takes a quarter of a megabyte, so all connections of a thread share it.
    static MACHINES: RefCell<Option<Machines>> = const { RefCell::new(None) };
}

fn with_machines<T>(run: impl FnOnce(&mut Machines) -> T) -> T {
    MACHINES.with_borrow_mut(|machines| {
        run(machines.get_or_insert_with(|| Machines {
            deflate: Compress::new_with_window_bits(Compression::new(LEVEL), false, WINDOW_BITS),
            inflate: Decompress::new_with_window_bits(false, WINDOW_BITS),
        }))
    })
}

const LEVEL: u32 = 9;

/// Compresses a message. Returns it unchanged if that does not make it smaller.
pub fn pack(message: Vec<u8>) -> Vec<u8> {
    match squeeze(&message) {
        Some(packed) if packed.len() < message.len() => packed,
        _ => message,
    }
}

fn squeeze(message: &[u8]) -> Option<Vec<u8>> {
    if message.len() < WORTH || message.len() > MAX_MESSAGE_BYTES {
        return None;
    }
    let columns = Columns::split(message, &mut known().last.clone())?;
    let mut plain = columns.skeleton;
    let mut packed = vec![MARK, DICTIONARY];
    put_number(&mut packed, plain.len());
    plain.extend_from_slice(&columns.widths);
    put_number(&mut packed, plain.len());
    packed.reserve(plain.len() + columns.bits.len() + 64);
    with_machines(|machines| {
        let deflate = &mut machines.deflate;
        deflate.reset();
        deflate.set_dictionary(&known().text).ok()?;
        let ended = deflate
            .compress_vec(&plain, &mut packed, FlushCompress::Finish)
            .ok()?;
        // If the data does not shrink, it is not packed.
        (ended == Status::StreamEnd).then_some(())
    })?;
    packed.extend_from_slice(&columns.bits);
    Some(packed)
}

/// Decompresses a message. Returns a message that is not packed unchanged.
///
/// # Errors
/// [`WireError`] if the message is packed with an unknown dictionary, is damaged, or exceeds the size limit.
pub fn unpack(bytes: &[u8]) -> Result<Cow<'_, [u8]>, WireError> {
    let (version, body) = match bytes {
        [MARK, version, body @ ..] => (*version, body),
        [MARK] => return Err(WireError::Packed),
        plain => return Ok(Cow::Borrowed(plain)),
    };
    if version != DICTIONARY {
        return Err(WireError::Dictionary { version });
    }
    let (skeleton, body) = number(body)?;
    let (length, body) = number(body)?;
    if length > MAX_MESSAGE_BYTES {
        return Err(WireError::TooLarge { bytes: length });
    }
    // Allocate the claimed size. No more than that is written.
    let mut plain = Vec::with_capacity(length);
    let used = with_machines(|machines| {
        let inflate = &mut machines.inflate;
        inflate.reset(false);
        inflate.set_dictionary(&known().text).ok()?;
        let ended = inflate
            .decompress_vec(body, &mut plain, FlushDecompress::Finish)
            .ok()?;
        (ended == Status::StreamEnd).then(|| inflate.total_in() as usize)
    });
    let (Some(bits), true) = (used.and_then(|used| body.get(used..)), plain.len() == length) else {
        return Err(WireError::Packed);
    };
    let (skeleton, widths) = plain.split_at_checked(skeleton).ok_or(WireError::Packed)?;
    let mut last = known().last.clone();
    let message = Columns::join(skeleton, widths, bits, &mut last, MAX_MESSAGE_BYTES);
    message.map(Cow::Owned).ok_or(WireError::Packed)
}

fn put_number(bytes: &mut Vec<u8>, mut number: usize) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Reads a number of at most four bytes. Returns it and the bytes after it.
fn number(bytes: &[u8]) -> Result<(usize, &[u8]), WireError> {
    let mut number = 0;
    for (i, byte) in bytes.iter().take(4).enumerate() {
        number |= usize::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            return Ok((number, &bytes[i + 1..]));
        }
    }
    Err(WireError::Packed)
}

#[cfg(test)]
#[path = "pack/pack_tests.rs"]
mod tests;
