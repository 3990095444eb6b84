//! EasyTier as a relayed mesh: the hub is the node that both machines know, and neither is let past it.

use std::time::Duration;

use anyhow::{Context as _, Result};
use test_kit::{sites::HUB, wait::eventually};

use super::{At, Running, registry};
use crate::bench::lab::{self, Lab};

pub(super) fn install() -> Result<()> {
    registry::debian("protoc", "protobuf-compiler")?;
    // The messages that its own ones import.
    registry::debian("/usr/include/google/protobuf/timestamp.proto", "libprotobuf-dev")?;
    registry::cargo("easytier-core", &["easytier@2.0.3", "--locked", "--bin", "easytier-core"])
}

pub(super) fn start(lab: &Lab, running: &mut Running) -> Result<String> {
    let program = registry::program("easytier-core");
    let hub = format!("tcp://{HUB}:7840");
    for (at, name, address) in [
        (At::Hub, "easytier at the hub", 1),
        (At::Machine(lab::GPU_1), "easytier of the server", 2),
        (At::Machine(lab::ROBOT_1), "easytier of the client", 3),
    ] {
        let (ipv4, device) = (format!("10.67.0.{address}"), format!("etb{address}"));
        let mut words = vec![program.as_str(), "--network-name", "bench", "--network-secret"];
        words.extend(["bench", "--ipv4", &ipv4, "--dev-name", &device, "--disable-p2p"]);
        words.extend(["--rpc-portal", "0"]);
        match at {
            At::Hub => words.extend(["--listeners", &hub]),
            At::Machine(_) => words.extend(["--no-listener", "--peers", &hub]),
        }
        running.start(lab, at, name, &words)?;
        let p = &lab.product;
        let netns = match at {
            At::Hub => &p.internet.hub,
            At::Machine(n) => &p.machines.get(n).context("a machine")?.place.netns,
        };
        eventually(name, Duration::from_secs(10), || {
            Ok(netns.ip(&format!("link show {device}")).ok())
        })?;
    }
    Ok("10.67.0.2:7998".into())
}
