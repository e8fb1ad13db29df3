//! NCCL's data types, and their addition on the host.

/// Returns the number of bytes in one element of an ncclDataType_t.
pub fn width(dtype: i32) -> Option<usize> {
    Some(match dtype {
        0 | 1 => 1,
        2 | 3 | 7 => 4,
        4 | 5 | 8 => 8,
        6 | 9 => 2,
        _ => return None,
    })
}

/// Adds `more` to `sum`, element by element. Returns false if the type is not supported here.
pub fn add(dtype: i32, sum: &mut [u8], more: &[u8]) -> bool {
    match dtype {
        2 => each::<4>(sum, more, |a, b| {
            i32::from_le_bytes(a)
                .wrapping_add(i32::from_le_bytes(b))
                .to_le_bytes()
        }),
        7 => each::<4>(sum, more, |a, b| {
            (f32::from_le_bytes(a) + f32::from_le_bytes(b)).to_le_bytes()
        }),
        8 => each::<8>(sum, more, |a, b| {
            (f64::from_le_bytes(a) + f64::from_le_bytes(b)).to_le_bytes()
        }),
        6 => each::<2>(sum, more, |a, b| to_half(from_half(a) + from_half(b))),
        9 => each::<2>(sum, more, |a, b| to_brain(from_brain(a) + from_brain(b))),
        _ => return false,
    }
    true
}

fn each<const N: usize>(sum: &mut [u8], more: &[u8], add: impl Fn([u8; N], [u8; N]) -> [u8; N]) {
    for (into, from) in sum.as_chunks_mut::<N>().0.iter_mut().zip(more.as_chunks::<N>().0) {
        *into = add(*into, *from);
    }
}

/// Converts from bfloat16, which is the upper half of a float.
pub fn from_brain(bytes: [u8; 2]) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16)
}

/// Converts to bfloat16, rounded to the nearest, ties to even.
pub fn to_brain(value: f32) -> [u8; 2] {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7FFF + ((bits >> 16) & 1));
    ((rounded >> 16) as u16).to_le_bytes()
}

/// Converts from IEEE half precision, including subnormals.
pub fn from_half(bytes: [u8; 2]) -> f32 {
    let bits = u16::from_le_bytes(bytes);
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f32::from(bits & 1023));
    match exponent {
        0 => sign * fraction * 2f32.powi(-24),
        31 if fraction == 0.0 => sign * f32::INFINITY,
        31 => f32::NAN,
        _ => sign * (1024.0 + fraction) * 2f32.powi(exponent - 25),
    }
}

/// Converts to IEEE half precision, rounded to the nearest, ties to even.
pub fn to_half(value: f32) -> [u8; 2] {
    let sign = if value.is_sign_negative() { 0x8000u16 } else { 0 };
    let size = value.abs();
    let bits = if size.is_nan() {
        0x7E00
    } else if size >= 65520.0 {
        0x7C00
    } else {
        let exponent = (size.to_bits() >> 23) as i32 - 127;
        let step = 2f32.powi(exponent.max(-14) - 10);
        let units = (size / step).round_ties_even() as u32;
        // Normal numbers start at 1024 units. A carry of the rounding increments the exponent automatically.
        (units + ((exponent.max(-14) + 14) as u32) * 1024) as u16
    };
    (sign | bits).to_le_bytes()
}
