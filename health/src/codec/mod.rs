//! How entries and state are written and read: JSON lines, MessagePack, base64, hashes.

pub mod base64;
pub mod hash;
pub mod line;
pub mod msgpack;
pub(crate) mod serde_impls;
