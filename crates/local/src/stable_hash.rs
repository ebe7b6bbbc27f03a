//! A hash that is the same in every run, for names that must be.

/// FNV-1a, 64 bits: names that must stay the same from run to run need a hash that does too,
/// which the standard library's hasher doesn't promise.
pub(crate) fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
