//! NCCL's words as numbers, without looking further than their end. Null reads as empty.

use std::ffi::c_char;

use paceline_ring::Function;

/// Up to `N` bytes of a C string, zero padded.
///
/// # Safety
/// `text` is null, or ends in a zero.
pub unsafe fn head<const N: usize>(text: *const c_char) -> [u8; N] {
    let mut bytes = [0; N];
    if text.is_null() {
        return bytes;
    }
    for (i, byte) in bytes.iter_mut().enumerate() {
        // SAFETY: the string has not ended before `i`.
        *byte = unsafe { *text.add(i) } as u8;
        if *byte == 0 {
            break;
        }
    }
    bytes
}

/// `ncclFuncToString`: eight letters tell them apart.
pub fn function(name: [u8; 8]) -> Function {
    match &name {
        b"AllReduc" => Function::AllReduce,
        b"ReduceSc" => Function::ReduceScatter,
        b"AllGathe" => Function::AllGather,
        b"Broadcas" => Function::Broadcast,
        b"Reduce\0\0" => Function::Reduce,
        _ => Function::Other,
    }
}

/// `ncclAlgoToString`, by the numbers of the ring's layout.
pub fn algorithm(name: [u8; 16]) -> u8 {
    match &name[..] {
        b"RING\0\0\0\0\0\0\0\0\0\0\0\0" => 1,
        b"TREE\0\0\0\0\0\0\0\0\0\0\0\0" => 2,
        b"COLLNET_DIRECT\0\0" => 3,
        b"COLLNET_CHAIN\0\0\0" => 4,
        b"NVLS\0\0\0\0\0\0\0\0\0\0\0\0" => 5,
        b"NVLS_TREE\0\0\0\0\0\0\0" => 6,
        b"PAT\0\0\0\0\0\0\0\0\0\0\0\0\0" => 7,
        _ => 0,
    }
}

/// `ncclProtoToString`, likewise.
pub fn protocol(name: [u8; 8]) -> u8 {
    match &name {
        b"LL\0\0\0\0\0\0" => 1,
        b"LL128\0\0\0" => 2,
        b"SIMPLE\0\0" => 3,
        _ => 0,
    }
}

/// Bytes of an element of `ncclFloat16` and its like: the first number in the name is its bits. 0: no number.
pub fn element_bytes(datatype: [u8; 16]) -> u64 {
    let mut bits = 0u64;
    for byte in datatype {
        match byte {
            b'0'..=b'9' => bits = bits * 10 + u64::from(byte - b'0'),
            _ if bits > 0 => break,
            _ => {}
        }
    }
    bits / 8
}

/// A number of decimal digits alone, of at most ten.
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

    #[test]
    fn words_of_nccl() {
        // SAFETY: literals end in a zero.
        let name = |text: &std::ffi::CStr| unsafe { head::<8>(text.as_ptr()) };
        assert_eq!(function(name(c"AllReduce")), Function::AllReduce);
        assert_eq!(function(name(c"ReduceScatter")), Function::ReduceScatter);
        assert_eq!(function(name(c"AllGather")), Function::AllGather);
        assert_eq!(function(name(c"Broadcast")), Function::Broadcast);
        assert_eq!(function(name(c"Reduce")), Function::Reduce);
        assert_eq!(function(name(c"AlltoAll")), Function::Other);
        assert_eq!(protocol(name(c"LL")), 1);
        assert_eq!(protocol(name(c"LL128")), 2);
        // SAFETY: null is allowed.
        assert_eq!(unsafe { head::<8>(std::ptr::null()) }, [0; 8]);
        // SAFETY: as above.
        assert_eq!(algorithm(unsafe { head(c"NVLS_TREE".as_ptr()) }), 6);
        // SAFETY: as above.
        assert_eq!(algorithm(unsafe { head(c"Unknown".as_ptr()) }), 0);
    }

    #[test]
    fn sizes_of_elements() {
        // SAFETY: literals end in a zero.
        let size = |text: &std::ffi::CStr| element_bytes(unsafe { head(text.as_ptr()) });
        assert_eq!(
            [
                c"ncclInt8",
                c"ncclBfloat16",
                c"ncclFloat32",
                c"ncclUint64",
                c"ncclFloat8e4m3",
                c"Unknown"
            ]
            .map(size),
            [1, 2, 4, 8, 1, 0]
        );
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
