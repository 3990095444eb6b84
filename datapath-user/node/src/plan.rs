//! What this node should have in its kernel, computed from what it was told. Pure: the keeper
//! ([`crate::keeper`]) feeds it route updates and attachments and carries out the difference.

pub mod desired;
pub mod diff;
pub mod reach;
pub mod table;
