//! Base64 with padding for bytes in JSON (RFC 4648, section 4).

const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Encodes bytes as base64.
pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let at = |index: usize| u32::from(three.get(index).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for place in 0..4 {
            if place <= three.len() {
                let letter = LETTERS[(bits >> (18 - 6 * place) & 63) as usize];
                text.push(char::from(letter));
            } else {
                text.push('=');
            }
        }
    }
    text
}

/// Decodes base64; `None` if the text is invalid.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let letters = text.as_bytes();
    let bare = text.trim_end_matches('=').len();
    if !letters.len().is_multiple_of(4) || letters.len() - bare > 2 {
        return None;
    }
    let mut bytes = Vec::with_capacity(letters.len() / 4 * 3);
    for four in letters[..bare].chunks(4) {
        let mut bits = 0;
        for place in 0..4 {
            let value = match four.get(place) {
                Some(letter) => LETTERS.iter().position(|known| known == letter)? as u32,
                None => 0,
            };
            bits = bits << 6 | value;
        }
        let [_, three @ ..] = bits.to_be_bytes();
        bytes.extend(&three[..four.len() - 1]);
    }
    Some(bytes)
}

/// Serde support for byte fields as base64.
pub mod field {
    use serde::{Deserialize, Deserializer, Serializer};

    /// Serializes bytes as base64.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&super::encode(bytes))
    }

    /// Deserializes bytes from base64.
    ///
    /// # Errors
    /// If the text is not valid base64.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(from)?;
        super::decode(&text).ok_or_else(|| serde::de::Error::custom("not base64"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test vectors of RFC 4648, section 10.
    #[test]
    fn as_the_standard_has_it() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encode(bytes.as_bytes()), text);
            assert_eq!(decode(text).as_deref(), Some(bytes.as_bytes()));
        }
        assert_eq!(encode(&[0xfb, 0xff]), "+/8=");
        for broken in ["Z", "Zg=", "Z===", "Zg!=", "====", "Zé=="] {
            assert_eq!(decode(broken), None, "{broken}");
        }
    }
}
