//! Outages under load whose every byte is known: the hub away, carriers cut, NATs that forget, addresses
//! that change. Flows of all kinds ride the same outage, and the scenarios run side by side, each in
//! a lab of its own, since most of their time is waiting.

use std::thread;

use anyhow::{Context as _, Result, anyhow};
use test_kit::product::Product;

mod cuts;
mod dead;
mod hub;
mod moves;
mod scene;

type Scenario = fn(&mut Product) -> Result<()>;

#[test]
fn flows_outlive_what_carries_them() -> Result<()> {
    let all: [(&str, Scenario); 4] = [
        ("the hub is away", hub::away),
        ("carriers are cut", cuts::every_two_seconds),
        ("a site moves", moves::away),
        ("a node stays dead", dead::for_good),
    ];
    let mut failed = Vec::new();
    thread::scope(|scope| -> Result<()> {
        let mut running = Vec::new();
        for (what, scenario) in all {
            let mut p = test_e2e::two_sites()?;
            running.push(scope.spawn(move || {
                let result = scenario(&mut p).context(what);
                result.map_err(|e| p.explain(e))
            }));
        }
        for thread in running {
            let ended = thread.join().map_err(|_panic| anyhow!("a scenario panicked"));
            failed.extend(ended.and_then(|r| r).err().map(|e| format!("{e:?}")));
        }
        Ok(())
    })?;
    failed.is_empty().then_some(()).with_context(|| failed.join("\n\n"))
}
