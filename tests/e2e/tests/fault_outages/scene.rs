//! Two sites, a server, and load to it from beside it and from the other site.

use std::time::Duration;

use anyhow::{Result, ensure};
use test_e2e::{
    load::{Event, Load, Server, longest_gap, now},
    pod,
};
use test_kit::product::Product;

const LIMIT: Duration = Duration::from_secs(40);
/// Of the relay and at once noticed: connections that always move.
pub(crate) const BUSY: [&str; 4] = ["ping", "stream", "up", "down"];
/// All that goes on without hub and carriers.
pub(crate) const NEAR: &str = "ping stream up down udp icmp";

pub(crate) struct Scene {
    pub(crate) near: Load,
    pub(crate) far: Load,
    began: f64,
    _server: Server,
}

impl Scene {
    pub(crate) fn start(p: &mut Product, near: &str, far: &str) -> Result<Self> {
        let tasks = [("server", "cloud"), ("near", "cloud"), ("far", "edge")];
        let job = test_e2e::idle_job("j", "d", &tasks);
        p.apply(&(test_e2e::domain("d", "10.98.0.0/24") + &job))?;
        test_e2e::phase(p, "j", "Running", LIMIT)?;
        let (a, b, c) = (pod(p, 0, "j-server-0")?, pod(p, 0, "j-near-0")?, pod(p, 1, "j-far-0")?);
        let server = Server::start(p, &a)?;
        let name = "j-server-0.rlark-domain";
        let near = Load::start(p, "near", &b, name, near)?;
        let far = Load::start(p, "far", &c, name, far)?;
        Ok(Self { near, far, began: now()?, _server: server })
    }

    /// Nothing is lost at the other site, and nothing was to be noticed within the own one.
    pub(crate) fn finish(self) -> Result<Vec<Event>> {
        let far = self.far.finish()?;
        direct_went_on(self.near, self.began)?;
        Ok(far)
    }

    /// As [`Self::finish`], where relayed flows were to end.
    pub(crate) fn stop(self) -> Result<Vec<Event>> {
        let far = self.far.stop()?;
        direct_went_on(self.near, self.began)?;
        Ok(far)
    }
}

/// Flows of the direct path do not need what was taken away.
fn direct_went_on(near: Load, began: f64) -> Result<()> {
    let near = near.finish()?;
    for kind in BUSY.into_iter().chain(["udp", "icmp"]) {
        let gap = longest_gap(&near, kind, began, f64::INFINITY);
        ensure!(gap < 1.5, "direct {kind} paused for {gap} s");
    }
    Ok(())
}
