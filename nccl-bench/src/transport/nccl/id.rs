//! Ids that ranks need to join a communicator. They are created in advance. The creating process serves as the
//! bootstrap root until all ranks have joined, and it need not be one of the ranks.

use std::fmt;
use std::path::Path;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::api::{Nccl, UniqueId};
use super::errors::missing;
use crate::transport::{Deadline, TransportError};

/// NCCL's unique id. It is never printed, because it contains the address of its creator, and anyone with it may join.
#[derive(Clone, PartialEq, Eq)]
pub struct Id([u8; 128]);

/// Creates this many ids. They are valid as long as this process runs. This accesses no GPU.
///
/// # Errors
/// Returns an error if there is no library or if a call fails.
pub fn ids(nccl_lib: Option<&Path>, count: usize, deadline: &Deadline) -> Result<Vec<Id>, TransportError> {
    let nccl = Nccl::open(nccl_lib).map_err(missing)?;
    let one = |_| nccl.unique_id(deadline).map(|id| Id(id.0));
    (0..count).map(one).collect()
}

impl Id {
    pub(super) fn unique(&self) -> UniqueId {
        UniqueId(self.0)
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Id(..)")
    }
}

impl Serialize for Id {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&hex(&self.0))
    }
}

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Id, D::Error> {
        let text = String::deserialize(deserializer)?;
        unhex(&text)
            .map(Id)
            .ok_or_else(|| D::Error::custom("an id of NCCL has 128 bytes, in hexadecimal digits"))
    }
}

/// Returns the bytes in hexadecimal, with two digits per byte.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Parses the output of [`hex`], for an exact number of bytes.
pub(crate) fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    let digits = text.as_bytes();
    if digits.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.as_chunks::<2>().0) {
        let digit = |at: usize| char::from(pair[at]).to_digit(16);
        *byte = u8::try_from(digit(0)? << 4 | digit(1)?).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_travels_as_text_and_is_not_printed() {
        let mut bytes = [0; 128];
        (bytes[0], bytes[127]) = (0xfe, 7);
        let id = Id(bytes);
        let text = serde_json::to_string(&id).unwrap();
        assert!(text.starts_with("\"fe00") && text.ends_with("07\""), "{text}");
        assert_eq!(serde_json::from_str::<Id>(&text).unwrap(), id);
        assert_eq!(format!("{id:?}"), "Id(..)");
        for wrong in [
            "\"\"",
            "\"fe\"",
            &text.replace("fe", "fg"),
            &text.replace("fe", "+e"),
        ] {
            assert!(serde_json::from_str::<Id>(wrong).is_err(), "{wrong}");
        }
    }
}
