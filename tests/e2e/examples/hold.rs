//! Two sites that stay up until the input ends: a place to look around in.

use std::io::{Read as _, Write as _};

fn main() -> anyhow::Result<()> {
    let p = test_e2e::two_sites()?;
    writeln!(std::io::stdout(), "{}", p.lab.dir().display())?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
