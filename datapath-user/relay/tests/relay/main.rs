//! Two relays over real TCP: what applications see.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "tests"
)]

mod faults;
mod flows;
mod pair;
mod trust;
