//! rlark-node
fn main() {}
