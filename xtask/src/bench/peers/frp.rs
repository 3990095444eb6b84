//! frp with encryption: the server's machine dials the hub, which opens a port for the client.

use std::fs;

use anyhow::Result;
use test_kit::sites::HUB;

use super::{At, Running, registry};
use crate::bench::lab::{self, Lab};

const MODULE: &str = "module rlark.io/bench/frp

go 1.22

require github.com/fatedier/frp v0.61.0

// As in its own go.mod, which a program built from outside does not follow.
replace github.com/hashicorp/yamux => github.com/fatedier/yamux v0.0.0-20230628132301-7aca4898904d
";

pub(super) fn install() -> Result<()> {
    let packages = [
        ("frps", "github.com/fatedier/frp/cmd/frps"),
        ("frpc", "github.com/fatedier/frp/cmd/frpc"),
    ];
    registry::go(MODULE, &packages, "frp")
}

pub(super) fn start(lab: &Lab, running: &mut Running) -> Result<String> {
    let dir = lab.product.lab.dir();
    let server = format!("bindAddr = \"{HUB}\"\nproxyBindAddr = \"{HUB}\"\nbindPort = 7820\n");
    let client = format!(
        "serverAddr = \"{HUB}\"\nserverPort = 7820\nloginFailExit = false\n[[proxies]]\nname = \"bench\"\ntype = \"tcp\"\n\
         localIP = \"127.0.0.1\"\nlocalPort = 7998\nremotePort = 7821\n\
         transport.useEncryption = true\n"
    );
    for (at, name, program, text) in [
        (At::Hub, "frps at the hub", "frps", server),
        (At::Machine(lab::GPU_1), "frpc", "frpc", client),
    ] {
        let file = dir.join(format!("{program}.toml"));
        fs::write(&file, text)?;
        let words = [&registry::program(program), "-c", &file.display().to_string()];
        running.start(lab, at, name, &words)?;
    }
    Ok(format!("{HUB}:7821"))
}
