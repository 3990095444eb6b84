//! The API beside many objects.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use test_kit::{
    command::{output, stdout},
    product::Product,
};

use super::{Found, lab::Lab, series::Series};
use crate::{
    report::{Figure, Goal},
    setup,
    ui::Progress,
};

const OBJECTS: usize = 10_000;

pub(super) fn run(lab: &mut Lab, found: &mut Found, _: &Progress) -> Result<()> {
    found.figures.push(kubectl_get(&lab.product)?);
    Ok(())
}

/// `kubectl get` of one object among many, less what kubectl needs to start.
pub(super) fn kubectl_get(p: &Product) -> Result<Figure> {
    fill(p)?;
    let timed = |args: &[&str]| -> Result<f64> {
        let start = Instant::now();
        output(&mut p.kubectl(args.iter().copied()))?;
        Ok(start.elapsed().as_secs_f64() * 1e3)
    };
    let (mut get, mut start) = (Series::default(), Series::default());
    for _ in 0..21 {
        get.round(vec![timed(&["get", "configmap", "bench-5000"])?]);
        start.round(vec![timed(&["version", "--client"])?]);
    }
    let (extra, goal) = (get.paired(&start, |get, start| get - start), Goal::AtMost(30.0));
    Ok(Figure::new("kubectl.get.p50_ms", extra, "ms", goal, 21)
        .beside("kubectl start", start.median()))
}

fn fill(p: &Product) -> Result<()> {
    let items: Vec<Value> = (0..OBJECTS)
        .map(|i| {
            serde_json::json!({"apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": format!("bench-{i}"), "labels": {"bench": "true"}},
                "data": {"value": i.to_string()}})
        })
        .collect();
    let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": items});
    let file = p.lab.dir().join("objects.json");
    std::fs::write(&file, serde_json::to_vec(&list)?)?;
    let mut c = p.kubectl(["create", "--validate=false", "-o", "name", "-f"]);
    let made = stdout(c.arg(&file)).with_context(|| setup::kubectl().display().to_string())?;
    ensure!(made.lines().count() == OBJECTS, "{} objects were created", made.lines().count());
    Ok(())
}
