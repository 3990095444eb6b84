//! Fuzzing of the crates that read what strangers send.

use anyhow::{Result, bail};
use clap::Args;

#[derive(Args, Debug)]
pub(crate) struct Fuzz {
    /// The crate, such as `datapath-wire`.
    package: String,
    /// For how long each target runs.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

impl Fuzz {
    pub(crate) fn run(&self) -> Result<()> {
        bail!("{}: nothing to fuzz for {} s yet", self.package, self.seconds)
    }
}
