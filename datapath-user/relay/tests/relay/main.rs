//! Two relays over real TCP: what applications see.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "tests"
)]
#![expect(
    clippy::disallowed_methods,
    reason = "applications that stall, cuts at intervals, and polling for what has no event"
)]

mod direct;
mod faults;
mod floods;
mod flows;
mod listeners;
mod pair;
mod trust;
