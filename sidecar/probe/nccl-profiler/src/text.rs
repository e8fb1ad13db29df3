//! Converts NCCL's names to numbers. It reads them in place and only as far as needed, because this is done for each
//! collective.

use std::ffi::c_char;

use paceline_ring::Function;

/// Maximum number of bytes that are searched for a number.
const LONGEST: usize = 16;

/// A NCCL string: null, or bytes that end in a zero.
#[derive(Clone, Copy)]
pub struct Word(*const c_char);

impl Word {
    /// # Safety
    /// `text` is null or ends in a zero, and does not change while the word is used.
    pub const unsafe fn new(text: *const c_char) -> Word {
        Word(text)
    }

    /// Returns true if the word begins with these bytes, of which only the last may be zero.
    #[inline]
    fn begins(self, bytes: &[u8]) -> bool {
        // SAFETY: each byte before `i` was equal to that of `bytes`, so not zero: the word has not ended before `i`.
        !self.0.is_null() && (0..bytes.len()).all(|i| unsafe { *self.0.add(i) } as u8 == bytes[i])
    }

    /// Returns the number of the first matching word, or 0 if none matches.
    #[inline]
    fn number<const N: usize>(self, words: [(&[u8], u8); N]) -> u8 {
        let found = words.into_iter().find(|(word, _)| self.begins(word));
        found.map_or(0, |(_, number)| number)
    }
}

/// Converts the result of `ncclFuncToString`, whose first eight letters are unique.
#[inline]
pub fn function(word: Word) -> Function {
    Function::of(word.number([
        (b"AllReduc", Function::AllReduce as u8),
        (b"ReduceSc", Function::ReduceScatter as u8),
        (b"AllGathe", Function::AllGather as u8),
        (b"Broadcas", Function::Broadcast as u8),
        (b"Reduce\0", Function::Reduce as u8),
        (b"Send\0", Function::Send as u8),
        (b"Recv\0", Function::Receive as u8),
    ]))
}

/// Converts the result of `ncclAlgoToString` to the numbers of the ring's layout.
#[inline]
pub fn algorithm(word: Word) -> u8 {
    word.number([
        (b"RING\0", 1),
        (b"TREE\0", 2),
        (b"COLLNET_DIRECT\0", 3),
        (b"COLLNET_CHAIN\0", 4),
        (b"NVLS\0", 5),
        (b"NVLS_TREE\0", 6),
        (b"PAT\0", 7),
    ])
}

/// Converts the result of `ncclProtoToString` to the numbers of the ring's layout.
#[inline]
pub fn protocol(word: Word) -> u8 {
    word.number([(b"SIMPLE\0", 3), (b"LL\0", 1), (b"LL128\0", 2)])
}

/// Returns the bytes per element of `ncclFloat16` and similar types, from the first number in the name, which is its
/// bits. Returns 0 if the name has no number.
#[inline]
pub fn element_bytes(word: Word) -> u64 {
    let mut bits = 0u64;
    if word.0.is_null() {
        return 0;
    }
    for i in 0..LONGEST {
        // SAFETY: the word has not ended before `i`.
        match unsafe { *word.0.add(i) } as u8 {
            digit @ b'0'..=b'9' => bits = bits * 10 + u64::from(digit - b'0'),
            0 => break,
            _ if bits > 0 => break,
            _ => {}
        }
    }
    bits / 8
}

/// Parses a number of one to ten decimal digits. Returns `None` for anything else.
pub fn number(digits: &[u8]) -> Option<u32> {
    let mut number = 0u64;
    if digits.is_empty() || digits.len() > 10 {
        return None;
    }
    for byte in digits {
        if !byte.is_ascii_digit() {
            return None;
        }
        number = number * 10 + u64::from(byte - b'0');
    }
    Some(number.min(u64::from(u32::MAX)) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(text: &'static std::ffi::CStr) -> Word {
        // SAFETY: the text ends in a zero.
        unsafe { Word::new(text.as_ptr()) }
    }

    #[test]
    fn words_of_nccl() {
        for (text, expected) in [
            (c"AllReduce", Function::AllReduce),
            (c"ReduceScatter", Function::ReduceScatter),
            (c"AllGather", Function::AllGather),
            (c"Broadcast", Function::Broadcast),
            (c"Reduce", Function::Reduce),
            (c"AlltoAll", Function::Other),
            (c"All", Function::Other),
        ] {
            assert_eq!(function(word(text)), expected, "{text:?}");
        }
        assert_eq!(
            [c"LL", c"LL128", c"SIMPLE", c"LL129", c""].map(|text| protocol(word(text))),
            [1, 2, 3, 0, 0]
        );
        let algorithms = [
            c"RING",
            c"TREE",
            c"COLLNET_DIRECT",
            c"COLLNET_CHAIN",
            c"NVLS",
            c"NVLS_TREE",
            c"PAT",
            c"RINGS",
            c"Unknown",
        ];
        assert_eq!(
            algorithms.map(|text| algorithm(word(text))),
            [1, 2, 3, 4, 5, 6, 7, 0, 0]
        );
        // SAFETY: null is allowed.
        let null = unsafe { Word::new(std::ptr::null()) };
        assert_eq!(
            (function(null), algorithm(null), element_bytes(null)),
            (Function::Other, 0, 0)
        );
    }

    #[test]
    fn sizes_of_elements() {
        let names = [
            c"ncclInt8",
            c"ncclBfloat16",
            c"ncclFloat32",
            c"ncclUint64",
            c"ncclFloat8e4m3",
            c"Unknown",
        ];
        assert_eq!(names.map(|name| element_bytes(word(name))), [1, 2, 4, 8, 1, 0]);
    }

    #[test]
    fn numbers() {
        assert_eq!(number(b"0"), Some(0));
        assert_eq!(number(b"4294967295"), Some(u32::MAX));
        assert_eq!(number(b"9999999999"), Some(u32::MAX));
        for bad in [&b""[..], b"-1", b"1 ", b"12345678901"] {
            assert_eq!(number(bad), None);
        }
    }
}
