//! What every end-to-end test starts from; the tests are in `tests/`. They run the built programs,
//! so `cargo xtask test e2e` builds those first.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use test_kit::product::Product;

/// The directory of the built programs: these tests are built beside them.
pub fn programs() -> Result<PathBuf> {
    let exe = std::env::current_exe()?;
    let dir = exe.ancestors().nth(2).context("target/PROFILE/deps/TEST")?.to_owned();
    let server = dir.join("rlark-server");
    anyhow::ensure!(server.is_file(), "{} is not built: cargo xtask test e2e", server.display());
    Ok(dir)
}

pub fn kubectl() -> PathBuf {
    let ours = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/tools/kubectl"));
    if ours.is_file() { ours } else { "kubectl".into() }
}

/// A server that runs, and no site yet.
pub fn server() -> Result<Product> {
    let mut p = Product::new(&programs()?, kubectl())?;
    p.start_server()?;
    Ok(p)
}

/// A server and the two sites of the demo.
pub fn two_sites() -> Result<Product> {
    let mut p = server()?;
    p.join("cloud", "gpu-1", &[("site", "cloud")])?;
    p.join("edge", "robot-1", &[("site", "edge")])?;
    p.online()?;
    Ok(p)
}

pub fn example() -> Result<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/examples/two-sites.yaml");
    std::fs::read_to_string(path).with_context(|| path.to_owned())
}
