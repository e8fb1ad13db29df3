//! How entries and state are written and read: JSON lines, MessagePack, base64, hashes.

pub mod base64;
pub mod hash;
pub(crate) mod keep;
pub mod line;
pub mod msgpack;
