//! rlark-bench
fn main() {}
