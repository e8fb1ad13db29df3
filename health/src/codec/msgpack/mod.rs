//! Decodes MessagePack (<https://github.com/msgpack/msgpack/blob/master/spec.md>) into our types, in the format of
//! `rmp_serde::to_vec`. In this format, a struct is an array of its fields. A variant is its name, or a map from its
//! name to its content.
//!
//! The target type determines which values are accepted, and all others are rejected at once. We do not use the decoder
//! of rmp-serde, because it accepts every kind of value in every place. It was instantiated eight hundred times, once
//! for each of our types, and was a sixth of the binary.

mod head;

use std::fmt;

use serde::de::{self, Deserialize, DeserializeSeed, Visitor};

use head::{Head, Input};

/// Maximum nesting of values; each level uses stack.
const MOST_DEEP: u16 = 1024;

/// Why decoding failed.
#[derive(Debug)]
pub struct Error(Box<str>);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

impl de::Error for Error {
    #[cold]
    fn custom<T: fmt::Display>(text: T) -> Error {
        Error(text.to_string().into())
    }
}

/// Decodes the value at the start of `bytes`.
///
/// # Errors
/// If the bytes end too early or do not match the type.
pub fn from_slice<'de, T: Deserialize<'de>>(bytes: &'de [u8]) -> Result<T, Error> {
    from_prefix(bytes).map(|(value, _)| value)
}

/// Decodes the value at the start of `bytes`, and returns the rest.
///
/// # Errors
/// The same as those of [`from_slice`].
pub fn from_prefix<'de, T: Deserialize<'de>>(bytes: &'de [u8]) -> Result<(T, &'de [u8]), Error> {
    let mut reader = Reader {
        input: Input(bytes),
        deep: 0,
    };
    let value = T::deserialize(&mut reader)?;
    Ok((value, reader.input.0))
}

struct Reader<'de> {
    input: Input<'de>,
    deep: u16,
}

impl<'de> Reader<'de> {
    fn list(&mut self) -> Result<Values<'_, 'de>, Error> {
        let len = self.input.array()?;
        self.enter(len)
    }

    fn enter(&mut self, len: usize) -> Result<Values<'_, 'de>, Error> {
        if self.deep == MOST_DEEP {
            return Err(Error("too deep".into()));
        }
        self.deep += 1;
        Ok(Values {
            reader: self,
            left: len,
        })
    }
}

/// The values of an array or a map.
struct Values<'a, 'de> {
    reader: &'a mut Reader<'de>,
    left: usize,
}

impl<'de> Values<'_, 'de> {
    fn read<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
        let value = visitor.visit_seq(&mut self)?;
        self.leave(value)
    }

    fn read_pairs<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
        let value = visitor.visit_map(&mut self)?;
        self.leave(value)
    }

    /// Rejects input with more values than the type has.
    fn leave<T>(self, value: T) -> Result<T, Error> {
        self.reader.deep -= 1;
        match self.left {
            0 => Ok(value),
            more => Err(Error(format!("{more} more than are known").into())),
        }
    }
}

impl<'de> de::SeqAccess<'de> for &mut Values<'_, 'de> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        let Some(left) = self.left.checked_sub(1) else {
            return Ok(None);
        };
        self.left = left;
        seed.deserialize(&mut *self.reader).map(Some)
    }

    /// Limits the stated length by the remaining bytes. Each value takes at least one byte, so a larger length is
    /// wrong.
    fn size_hint(&self) -> Option<usize> {
        Some(self.left.min(self.reader.input.0.len()))
    }
}

impl<'de> de::MapAccess<'de> for &mut Values<'_, 'de> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        de::SeqAccess::next_element_seed(self, seed)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        seed.deserialize(&mut *self.reader)
    }
}

/// A variant, either with its content or as its name alone.
struct Variant<'a, 'de> {
    reader: &'a mut Reader<'de>,
    holds: bool,
}

impl<'de> de::EnumAccess<'de> for Variant<'_, 'de> {
    type Error = Error;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Error> {
        let name = seed.deserialize(&mut *self.reader)?;
        Ok((name, self))
    }
}

impl<'a, 'de> Variant<'a, 'de> {
    fn held(self) -> Result<&'a mut Reader<'de>, Error> {
        let held = self.holds.then_some(self.reader);
        held.ok_or_else(|| Error("a variant's name alone".into()))
    }
}

impl<'de> de::VariantAccess<'de> for Variant<'_, 'de> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        if self.holds {
            self.reader.input.nil()
        } else {
            Ok(())
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Error> {
        seed.deserialize(self.held()?)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Error> {
        self.held()?.list()?.read(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.held()?.list()?.read(visitor)
    }
}

macro_rules! visit {
    ($($deserialize:ident)* => $visit:ident, $read:ident) => {$(
        fn $deserialize<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            visitor.$visit(self.input.$read()?)
        }
    )*};
}

impl<'de> de::Deserializer<'de> for &mut Reader<'de> {
    type Error = Error;

    fn is_human_readable(&self) -> bool {
        false
    }

    visit!(deserialize_bool => visit_bool, bool);
    visit!(deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 => visit_u64, unsigned);
    visit!(deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 => visit_i64, integer);
    visit!(deserialize_f32 deserialize_f64 => visit_f64, float);
    visit!(deserialize_char deserialize_str deserialize_string deserialize_identifier => visit_borrowed_str, str);
    visit!(deserialize_bytes deserialize_byte_buf => visit_borrowed_bytes, bytes);

    /// For types that depend on the content: untagged enums, tags among the fields.
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.input.head()? {
            Head::Nil => visitor.visit_unit(),
            Head::Bool(value) => visitor.visit_bool(value),
            Head::Unsigned(value) => visitor.visit_u64(value),
            Head::Signed(value) => visitor.visit_i64(value),
            Head::Float(value) => visitor.visit_f64(value),
            Head::Str(text) => visitor.visit_borrowed_str(text),
            Head::Bin(bytes) => visitor.visit_borrowed_bytes(bytes),
            Head::Array(len) => self.enter(len)?.read(visitor),
            Head::Map(len) => self.enter(len)?.read_pairs(visitor),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.input.skip()?;
        visitor.visit_unit()
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.input.is_nil() {
            visitor.visit_none()
        } else {
            visitor.visit_some(self)
        }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.input.nil()?;
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.list()?.read(visitor)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Error> {
        self.list()?.read(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.list()?.read(visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.list()?.read(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let len = self.input.map()?;
        self.enter(len)?.read_pairs(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let holds = self.input.is_pair();
        visitor.visit_enum(Variant { reader: self, holds })
    }
}

#[cfg(test)]
mod tests;
