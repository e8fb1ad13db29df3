//! Defines the offsets and sizes of `layout.md`, and the checksum of a slot.

/// First bytes of the file.
pub const MAGIC: [u8; 8] = *b"PACERING";
/// Version of the layout.
pub const VERSION: u32 = 1;
/// Number of bytes before the first slot.
pub const HEADER_BYTES: usize = 512;
/// Number of bytes in a slot.
pub const SLOT_BYTES: usize = 64;
/// Number of slots of an ordinary ring: 256 KiB, enough for seven minutes at ten steps a second.
pub const CAPACITY: u32 = 4096;
/// Number of slots kept free: the maximum number of writers that can race past the check for a full ring.
pub const SPARE_SLOTS: u64 = 64;
/// Maximum number of slots of a ring that a reader maps: 64 MiB.
pub(crate) const MAX_CAPACITY: u32 = 1 << 20;

/// Number of words in a slot.
pub(crate) const SLOT_WORDS: usize = SLOT_BYTES / 8;

pub(crate) const AT_MAGIC: usize = 0;
pub(crate) const AT_VERSION: usize = 8;
pub(crate) const AT_HEADER_BYTES: usize = 12;
pub(crate) const AT_SLOT_BYTES: usize = 16;
pub(crate) const AT_CAPACITY: usize = 20;
pub(crate) const AT_PID: usize = 24;
pub(crate) const AT_UID: usize = 28;
pub(crate) const AT_HEAD: usize = 64;
pub(crate) const AT_TAIL: usize = 128;
pub(crate) const AT_HEARTBEAT: usize = 136;
pub(crate) const AT_DROPPED: usize = 192;
pub(crate) const AT_GIVEN_UP: usize = 200;
pub(crate) const AT_CALLS: usize = 208;
pub(crate) const AT_CALLS_NS: usize = 216;
pub(crate) const AT_PROGRESS: usize = 256;
pub(crate) const AT_PROGRESS_SINCE: usize = 264;
pub(crate) const AT_LEADER: usize = 272;
pub(crate) const AT_CONTROL: usize = 320;
pub(crate) const AT_SAMPLE: usize = 324;
pub(crate) const AT_LED: usize = 328;
pub(crate) const AT_DUTY: usize = 332;
/// Offset of the collective that ends a step. The reader stores it here if steps are found in the sequence of
/// collectives.
pub(crate) const AT_CADENCE: usize = 336;
/// Number of these words.
pub const CADENCE_WORDS: usize = 6;
pub(crate) const AT_CADENCE_LAST: usize = AT_CADENCE + (CADENCE_WORDS - 1) * 8;
/// Value of the NCCL plugin's duty word after it has switched itself off.
pub const TOOK_ITSELF_OUT: u32 = u32::MAX - 1;
/// Offsets of copies of the last attach and role slots that the reader released. The reader stores them here.
pub(crate) const AT_ATTACH_COPY: usize = 384;
pub(crate) const AT_ROLE_COPY: usize = 448;

/// Bit of the control word that stops all writing.
pub(crate) const CONTROL_STOP: u32 = 1;

/// One slot as eight little-endian words: the sequence, then checksum, kind and flags, then six words of payload.
pub(crate) type Slot = [u64; SLOT_WORDS];

/// Returns the Adler-32 of bytes 12 to 63 of the slot of this sequence, started from `sequence % 65521`.
///
/// The sum is written in closed form, which the compiler turns into vector code. With n bytes, A = a0 + Σ x, and B =
/// n·a0 + Σ (n - i)·x (RFC 1950, section 9). Here b0 is zero.
#[inline]
pub(crate) fn checksum(slot: &Slot, sequence: u64) -> u32 {
    const MODULUS: u32 = 65521;
    const FROM: usize = 12;
    const BYTES: u32 = (SLOT_BYTES - FROM) as u32;
    let mut bytes = [0u8; SLOT_BYTES];
    for (chunk, word) in bytes.chunks_exact_mut(8).zip(slot) {
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    let start = (sequence % u64::from(MODULUS)) as u32;
    let mut sum = 0u32;
    let mut weighted = 0u32;
    for (i, byte) in bytes[FROM..].iter().enumerate() {
        sum += u32::from(*byte);
        weighted += (BYTES - i as u32) * u32::from(*byte);
    }
    let a = (start + sum) % MODULUS;
    let b = (BYTES * start + weighted) % MODULUS;
    (b << 16) | a
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain_adler32(bytes: &[u8], start: u32) -> u32 {
        let (mut a, mut b) = (start & 0xffff, start >> 16);
        for byte in bytes {
            a = (a + u32::from(*byte)) % 65521;
            b = (b + a) % 65521;
        }
        (b << 16) | a
    }

    #[test]
    fn closed_form_is_adler32() {
        for sequence in [1u64, 2, 65_520, 65_521, 65_522, u64::MAX] {
            let slot: Slot = std::array::from_fn(|i| sequence.wrapping_mul(0x9e37_79b9_7f4a_7c15 + i as u64));
            let bytes: Vec<u8> = slot.iter().flat_map(|word| word.to_le_bytes()).collect();
            assert_eq!(
                checksum(&slot, sequence),
                plain_adler32(&bytes[12..], (sequence % 65521) as u32)
            );
        }
        let full: Slot = [u64::MAX; 8];
        let bytes = [0xffu8; 52];
        assert_eq!(checksum(&full, 65_520), plain_adler32(&bytes, 65_520));
    }
}
