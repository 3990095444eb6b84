//! What the helpers below the supervisor do most of the time: pass signals on to one child, reap
//! everything that ends, and end with that child's exit code.

use std::process::ExitCode;

use nix::{
    errno::Errno,
    sys::{
        signal::{SigSet, Signal, kill},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};

/// Signals that are passed on.
const FORWARDED: [Signal; 6] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

fn awaited() -> SigSet {
    let mut set = SigSet::empty();
    for signal in FORWARDED.into_iter().chain([Signal::SIGCHLD]) {
        set.add(signal);
    }
    set
}

/// From here on signals wait until [`babysit`] takes them.
pub(crate) fn hold_signals() -> nix::Result<()> {
    awaited().thread_block()
}

/// Lets this thread, and what is spawned from it, have signals again.
pub(crate) fn release_signals() -> nix::Result<()> {
    awaited().thread_unblock()
}

/// Serves `child` until it ends. Exit code of the child, or 128 plus its signal.
pub(crate) fn babysit(child: Pid) -> nix::Result<u8> {
    loop {
        loop {
            match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) if pid == child => {
                    return Ok(u8::try_from(code & 0xff).unwrap_or(u8::MAX));
                }
                Ok(WaitStatus::Signaled(pid, signal, _)) if pid == child => {
                    return Ok(u8::try_from(128 + signal as i32).unwrap_or(u8::MAX));
                }
                Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => break,
                Ok(_) | Err(Errno::EINTR) => {}
                Err(e) => return Err(e),
            }
        }
        match awaited().wait()? {
            Signal::SIGCHLD => {}
            signal => match kill(child, signal) {
                Ok(()) | Err(Errno::ESRCH) => {}
                Err(e) => return Err(e),
            },
        }
    }
}

/// The exit code for a helper that could not do its part.
pub(crate) fn broken() -> ExitCode {
    ExitCode::from(125)
}
