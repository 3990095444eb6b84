//! OpenSSH: the client's machine forwards a port to the hub, the server's machine forwards it on.

use std::fs;

use anyhow::Result;
use test_kit::{
    command::{cmd, output},
    sites::HUB,
};

use super::{At, Running, registry};
use crate::bench::lab::{self, Lab};

pub(super) fn install() -> Result<()> {
    registry::debian("sshd", "openssh-server")?;
    registry::debian("ssh", "openssh-client")
}

pub(super) fn start(lab: &Lab, running: &mut Running) -> Result<String> {
    let dir = lab.product.lab.dir().join("ssh");
    if !dir.exists() {
        fs::create_dir_all(&dir)?;
        for key in ["host", "user"] {
            let mut c = cmd("ssh-keygen", ["-q", "-t", "ed25519", "-N", "", "-f"]);
            output(c.arg(dir.join(key)))?;
        }
    }
    let file = |name: &str| dir.join(name).display().to_string();
    let config = format!(
        "Port 7022\nListenAddress {HUB}\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\n\
         UsePAM no\nPermitRootLogin yes\nPidFile none\n",
        file("host"),
        file("user.pub")
    );
    fs::write(dir.join("sshd_config"), config)?;
    // sshd's own empty directory; its package makes it when it is started by init.
    fs::create_dir_all("/run/sshd")?;
    let words = ["/usr/sbin/sshd", "-D", "-e", "-f", &file("sshd_config")];
    running.start(lab, At::Hub, "sshd at the hub", &words)?;
    let (key, known) = (file("user"), file("known_hosts"));
    let host = fs::read_to_string(dir.join("host.pub"))?;
    fs::write(dir.join("known_hosts"), format!("[{HUB}]:7022 {host}"))?;
    let (known, to) = (format!("UserKnownHostsFile={known}"), format!("root@{HUB}"));
    for (machine, name, forward) in [
        (lab::GPU_1, "ssh -R", ["-R", "127.0.0.1:7802:127.0.0.1:7998"]),
        (lab::ROBOT_1, "ssh -L", ["-L", "127.0.0.1:7801:127.0.0.1:7802"]),
    ] {
        let mut words = vec!["ssh", "-N", "-i", &key, "-o", &known, "-p", "7022"];
        words.extend(["-o", "ConnectionAttempts=20"]);
        words.extend(forward);
        words.push(&to);
        running.start(lab, At::Machine(machine), name, &words)?;
    }
    Ok("127.0.0.1:7801".into())
}
