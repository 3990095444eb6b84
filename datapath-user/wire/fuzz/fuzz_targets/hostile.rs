//! One end of a flow against a peer that says anything, between any operations of its own application: see the model.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../tests/model/mod.rs"]
#[expect(dead_code, reason = "shared with the tests and the other targets")]
mod model;

fuzz_target!(|steps: &[u8]| model::hostile::Hostile::run(steps));
