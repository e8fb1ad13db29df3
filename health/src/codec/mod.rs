//! Encodings of entries and state: JSON lines, MessagePack, base64, hashes.

pub mod base64;
pub mod hash;
pub mod line;
pub mod msgpack;
pub(crate) mod serde_impls;
