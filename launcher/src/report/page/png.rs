//! Encodes a small image with a palette as PNG (<https://www.w3.org/TR/png-3/>). It is not compressed, because the
//! savings are not worth a dependency.

use paceline_health::codec::hash::crc32;

const MAGIC: [u8; 8] = [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n'];
/// Maximum number of bytes of a stored block (RFC 1951, section 3.2.4).
const BLOCK: usize = 65_535;

/// The red, green, blue and alpha of a color.
pub(super) type Color = [u8; 4];

/// Encodes an image. `pixels` are rows of `width` palette indices, top row first.
pub(super) fn encode(width: usize, pixels: &[u8], palette: &[Color; 256]) -> Vec<u8> {
    let height = pixels.len() / width.max(1);
    let mut head = Vec::with_capacity(13);
    head.extend((width as u32).to_be_bytes());
    head.extend((height as u32).to_be_bytes());
    // The fields are a depth of eight bits, a palette, and the only valid value for each of the others.
    head.extend([8, 3, 0, 0, 0]);
    let colors: Vec<u8> = palette.iter().flat_map(|color| color[..3].to_vec()).collect();
    let cover: Vec<u8> = palette.iter().map(|color| color[3]).collect();
    let mut lines = Vec::with_capacity(pixels.len() + height);
    for line in pixels.chunks(width.max(1)) {
        lines.push(0);
        lines.extend(line);
    }
    let mut bytes = MAGIC.to_vec();
    chunk(&mut bytes, b"IHDR", &head);
    chunk(&mut bytes, b"PLTE", &colors);
    chunk(&mut bytes, b"tRNS", &cover);
    chunk(&mut bytes, b"IDAT", &stored(&lines));
    chunk(&mut bytes, b"IEND", &[]);
    bytes
}

fn chunk(bytes: &mut Vec<u8>, name: &[u8; 4], data: &[u8]) {
    bytes.extend((data.len() as u32).to_be_bytes());
    let from = bytes.len();
    bytes.extend(name);
    bytes.extend(data);
    let sum = crc32(&bytes[from..]);
    bytes.extend(sum.to_be_bytes());
}

/// Returns a zlib stream (RFC 1950) of stored blocks.
fn stored(data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x78, 0x01];
    let blocks = data.len().div_ceil(BLOCK).max(1);
    for (index, block) in data.chunks(BLOCK).enumerate() {
        let length = block.len() as u16;
        bytes.push(u8::from(index + 1 == blocks));
        bytes.extend(length.to_le_bytes());
        bytes.extend((!length).to_le_bytes());
        bytes.extend(block);
    }
    bytes.extend(adler32(data).to_be_bytes());
    bytes
}

fn adler32(data: &[u8]) -> u32 {
    let (mut a, mut b) = (1_u32, 0_u32);
    for byte in data {
        a = (a + u32::from(*byte)) % 65_521;
        b = (b + a) % 65_521;
    }
    b << 16 | a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_have_their_lengths_and_sums() {
        let mut palette = [[0; 4]; 256];
        palette[1] = [10, 20, 30, 255];
        let bytes = encode(2, &[0, 1, 1, 0], &palette);
        assert_eq!(bytes[..8], MAGIC);
        let mut names = Vec::new();
        let mut rest = &bytes[8..];
        while let [a, b, c, d, more @ ..] = rest {
            let length = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
            let (body, tail) = more.split_at(4 + length);
            let (sum, tail) = tail.split_at(4);
            assert_eq!(crc32(body).to_be_bytes(), sum);
            names.push(String::from_utf8_lossy(&body[..4]).into_owned());
            if &body[..4] == b"IDAT" {
                // The stream has one stored block with 2 rows of 3 bytes, each after its filter type.
                assert_eq!(
                    body[4..],
                    [0x78, 1, 1, 6, 0, 249, 255, 0, 0, 1, 0, 1, 0, 0, 12, 0, 3]
                );
            }
            rest = tail;
        }
        assert_eq!(names, ["IHDR", "PLTE", "tRNS", "IDAT", "IEND"]);
    }

    #[test]
    fn the_sum_is_adlers() {
        assert_eq!(adler32(b"Wikipedia"), 0x11E6_0398);
    }

    #[test]
    fn more_than_a_block_is_two() {
        let bytes = stored(&vec![7; BLOCK + 5]);
        assert_eq!((bytes[2], bytes[2 + 5 + BLOCK]), (0, 1));
        assert_eq!(bytes.len(), 2 + 5 + BLOCK + 5 + 5 + 4);
    }
}
