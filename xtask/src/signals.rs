//! Ctrl-C and SIGTERM end the work through errors, so that every guard runs.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result};

/// The first signal lets every wait end with an error; the second ends the process at once.
pub(crate) fn install() -> Result<()> {
    static SEEN: AtomicBool = AtomicBool::new(false);
    ctrlc::set_handler(|| {
        if SEEN.swap(true, Ordering::SeqCst) {
            #[expect(clippy::exit, reason = "the person gave up on the clean-up")]
            std::process::exit(130);
        }
        eprintln!("\ninterrupted: cleaning up (again to give up)");
        test_kit::lab::interrupt();
    })
    .context("cannot handle signals")
}
