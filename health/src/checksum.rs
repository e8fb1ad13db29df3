//! CRC-32 as in Ethernet and gzip (<https://www.rfc-editor.org/rfc/rfc1952>, section 8), eight bytes at a time: found are a
//! flipped bit, a lost or doubled piece; not somebody who means harm.

const TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 {
                crc >> 1 ^ 0xedb8_8320
            } else {
                crc >> 1
            };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut ahead = 1;
    while ahead < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[ahead - 1][byte];
            tables[ahead][byte] = before >> 8 ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        ahead += 1;
    }
    tables
}

/// The checksum of these bytes.
pub fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = !0u32;
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        let word = chunk
            .iter()
            .rev()
            .fold(0u64, |word, byte| word << 8 | u64::from(*byte));
        let word = word ^ u64::from(crc);
        crc = (0..8).fold(0, |crc, i| crc ^ TABLES[7 - i][(word >> (8 * i) & 0xff) as usize]);
    }
    for byte in chunks.remainder() {
        crc = crc >> 8 ^ TABLES[0][((crc ^ u32::from(*byte)) & 0xff) as usize];
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_sums() {
        // The check value of the catalogue (https://reveng.sourceforge.io/crc-catalogue/all.htm), and zlib's of the rest.
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(crc32(b""), 0);
        assert_eq!(crc32(b"The quick brown fox jumps over the lazy dog"), 0x414f_a339);
    }
}
