//! Messages made small: taken apart ([`columns`]), and deflated with a dictionary of what every job says. Each message stands
//! for itself, so any can be sent again and nothing is kept for a connection. What comes of it is bounded, whatever the bytes
//! claim.
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

/// The newest dictionary that this version knows. One that was ever released never changes.
pub const DICTIONARY: u8 = 1;
/// Messages as sidecars say them, one after another: `made_of_what_is_said` makes it.
const SAID: &[u8] = include_bytes!("pack/dictionary-1.msgpack");

const MARK: u8 = 0xc1;
/// Shorter ones do not shrink.
const WORTH: usize = 48;
/// The dictionary and a batch fit in the window.
const WINDOW_BITS: u8 = 15;

/// What both ends begin with.
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
    // A quarter of a megabyte: one for all connections of a thread.
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

/// A message in as few bytes as we can; as it is where that is no more.
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
        // Text that grows is not worth packing.
        (ended == Status::StreamEnd).then_some(())
    })?;
    packed.extend_from_slice(&columns.bits);
    Some(packed)
}

/// The message that was packed; one that was not is given back.
///
/// # Errors
/// [`WireError`]: packed with a dictionary that is not known here, damaged, or larger than is read.
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
    // Room is made for what is claimed, and nothing is written beyond it.
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

/// A number of at most four bytes, and what follows it.
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
