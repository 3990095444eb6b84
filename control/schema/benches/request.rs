//! What the machinery costs per request: decode, default, prune and validate one typical Job.

#![expect(clippy::expect_used, reason = "a bench that cannot read its own data cannot go on")]

use control_schema::{Schema, strict};
use criterion::{Criterion, criterion_group, criterion_main};
use serde_json::Value;

fn request(c: &mut Criterion) {
    let crd: Value = serde_json::from_str(include_str!("../tests/data/job-crd.json")).expect("crd");
    let schema =
        Schema::parse(crd.pointer("/spec/versions/0/schema/openAPIV3Schema").expect("schema"))
            .expect("schema");
    let body = include_bytes!("../tests/data/job.json");
    c.bench_function("job/decode+default+prune+validate", |b| {
        b.iter(|| {
            let mut object = strict::decode_json(body).expect("decodes").value;
            schema.default(&mut object);
            let removed = schema.prune(&mut object);
            (removed, schema.validate(&object))
        });
    });
    let object: Value = serde_json::from_slice(body).expect("job");
    c.bench_function("job/validate", |b| b.iter(|| schema.validate(&object)));
}

criterion_group!(benches, request);
criterion_main!(benches);
