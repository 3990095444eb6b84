//! What the machinery costs per request: decode, default, prune and validate one typical Job.

#![expect(clippy::expect_used, reason = "a bench that cannot read its own data cannot go on")]

use control_schema::{Schema, strict};
use criterion::{Criterion, criterion_group, criterion_main};
use serde_json::Value;

const JOB: &[u8] = include_bytes!("../tests/data/job.json");

fn schema() -> Schema {
    let crd: Value = serde_json::from_str(include_str!("../tests/data/job-crd.json")).expect("crd");
    Schema::parse(crd.pointer("/spec/versions/0/schema/openAPIV3Schema").expect("schema"))
        .expect("schema")
}

fn request(c: &mut Criterion) {
    let schema = schema();
    c.bench_function("decode, default, prune and validate", |b| {
        b.iter(|| {
            let mut object = strict::decode_json(JOB).expect("decodes").value;
            schema.default(&mut object);
            let removed = schema.prune(&mut object);
            (removed, schema.validate(&object))
        });
    });
    let object: Value = serde_json::from_slice(JOB).expect("job");
    c.bench_function("validate", |b| b.iter(|| schema.validate(&object)));
}

criterion_group!(benches, request);
criterion_main!(benches);
