//! rathole with its Noise transport: the server's machine dials the hub, which opens a port for the client.

use std::fs;

use anyhow::{Context as _, Result};
use test_kit::{
    command::{cmd, stdout},
    sites::HUB,
};

use super::{At, Running, SERVER, registry};
use crate::bench::lab::{self, Lab};

pub(super) fn install() -> Result<()> {
    let words = ["rathole@0.5.0", "--no-default-features", "--features", "server,client,noise"];
    registry::cargo("rathole", &words)
}

pub(super) fn start(lab: &Lab, running: &mut Running) -> Result<String> {
    let program = registry::program("rathole");
    let dir = lab.product.lab.dir();
    let keys = stdout(&mut cmd(&program, ["--genkey"]))?;
    let mut lines = keys.lines();
    let mut key = |of: &str| -> Result<String> {
        lines.find(|l| l.starts_with(of)).context("a key")?;
        Ok(lines.next().context("a key")?.trim().to_owned())
    };
    let (private, public) = (key("Private")?, key("Public")?);
    let server = format!(
        "[server]\nbind_addr = \"{HUB}:7810\"\ndefault_token = \"bench\"\n\
         [server.transport]\ntype = \"noise\"\n[server.transport.noise]\n\
         local_private_key = \"{private}\"\n[server.services.bench]\nbind_addr = \"{HUB}:7811\"\n"
    );
    let client = format!(
        "[client]\nremote_addr = \"{HUB}:7810\"\ndefault_token = \"bench\"\n\
         [client.transport]\ntype = \"noise\"\n[client.transport.noise]\n\
         remote_public_key = \"{public}\"\n[client.services.bench]\nlocal_addr = \"{SERVER}\"\n"
    );
    for (at, name, which, text) in [
        (At::Hub, "rathole at the hub", "server", server),
        (At::Machine(lab::GPU_1), "rathole client", "client", client),
    ] {
        let file = dir.join(format!("rathole-{which}.toml"));
        fs::write(&file, text)?;
        let words = [&program, &format!("--{which}"), &file.display().to_string()];
        running.start(lab, at, name, &words.map(String::as_str))?;
    }
    Ok(format!("{HUB}:7811"))
}
