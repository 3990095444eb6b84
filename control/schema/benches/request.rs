//! What the machinery costs per request: decode, default, prune and validate one typical Job.

#![expect(clippy::expect_used, reason = "a bench that cannot read its own data cannot go on")]

use control_schema::{Schema, strict};
use divan::Bencher;
use serde_json::Value;

fn main() {
    divan::main();
}

const JOB: &[u8] = include_bytes!("../tests/data/job.json");

fn schema() -> Schema {
    let crd: Value = serde_json::from_str(include_str!("../tests/data/job-crd.json")).expect("crd");
    Schema::parse(crd.pointer("/spec/versions/0/schema/openAPIV3Schema").expect("schema"))
        .expect("schema")
}

#[divan::bench]
fn decode_default_prune_validate(b: Bencher<'_, '_>) {
    let schema = schema();
    b.bench(|| {
        let mut object = strict::decode_json(JOB).expect("decodes").value;
        schema.default(&mut object);
        let removed = schema.prune(&mut object);
        (removed, schema.validate(&object))
    });
}

#[divan::bench]
fn validate(b: Bencher<'_, '_>) {
    let schema = schema();
    let object: Value = serde_json::from_slice(JOB).expect("job");
    b.bench(|| schema.validate(&object));
}
