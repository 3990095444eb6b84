//! rlark-agent
fn main() {}
