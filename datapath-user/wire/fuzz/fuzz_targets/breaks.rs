//! Two ends of a flow over carriers that are cut at any byte, changed, delayed and repeated: see the model.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../tests/model/mod.rs"]
#[expect(dead_code, reason = "shared with the tests and the other targets")]
mod model;

fuzz_target!(|steps: &[u8]| drop(model::World::run(steps)));
