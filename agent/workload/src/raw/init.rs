//! The middle helper. Only the children of a process that unshared its pid namespace are in the
//! new one, and it must do so afresh for each attempt; hence a process for it.

use std::{
    os::unix::process::CommandExt as _,
    process::{Command, ExitCode, Stdio},
};

use nix::{
    sched::{CloneFlags, unshare},
    sys::signal::Signal,
    unistd::Pid,
};

use super::{
    babysit::{babysit, broken, hold_signals},
    helper::PID1,
    layout::PodDir,
    netns,
    report::Report,
};

pub(crate) fn main(dir: &PodDir) -> ExitCode {
    match run(dir) {
        Ok(code) => ExitCode::from(code),
        Err(message) => {
            // Nobody is left to tell when the supervisor is gone.
            crate::ignore(Report::Broken(message).send());
            broken()
        }
    }
}

fn run(dir: &PodDir) -> Result<u8, String> {
    // When the supervisor dies, so does the pod: nobody would capture its output.
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).map_err(|e| format!("prctl: {e}"))?;
    hold_signals().map_err(|e| format!("cannot block signals: {e}"))?;
    let record = dir.record().map_err(|e| format!("cannot read the pod's record: {e}"))?;
    let record = record.ok_or("the pod's record is gone")?;
    netns::enter(&record.netns).map_err(|e| e.to_string())?;
    unshare(
        CloneFlags::CLONE_NEWNS
            | CloneFlags::CLONE_NEWPID
            | CloneFlags::CLONE_NEWUTS
            | CloneFlags::CLONE_NEWIPC,
    )
    .map_err(|e| format!("cannot create namespaces: {e}"))?;
    let child = Command::new("/proc/self/exe")
        .arg0("rlark-agent")
        .arg(PID1)
        .arg(dir.path())
        .stdin(Stdio::inherit())
        .spawn()
        .map_err(|e| format!("cannot start the pod's first process: {e}"))?;
    let pid = i32::try_from(child.id()).map_err(|e| e.to_string())?;
    babysit(Pid::from_raw(pid)).map_err(|e| format!("cannot wait for the pod: {e}"))
}
