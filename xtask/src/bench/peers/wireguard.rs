//! WireGuard in user space: the hub is a router between the two machines.

use std::{io::Write as _, process::Stdio, time::Duration};

use anyhow::{Context as _, Result, ensure};
use test_kit::{
    command::{cmd, output, stdout},
    net::Netns,
    sites::HUB,
    wait::eventually,
};

use super::{At, Running, registry};
use crate::bench::lab::{self, Lab};

const MODULE: &str = "module rlark.io/bench/wireguard

go 1.22

require golang.zx2c4.com/wireguard v0.0.0-20231211153847-12269c276173
";

pub(super) fn install() -> Result<()> {
    registry::debian("wg", "wireguard-tools")?;
    registry::go(MODULE, &[("wireguard-go", "golang.zx2c4.com/wireguard")], "wireguard")
}

/// A key pair by `wg`: private, public.
fn keys() -> Result<(String, String)> {
    let private = stdout(&mut cmd("wg", ["genkey"]))?.trim().to_owned();
    let mut c = cmd("wg", ["pubkey"]);
    let mut child = c.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("wg")?;
    child.stdin.take().context("wg's input")?.write_all(private.as_bytes())?;
    let out = child.wait_with_output()?;
    ensure!(out.status.success(), "wg pubkey");
    Ok((private, String::from_utf8_lossy(&out.stdout).trim().to_owned()))
}

pub(super) fn start(lab: &Lab, running: &mut Running) -> Result<String> {
    let p = &lab.product;
    let program = registry::program("wireguard-go");
    let (hub, server, client) = (keys()?, keys()?, keys()?);
    let spoke = |private: &str| {
        format!(
            "[Interface]\nPrivateKey = {private}\n[Peer]\nPublicKey = {}\nEndpoint = {HUB}:7830\n\
             AllowedIPs = 10.66.0.0/24\nPersistentKeepalive = 5\n",
            hub.1
        )
    };
    let router = format!(
        "[Interface]\nPrivateKey = {}\nListenPort = 7830\n[Peer]\nPublicKey = {}\n\
         AllowedIPs = 10.66.0.2/32\n[Peer]\nPublicKey = {}\nAllowedIPs = 10.66.0.3/32\n",
        hub.0, server.1, client.1
    );
    p.internet.hub.forward()?;
    for (at, name, address, text) in [
        (At::Hub, "wireguard-go at the hub", 1, router),
        (At::Machine(lab::GPU_1), "wireguard-go of the server", 2, spoke(&server.0)),
        (At::Machine(lab::ROBOT_1), "wireguard-go of the client", 3, spoke(&client.0)),
    ] {
        let netns: &Netns = match at {
            At::Hub => &p.internet.hub,
            At::Machine(n) => &p.machines.get(n).context("a machine")?.place.netns,
        };
        // The name of its socket is the interface's, on the machine that all of these are.
        let interface = format!("wgb{address}");
        running.start(lab, at, name, &[&program, "--foreground", &interface])?;
        eventually(name, Duration::from_secs(5), || {
            Ok(netns.ip(&format!("link show {interface}")).ok())
        })?;
        let file = p.lab.dir().join(format!("{interface}.conf"));
        std::fs::write(&file, text)?;
        let net = format!("--net={}", netns.path().display());
        let set = cmd("nsenter", [&net, "wg", "setconf", &interface, &file.display().to_string()]);
        output(&mut { set })?;
        netns.ip(&format!("addr add 10.66.0.{address}/24 dev {interface}"))?;
        netns.ip(&format!("link set {interface} up"))?;
    }
    Ok("10.66.0.2:7998".into())
}
