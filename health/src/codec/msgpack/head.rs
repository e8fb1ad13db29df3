//! Reads one MessagePack value, independent of the target type.

use serde::de;

use super::Error;

const NIL: u8 = 0xc0;
const MAP_OF_ONE: u8 = 0x81;

/// One value, or the length of a sequence that follows.
#[derive(Clone, Copy)]
pub(super) enum Head<'de> {
    Nil,
    Bool(bool),
    Unsigned(u64),
    /// Negative integers only.
    Signed(i64),
    Float(f64),
    Str(&'de str),
    Bin(&'de [u8]),
    Array(usize),
    Map(usize),
}

impl Head<'_> {
    fn signed(value: i64) -> Self {
        u64::try_from(value).map_or(Head::Signed(value), Head::Unsigned)
    }

    #[cold]
    fn instead_of(self, asked: &str) -> Error {
        let found = match self {
            Head::Nil => "nothing",
            Head::Bool(_) => "a truth",
            Head::Unsigned(_) | Head::Signed(_) => "an integer",
            Head::Float(_) => "a number",
            Head::Str(_) => "a text",
            Head::Bin(_) => "bytes",
            Head::Array(_) => "an array",
            Head::Map(_) => "a map",
        };
        Error(format!("{found} in place of {asked}").into())
    }
}

#[cold]
fn short() -> Error {
    Error("cut short".into())
}

/// The remaining input.
pub(super) struct Input<'de>(pub(super) &'de [u8]);

impl<'de> Input<'de> {
    fn take(&mut self, len: usize) -> Result<&'de [u8], Error> {
        let (taken, left) = self.0.split_at_checked(len).ok_or_else(short)?;
        self.0 = left;
        Ok(taken)
    }

    /// Takes the next `N` bytes, for a big-endian number.
    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let (taken, left) = self.0.split_first_chunk().ok_or_else(short)?;
        self.0 = left;
        Ok(*taken)
    }

    fn len_8(&mut self) -> Result<usize, Error> {
        Ok(u8::from_be_bytes(self.fixed()?).into())
    }

    fn len_16(&mut self) -> Result<usize, Error> {
        Ok(u16::from_be_bytes(self.fixed()?).into())
    }

    fn len_32(&mut self) -> Result<usize, Error> {
        Ok(u32::from_be_bytes(self.fixed()?) as usize)
    }

    fn str_of(&mut self, len: usize) -> Result<Head<'de>, Error> {
        let text = str::from_utf8(self.take(len)?);
        text.map(Head::Str).map_err(de::Error::custom)
    }

    fn bin_of(&mut self, len: usize) -> Result<Head<'de>, Error> {
        self.take(len).map(Head::Bin)
    }

    pub(super) fn head(&mut self) -> Result<Head<'de>, Error> {
        let [marker] = self.fixed()?;
        Ok(match marker {
            0x00..=0x7f => Head::Unsigned(marker.into()),
            0x80..=0x8f => Head::Map(usize::from(marker & 0xf)),
            0x90..=0x9f => Head::Array(usize::from(marker & 0xf)),
            0xa0..=0xbf => self.str_of(usize::from(marker & 0x1f))?,
            NIL => Head::Nil,
            0xc2 => Head::Bool(false),
            0xc3 => Head::Bool(true),
            0xc4 => self.len_8().and_then(|len| self.bin_of(len))?,
            0xc5 => self.len_16().and_then(|len| self.bin_of(len))?,
            0xc6 => self.len_32().and_then(|len| self.bin_of(len))?,
            0xca => Head::Float(f32::from_be_bytes(self.fixed()?).into()),
            0xcb => Head::Float(f64::from_be_bytes(self.fixed()?)),
            0xcc => Head::Unsigned(u8::from_be_bytes(self.fixed()?).into()),
            0xcd => Head::Unsigned(u16::from_be_bytes(self.fixed()?).into()),
            0xce => Head::Unsigned(u32::from_be_bytes(self.fixed()?).into()),
            0xcf => Head::Unsigned(u64::from_be_bytes(self.fixed()?)),
            0xd0 => Head::signed(i8::from_be_bytes(self.fixed()?).into()),
            0xd1 => Head::signed(i16::from_be_bytes(self.fixed()?).into()),
            0xd2 => Head::signed(i32::from_be_bytes(self.fixed()?).into()),
            0xd3 => Head::signed(i64::from_be_bytes(self.fixed()?)),
            0xd9 => self.len_8().and_then(|len| self.str_of(len))?,
            0xda => self.len_16().and_then(|len| self.str_of(len))?,
            0xdb => self.len_32().and_then(|len| self.str_of(len))?,
            0xdc => Head::Array(self.len_16()?),
            0xdd => Head::Array(self.len_32()?),
            0xde => Head::Map(self.len_16()?),
            0xdf => Head::Map(self.len_32()?),
            0xe0.. => Head::Signed(marker.cast_signed().into()),
            0xc1 | 0xc7..=0xc9 | 0xd4..=0xd8 => return Err(Error("an unknown marker".into())),
        })
    }

    /// Consumes a nil if it is next. Returns true if it was.
    pub(super) fn is_nil(&mut self) -> bool {
        self.is_next(NIL)
    }

    /// Consumes the head of a map with one pair if that is next. Returns true if it was; the pair's key follows.
    pub(super) fn is_pair(&mut self) -> bool {
        self.is_next(MAP_OF_ONE)
    }

    fn is_next(&mut self, marker: u8) -> bool {
        let left = self.0.strip_prefix(&[marker]);
        self.0 = left.unwrap_or(self.0);
        left.is_some()
    }

    pub(super) fn skip(&mut self) -> Result<(), Error> {
        let mut owed = 1_usize;
        while owed > 0 {
            owed -= 1;
            owed = match self.head()? {
                Head::Array(len) => owed.saturating_add(len),
                Head::Map(len) => owed.saturating_add(2 * len),
                _ => owed,
            };
        }
        Ok(())
    }

    /// Reads the next head. Fails unless `take` accepts it.
    fn one<T>(&mut self, asked: &str, take: impl Fn(Head<'de>) -> Option<T>) -> Result<T, Error> {
        let head = self.head()?;
        take(head).ok_or_else(|| head.instead_of(asked))
    }

    pub(super) fn nil(&mut self) -> Result<(), Error> {
        self.one("nothing", |head| {
            matches!(head, Head::Nil | Head::Array(0)).then_some(())
        })
    }

    pub(super) fn bool(&mut self) -> Result<bool, Error> {
        self.one("a truth", |head| match head {
            Head::Bool(value) => Some(value),
            _ => None,
        })
    }

    pub(super) fn unsigned(&mut self) -> Result<u64, Error> {
        self.one("a number without sign", |head| match head {
            Head::Unsigned(value) => Some(value),
            _ => None,
        })
    }

    pub(super) fn integer(&mut self) -> Result<i64, Error> {
        self.one("an integer of 64 bits", |head| match head {
            Head::Unsigned(value) => value.try_into().ok(),
            Head::Signed(value) => Some(value),
            _ => None,
        })
    }

    pub(super) fn float(&mut self) -> Result<f64, Error> {
        self.one("a number", |head| match head {
            Head::Float(value) => Some(value),
            Head::Unsigned(value) => Some(value as f64),
            Head::Signed(value) => Some(value as f64),
            _ => None,
        })
    }

    pub(super) fn str(&mut self) -> Result<&'de str, Error> {
        self.one("a text", |head| match head {
            Head::Str(text) => Some(text),
            _ => None,
        })
    }

    pub(super) fn bytes(&mut self) -> Result<&'de [u8], Error> {
        self.one("bytes", |head| match head {
            Head::Bin(bytes) => Some(bytes),
            _ => None,
        })
    }

    pub(super) fn array(&mut self) -> Result<usize, Error> {
        self.one("an array", |head| match head {
            Head::Array(len) => Some(len),
            _ => None,
        })
    }

    pub(super) fn map(&mut self) -> Result<usize, Error> {
        self.one("a map", |head| match head {
            Head::Map(len) => Some(len),
            _ => None,
        })
    }
}
