//! Ctrl-C and SIGTERM end the work through errors, so that every guard runs.

use anyhow::{Context as _, Result};
use nix::sys::signal::{SigSet, Signal};

/// Blocks both signals in this thread and all later ones; a thread of its own waits for them.
/// The second signal ends the process at once.
pub(crate) fn install() -> Result<()> {
    let mut set = SigSet::empty();
    set.add(Signal::SIGINT);
    set.add(Signal::SIGTERM);
    set.thread_block().context("cannot block signals")?;
    std::thread::spawn(move || {
        if set.wait().is_ok() {
            eprintln!("\ninterrupted: cleaning up (again to give up)");
            test_kit::lab::interrupt();
        }
        drop(set.thread_unblock());
        std::thread::park();
    });
    Ok(())
}
