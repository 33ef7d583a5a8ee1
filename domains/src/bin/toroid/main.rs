//! The command `toroid`.
fn main() {}
