//! The pods' way out: IPv4 forwarding, and masquerading by an nftables table that is this
//! runtime's alone.

use std::{fs, io, path::Path, process::Stdio};

use cidr::Ipv4Cidr;
use tokio::{io::AsyncWriteExt as _, process::Command};

use super::{address::PodNetwork, error::SetupError};

const FORWARD: &str = "/proc/sys/net/ipv4/ip_forward";

/// Named after the bridge, so that two agents in one namespace do not share it.
fn table(bridge: &str) -> String {
    format!("rlark_{}", bridge.replace('-', "_"))
}

/// Loads the table, replacing one of a predecessor in the same transaction.
///
/// What goes to `site`, the pods of other machines on this LAN, keeps its source: the far end knows
/// its peer by that address.
pub(crate) async fn ensure(
    bridge: &str,
    net: PodNetwork,
    site: Ipv4Cidr,
) -> Result<(), SetupError> {
    let (table, cidr) = (table(bridge), net.cidr());
    nft(&format!(
        "add table ip {table}\ndelete table ip {table}\n\
         table ip {table} {{\n\
           chain postrouting {{\n\
             type nat hook postrouting priority srcnat; policy accept;\n\
             ip saddr {cidr} ip daddr != {site} oifname != \"{bridge}\" masquerade\n\
           }}\n\
         }}\n"
    ))
    .await
}

/// Removes the table if it is there.
pub(crate) async fn remove(bridge: &str) -> Result<(), SetupError> {
    let table = table(bridge);
    nft(&format!("add table ip {table}\ndelete table ip {table}\n")).await
}

async fn nft(script: &str) -> Result<(), SetupError> {
    let io_error = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => SetupError::NoNft,
        _ => SetupError::Io { what: "run", path: "nft".into(), source },
    };
    let mut child = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(io_error)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A child that died early says so by its exit status.
        crate::ignore(stdin.write_all(script.as_bytes()).await);
    }
    let done = child.wait_with_output().await.map_err(io_error)?;
    if done.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&done.stderr).trim().to_owned();
    Err(SetupError::Nft { message })
}

/// Switches forwarding on. `marker` notes that it was off, for [`restore_forwarding`]; it is a
/// file so that this survives a crash.
pub(crate) fn enable_forwarding(marker: &Path) -> Result<(), SetupError> {
    let at = |path: &Path, what| {
        let path = path.to_owned();
        move |source| SetupError::Io { what, path, source }
    };
    let now = fs::read_to_string(FORWARD).map_err(at(Path::new(FORWARD), "read"))?;
    if now.trim() == "0" {
        fs::write(marker, b"").map_err(at(marker, "write"))?;
        fs::write(FORWARD, "1").map_err(at(Path::new(FORWARD), "write"))?;
    }
    Ok(())
}

/// Puts back what was before, if it was this runtime that changed it.
pub(crate) fn restore_forwarding(marker: &Path) -> Result<(), SetupError> {
    if marker.exists() {
        let fail = |source| SetupError::Io { what: "write", path: FORWARD.into(), source };
        fs::write(FORWARD, "0").map_err(fail)?;
        fs::remove_file(marker).map_err(|source| SetupError::Io {
            what: "remove",
            path: marker.to_owned(),
            source,
        })?;
    }
    Ok(())
}
