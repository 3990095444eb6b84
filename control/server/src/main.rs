//! rlark-server
fn main() {}
