//! Hashes that are the same on every node and in every version, unlike those of the standard library. They protect
//! against accidents, not against attackers.

/// CRC-32 as in Ethernet and gzip (<https://www.rfc-editor.org/rfc/rfc1952>, section 8). It detects flipped bits and
/// lost or duplicated pieces.
pub fn crc32(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes)
}

/// 64-bit FNV-1a (<http://www.isthe.com/chongo/tech/comp/fnv/>). It needs few instructions for short names.
pub fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_those() {
        // The check value from the CRC catalogue (https://reveng.sourceforge.io/crc-catalogue/all.htm).
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(fnv(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
