//! The pod's first process: makes the pod's view of the machine, starts the entrypoint, reaps.
//! When it ends, the kernel kills whatever the pod still runs.

use std::{
    ffi::OsStr,
    io,
    os::unix::{ffi::OsStrExt as _, fs::PermissionsExt as _},
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

use nix::{sys::signal::Signal, unistd::Pid};
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};

use super::{
    babysit::{babysit, broken, hold_signals, release_signals},
    cgroup::PodCgroup,
    layout::{PodDir, PodRecord},
    mounts::{self, BIN, WORK},
    report::Report,
};

/// Where a pod's programs are looked for, after the artifact.
const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What root in a pod may do: what container engines allow, and real-time scheduling and locked
/// memory, which robot controllers need. No mounting, no other namespaces, no kernel modules, and no
/// device nodes: one could be made for the machine's disk.
const KEPT: [CapabilitySet; 14] = [
    CapabilitySet::CHOWN,
    CapabilitySet::DAC_OVERRIDE,
    CapabilitySet::FSETID,
    CapabilitySet::FOWNER,
    CapabilitySet::SETGID,
    CapabilitySet::SETUID,
    CapabilitySet::SETFCAP,
    CapabilitySet::SETPCAP,
    CapabilitySet::NET_BIND_SERVICE,
    CapabilitySet::SYS_CHROOT,
    CapabilitySet::KILL,
    CapabilitySet::AUDIT_WRITE,
    CapabilitySet::SYS_NICE,
    CapabilitySet::IPC_LOCK,
];

/// Raw and packet sockets, and marks: of the pod's own namespace. On the machine's network they would listen to the machine and write its
/// packets, and a socket with the relay's mark would pass for the relay.
const KEPT_IN_OWN_NETWORK: CapabilitySet = CapabilitySet::NET_RAW;

pub(crate) fn main(dir: &PodDir) -> ExitCode {
    match run(dir) {
        Ok(code) => ExitCode::from(code),
        Err(report) => {
            // Nobody is left to tell when the supervisor is gone.
            crate::ignore(report.send());
            broken()
        }
    }
}

fn run(dir: &PodDir) -> Result<u8, Report> {
    let broken = |what: &str, e: &dyn std::fmt::Display| Report::Broken(format!("{what}: {e}"));
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).map_err(|e| broken("prctl", &e))?;
    hold_signals().map_err(|e| broken("cannot block signals", &e))?;
    let record = dir.record().map_err(|e| broken("cannot read the pod's record", &e))?;
    let record = record.ok_or_else(|| Report::Broken("the pod's record is gone".to_owned()))?;
    PodCgroup::at(&record.cgroup)
        .join_as_pod()
        .map_err(|e| broken("cannot join the pod's cgroup", &e))?;
    rustix::system::sethostname(record.spec.name.as_bytes())
        .map_err(|e| broken("cannot set the host name", &e))?;
    mounts::set_up(dir, &record).map_err(|e| broken("cannot set up the pod's files", &e))?;
    let command = entrypoint(&record)?;
    let own_network = record.spec.host_network.is_none();
    drop_capabilities(own_network).map_err(|e| broken("cannot drop capabilities", &e))?;
    let child = spawn(command).map_err(|e| {
        let program = record.spec.entrypoint.first().map_or("", String::as_str);
        Report::Impossible(format!("entrypoint {program:?} cannot be executed: {e}"))
    })?;
    Report::Started.send().map_err(|e| broken("cannot report", &e))?;
    babysit(child).map_err(|e| broken("cannot wait for the entrypoint", &e))
}

/// The command, resolved here so that what is missing has a name.
fn entrypoint(record: &PodRecord) -> Result<Command, Report> {
    let artifact = record.artifact.as_deref().and_then(Path::file_name).map(Path::new);
    let in_bin = artifact.map(|name| Path::new(BIN).join(name));
    let path =
        if in_bin.is_some() { format!("{BIN}:{SYSTEM_PATH}") } else { SYSTEM_PATH.to_owned() };
    let (program, arguments) = match (record.spec.entrypoint.split_first(), in_bin) {
        (Some((program, arguments)), _) => (resolve(program, &path)?, arguments),
        (None, Some(artifact)) => (artifact, [].as_slice()),
        (None, None) => return Err(Report::Impossible("nothing to run".to_owned())),
    };
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .env("PATH", path)
        .env("HOME", WORK)
        .env("HOSTNAME", &record.spec.name)
        .env("TMPDIR", "/tmp")
        .envs(record.spec.environment.iter().map(|(k, v)| (k, v)))
        .current_dir(WORK)
        .stdin(Stdio::null());
    Ok(command)
}

fn resolve(program: &str, path: &str) -> Result<PathBuf, Report> {
    let runnable =
        |p: &Path| p.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
    let missing =
        |place: &str| Report::Impossible(format!("entrypoint {program:?} not found in {place}"));
    if program.contains('/') {
        // Relative to the working directory, as the pod itself would see it.
        let whole = Path::new(WORK).join(program);
        return if runnable(&whole) { Ok(whole) } else { Err(missing(WORK)) };
    }
    path.split(':')
        .map(|dir| Path::new(dir).join(OsStr::from_bytes(program.as_bytes())))
        .find(|p| !program.is_empty() && runnable(p))
        .ok_or_else(|| missing(path))
}

fn drop_capabilities(own_network: bool) -> rustix::io::Result<()> {
    let more = own_network.then_some(KEPT_IN_OWN_NETWORK);
    let kept = KEPT.into_iter().chain(more).fold(CapabilitySet::empty(), CapabilitySet::union);
    for capability in CapabilitySet::all().difference(kept).iter() {
        match remove_capability_from_bounding_set(capability) {
            // One that this kernel does not know.
            Err(rustix::io::Errno::INVAL) => {}
            other => other?,
        }
    }
    Ok(())
}

/// Spawns from a thread whose signals are not blocked, since the child inherits that; this
/// thread's must stay blocked.
fn spawn(mut command: Command) -> io::Result<Pid> {
    let spawned = std::thread::spawn(move || {
        release_signals()?;
        command.spawn()
    });
    let child =
        spawned.join().map_err(|_panic| io::Error::other("the spawning thread panicked"))??;
    i32::try_from(child.id()).map(Pid::from_raw).map_err(io::Error::other)
}
