//! Any bytes in any split: see the model.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../tests/model/mod.rs"]
#[expect(dead_code, reason = "shared with the tests and the other targets")]
mod model;

fuzz_target!(|data: &[u8]| model::stream::run(data));
