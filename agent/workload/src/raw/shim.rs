//! A pod's supervisor: one small process per pod, in no namespace of the pod's, that starts its
//! attempts, captures their output, restarts them and writes down how it went. It outlives the
//! agent. [`crate::lifecycle::step`] decides; this module does.

use std::{
    collections::VecDeque,
    fs::File,
    io::{self, Write as _},
    os::fd::AsFd as _,
    process::{ExitCode, Stdio},
};

use tokio::{
    io::AsyncReadExt as _,
    net::unix::pipe,
    process::{Child, Command},
    signal::unix::{Signal, SignalKind, signal},
    time::{Instant, sleep_until},
};

use super::{
    cgroup::PodCgroup,
    helper::INIT,
    layout::{PodDir, Stage, Status},
    report::Report,
};
use crate::{
    lifecycle::{Action, Event, Policy, State, begin, resume, step},
    logs::{format::Stream, writer::LogWriter},
};

pub(crate) fn main(dir: &PodDir) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done = runtime.and_then(|runtime| runtime.block_on(run(dir)));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            // Standard error is the pod's `supervisor.log`.
            crate::ignore(writeln!(io::stderr(), "supervisor of {}: {e}", dir.path().display()));
            ExitCode::FAILURE
        }
    }
}

async fn run(dir: &PodDir) -> io::Result<()> {
    let term = signal(SignalKind::terminate())?;
    nix::unistd::setsid()?;
    note_pid()?;
    let record = dir.record()?.ok_or_else(|| io::Error::other("no record"))?;
    PodCgroup::at(&record.cgroup).join_as_supervisor()?;
    let status = dir.status()?.unwrap_or_default();
    if status.stage == Stage::Ended {
        return Ok(());
    }
    let policy = Policy {
        restart: record.spec.restart,
        backoff_limit: record.spec.backoff_limit,
        grace: record.spec.grace,
    };
    let (state, actions) = if status.attempt == 0 { begin() } else { resume(status.failures) };
    let shim = Shim {
        dir: dir.clone(),
        group: PodCgroup::at(&record.cgroup),
        policy,
        status,
        state,
        actions: actions.into(),
        attempt: None,
        wait: None,
        term,
    };
    shim.live().await
}

/// The lock file is this process's standard input, locked by whoever started it.
fn note_pid() -> io::Result<()> {
    let mut lock = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    lock.set_len(0)?;
    write!(lock, "{}", std::process::id())
}

struct Shim {
    dir: PodDir,
    group: PodCgroup,
    policy: Policy,
    status: Status,
    state: State,
    actions: VecDeque<Action>,
    attempt: Option<Attempt>,
    wait: Option<Instant>,
    term: Signal,
}

/// What woke the supervisor.
enum Wake {
    Attempt(io::Result<Option<Event>>),
    Term,
    Timer,
}

impl Shim {
    async fn live(mut self) -> io::Result<()> {
        loop {
            self.note()?;
            while let Some(action) = self.actions.pop_front() {
                if self.act(action)? {
                    return Ok(());
                }
            }
            let wait = self.wait;
            let wake = tokio::select! {
                done = progress(self.attempt.as_mut()) => Wake::Attempt(done),
                _ = self.term.recv() => Wake::Term,
                () = timer(wait) => Wake::Timer,
            };
            let event = match wake {
                Wake::Attempt(done) => match done? {
                    Some(event) => event,
                    None => continue,
                },
                Wake::Term => Event::StopRequested,
                Wake::Timer => {
                    self.wait = None;
                    Event::WaitOver
                }
            };
            self.take(event);
        }
    }

    fn take(&mut self, event: Event) {
        let now = jiff::Timestamp::now();
        match &event {
            Event::Started => {
                self.status.first_started.get_or_insert(now);
                self.status.last_started = Some(now);
            }
            Event::Exited { code, .. } => {
                self.status.last_exit = Some(*code);
                self.attempt = None;
                self.wait = None;
            }
            Event::CannotStart { .. } => self.attempt = None,
            Event::StopRequested | Event::WaitOver => {}
        }
        let state = std::mem::replace(&mut self.state, State::Stopping);
        let (state, actions) = step(state, event, &self.policy);
        self.state = state;
        self.actions.extend(actions);
    }

    /// True when the life is over.
    fn act(&mut self, action: Action) -> io::Result<bool> {
        match action {
            Action::Spawn => {
                self.status.attempt = self.status.attempt.saturating_add(1);
                self.dir.write_status(&self.status)?;
                match Attempt::spawn(&self.dir, self.status.attempt) {
                    Ok(attempt) => self.attempt = Some(attempt),
                    Err(e) => self.take(Event::CannotStart { message: e.to_string() }),
                }
            }
            Action::Terminate => {
                if let Some(attempt) = &self.attempt {
                    attempt.terminate();
                }
            }
            Action::KillTree => self.group.kill_processes()?,
            Action::Wait(time) => self.wait = Some(Instant::now() + time),
            Action::Finish => {
                self.note()?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Writes the status when it differs from what is there.
    fn note(&mut self) -> io::Result<()> {
        let before = self.status.clone();
        self.status.stage = match &self.state {
            State::Starting { .. } => Stage::Starting,
            State::Running { .. } => Stage::Running,
            State::BackOff { failures } => {
                self.status.failures = *failures;
                Stage::BackOff
            }
            State::Stopping => Stage::Stopping,
            State::Ended(outcome) => {
                self.status.outcome = Some(outcome.clone());
                self.status.ended.get_or_insert_with(jiff::Timestamp::now);
                Stage::Ended
            }
        };
        if self.status != before || self.dir.status()?.as_ref() != Some(&self.status) {
            self.dir.write_status(&self.status)?;
        }
        Ok(())
    }
}

async fn timer(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

async fn progress(attempt: Option<&mut Attempt>) -> io::Result<Option<Event>> {
    match attempt {
        Some(attempt) => attempt.progress().await,
        None => std::future::pending().await,
    }
}

/// One run of the entrypoint.
struct Attempt {
    child: Child,
    log: LogWriter,
    report: Option<pipe::Receiver>,
    report_text: Vec<u8>,
    stdout: Option<pipe::Receiver>,
    stderr: Option<pipe::Receiver>,
    begun: Instant,
    failed: Option<Report>,
    exit: Option<i32>,
}

impl Attempt {
    fn spawn(dir: &PodDir, attempt: u32) -> io::Result<Self> {
        let log = LogWriter::open(&dir.logs(), attempt)?;
        let (report_out, report) = os_pipe()?;
        let (stdout_in, stdout) = os_pipe()?;
        let (stderr_in, stderr) = os_pipe()?;
        let child = Command::new("/proc/self/exe")
            .arg0("rlark-agent")
            .arg(INIT)
            .arg(dir.path())
            .stdin(Stdio::from(report_out))
            .stdout(Stdio::from(stdout_in))
            .stderr(Stdio::from(stderr_in))
            .spawn()?;
        Ok(Self {
            child,
            log,
            report: Some(report),
            report_text: Vec::new(),
            stdout: Some(stdout),
            stderr: Some(stderr),
            begun: Instant::now(),
            failed: None,
            exit: None,
        })
    }

    fn terminate(&self) {
        // The child has not been waited for while `id` is there, so the pid is its own.
        if let Some(pid) = self.child.id().and_then(|id| i32::try_from(id).ok()) {
            // Gone already: its end is on its way.
            crate::ignore(nix::sys::signal::kill(
                nix::unistd::Pid::from_raw(pid),
                nix::sys::signal::Signal::SIGTERM,
            ));
        }
    }

    /// Awaits output, the report or the end, whichever is first. Cancel-safe.
    async fn progress(&mut self) -> io::Result<Option<Event>> {
        let (mut report, mut out, mut err) = ([0; 256], vec![0; 16 * 1024], vec![0; 16 * 1024]);
        tokio::select! {
            n = read(&mut self.report, &mut report) => {
                self.report_text.extend_from_slice(report.get(..n?).unwrap_or_default());
                Ok(self.take_report())
            }
            n = read(&mut self.stdout, &mut out) => {
                self.log.write(Stream::Stdout, out.get(..n?).unwrap_or_default())?;
                Ok(self.ended())
            }
            n = read(&mut self.stderr, &mut err) => {
                self.log.write(Stream::Stderr, err.get(..n?).unwrap_or_default())?;
                Ok(self.ended())
            }
            status = self.child.wait(), if self.exit.is_none() => {
                use std::os::unix::process::ExitStatusExt as _;
                let status = status?;
                let code = status.code().or_else(|| status.signal().map(|s| 128 + s));
                self.exit = Some(code.unwrap_or(255));
                Ok(self.ended())
            }
        }
    }

    fn take_report(&mut self) -> Option<Event> {
        let line = self.report_text.strip_suffix(b"\n")?;
        let report = serde_json::from_slice(line).ok()?;
        self.report = None;
        if report == Report::Started {
            return Some(Event::Started);
        }
        self.failed = Some(report);
        self.ended()
    }

    /// The end has come once the helper is gone and both streams are at their ends; the helper goes
    /// only after every process of the pod.
    fn ended(&mut self) -> Option<Event> {
        let code = self.exit?;
        if self.stdout.is_some() || self.stderr.is_some() {
            return None;
        }
        if self.failed.is_none() && !self.report_text.is_empty() && self.report.is_some() {
            return None;
        }
        if let Err(e) = self.log.finish() {
            crate::ignore(writeln!(io::stderr(), "cannot write the pod's log: {e}"));
        }
        Some(match self.failed.take() {
            Some(Report::Impossible(message)) => Event::CannotStart { message },
            Some(Report::Broken(message)) => {
                crate::ignore(
                    self.log.write(Stream::Stderr, format!("rlark: {message}\n").as_bytes()),
                );
                Event::Exited { code, ran: self.begun.elapsed() }
            }
            _ => Event::Exited { code, ran: self.begun.elapsed() },
        })
    }
}

/// Reads some bytes; sets `from` to `None` at its end and never returns then (0 once).
async fn read(from: &mut Option<pipe::Receiver>, into: &mut [u8]) -> io::Result<usize> {
    match from {
        None => std::future::pending().await,
        Some(pipe) => {
            let n = pipe.read(into).await?;
            if n == 0 {
                *from = None;
            }
            Ok(n)
        }
    }
}

/// A pipe whose reading end is non-blocking and ours.
fn os_pipe() -> io::Result<(std::os::fd::OwnedFd, pipe::Receiver)> {
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    Ok((writer, pipe::Receiver::from_owned_fd(reader)?))
}
