//! What of the store's protocol is left out, with the feature `unsafe-variants`: by all processes of a
//! program alike.

/// Arguments for a process, and the one by which this one was told what to leave out.
pub fn with_what_is_left_out<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    #[cfg(feature = "unsafe-variants")]
    let left_out = toroid_kv::variants::argument();
    #[cfg(not(feature = "unsafe-variants"))]
    let left_out: Option<&str> = None;
    arguments.iter().copied().chain(left_out).collect()
}
