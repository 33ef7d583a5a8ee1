//! Keys that are made of their values.

/// The key of a value for [`crate::client::reader::Consistency::ContentAddressed`]: its BLAKE3 hash.
pub fn content_key(value: &[u8]) -> [u8; 32] {
    *blake3::hash(value).as_bytes()
}
