//! Sums raw bytes as elements. The compiler vectorizes the loops, and no alignment is required.

#[cfg(test)]
use half::bf16;
use half::f16;
use half::slice::HalfFloatSliceExt;

use crate::dtype::Dtype;

/// Number of 16-bit floats converted at a time. They are few enough for registers and the L1 cache.
const BATCH: usize = 256;

/// Computes `out` = `own` + `came`, or `out` += `came` without `own`. All have the same length, in whole elements.
pub fn sum(dtype: Dtype, out: &mut [u8], own: Option<&[u8]>, came: &[u8]) {
    match dtype {
        Dtype::F32 => each(out, own, came, |a, b| {
            (f32::from_ne_bytes(a) + f32::from_ne_bytes(b)).to_ne_bytes()
        }),
        Dtype::I32 => each(out, own, came, |a, b| {
            i32::from_ne_bytes(a)
                .wrapping_add(i32::from_ne_bytes(b))
                .to_ne_bytes()
        }),
        Dtype::Bf16 => each(out, own, came, |a, b| {
            bf16_sum(u16::from_ne_bytes(a), u16::from_ne_bytes(b)).to_ne_bytes()
        }),
        Dtype::F16 => halves(out, own, came),
    }
}

fn each<const N: usize>(
    out: &mut [u8],
    own: Option<&[u8]>,
    came: &[u8],
    add: impl Fn([u8; N], [u8; N]) -> [u8; N],
) {
    let (out, _) = out.as_chunks_mut::<N>();
    let (came, _) = came.as_chunks::<N>();
    match own {
        None => out
            .iter_mut()
            .zip(came)
            .for_each(|(out, came)| *out = add(*out, *came)),
        Some(own) => {
            let (own, _) = own.as_chunks::<N>();
            let pairs = own.iter().zip(came);
            out.iter_mut()
                .zip(pairs)
                .for_each(|(out, (own, came))| *out = add(*own, *came));
        }
    }
}

/// Adds two bfloat16 numbers by widening, adding, and rounding to nearest even. NaNs stay NaNs. The code has no
/// branches, so that it can be vectorized.
fn bf16_sum(a: u16, b: u16) -> u16 {
    let sum = f32::from_bits(u32::from(a) << 16) + f32::from_bits(u32::from(b) << 16);
    let bits = sum.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
    let quiet = bits | 0x0040_0000;
    ((if sum.is_nan() { quiet } else { rounded }) >> 16) as u16
}

/// Sums 16-bit floats as 32-bit floats, with the processor's own conversions if available.
fn halves(out: &mut [u8], own: Option<&[u8]>, came: &[u8]) {
    let (mut a, mut b) = ([f16::ZERO; BATCH], [f16::ZERO; BATCH]);
    let (mut wide_a, mut wide_b) = ([0f32; BATCH], [0f32; BATCH]);
    for at in (0..out.len()).step_by(2 * BATCH) {
        let end = out.len().min(at + 2 * BATCH);
        let n = (end - at) / 2;
        load(&mut a[..n], own.map_or(&out[at..end], |own| &own[at..end]));
        load(&mut b[..n], &came[at..end]);
        a[..n].convert_to_f32_slice(&mut wide_a[..n]);
        b[..n].convert_to_f32_slice(&mut wide_b[..n]);
        wide_a[..n]
            .iter_mut()
            .zip(&wide_b[..n])
            .for_each(|(a, b)| *a += *b);
        a[..n].convert_from_f32_slice(&wide_a[..n]);
        let (out, _) = out[at..end].as_chunks_mut::<2>();
        out.iter_mut()
            .zip(&a[..n])
            .for_each(|(out, sum)| *out = sum.to_ne_bytes());
    }
}

fn load(halves: &mut [f16], bytes: &[u8]) {
    let (bytes, _) = bytes.as_chunks::<2>();
    halves
        .iter_mut()
        .zip(bytes)
        .for_each(|(half, bytes)| *half = f16::from_ne_bytes(*bytes));
}

/// Computes the same sum element by element, with the crate's own arithmetic. Tests of [`sum`] use it as the reference.
#[cfg(test)]
fn slow(dtype: Dtype, a: [u8; 4], b: [u8; 4]) -> Vec<u8> {
    let short = |x: [u8; 4]| [x[0], x[1]];
    match dtype {
        Dtype::F32 => (f32::from_ne_bytes(a) + f32::from_ne_bytes(b))
            .to_ne_bytes()
            .to_vec(),
        Dtype::I32 => i32::from_ne_bytes(a)
            .wrapping_add(i32::from_ne_bytes(b))
            .to_ne_bytes()
            .to_vec(),
        Dtype::Bf16 => {
            let sum = bf16::from_ne_bytes(short(a)).to_f32() + bf16::from_ne_bytes(short(b)).to_f32();
            bf16::from_f32(sum).to_ne_bytes().to_vec()
        }
        Dtype::F16 => {
            let sum = f16::from_ne_bytes(short(a)).to_f32() + f16::from_ne_bytes(short(b)).to_f32();
            f16::from_f32(sum).to_ne_bytes().to_vec()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Pair = ([u8; 4], [u8; 4]);

    fn is_nan(dtype: Dtype, bytes: &[u8]) -> bool {
        match (dtype, bytes) {
            (Dtype::F32, &[a, b, c, d]) => f32::from_ne_bytes([a, b, c, d]).is_nan(),
            (Dtype::F16, &[a, b]) => f16::from_ne_bytes([a, b]).is_nan(),
            (Dtype::Bf16, &[a, b]) => bf16::from_ne_bytes([a, b]).is_nan(),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn any_bits_are_summed_as_the_types_say(pairs in prop::collection::vec(any::<Pair>(), 1..700)) {
            for dtype in Dtype::ALL {
                let size = dtype.size();
                let side = |of: fn(&Pair) -> [u8; 4]| -> Vec<u8> {
                    pairs.iter().flat_map(|pair| of(pair)[..size].to_vec()).collect()
                };
                let (a, b) = (side(|pair| pair.0), side(|pair| pair.1));
                let mut in_place = a.clone();
                sum(dtype, &mut in_place, None, &b);
                let mut apart = vec![0; a.len()];
                sum(dtype, &mut apart, Some(&a), &b);
                let right: Vec<u8> = pairs.iter().flat_map(|(a, b)| slow(dtype, *a, *b)).collect();
                for ((x, y), z) in in_place.chunks(size).zip(apart.chunks(size)).zip(right.chunks(size)) {
                    // NaNs are compared only as NaNs, because the payload of a NaN depends on the processor.
                    let same = x == y && y == z || [x, y, z].iter().all(|e| is_nan(dtype, e));
                    prop_assert!(same, "{dtype}: {x:?} {y:?} {z:?}");
                }
            }
        }
    }
}
