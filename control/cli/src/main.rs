//! rlark
fn main() {}
