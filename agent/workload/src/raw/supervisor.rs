//! The agent's side of the supervisors: starts them, finds running ones again, notices their end,
//! and starts a lost one anew under the pod's own restart policy.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read as _},
    os::fd::OwnedFd,
    path::PathBuf,
    process::Stdio,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rustix::{
    fs::{FlockOperation, flock},
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};
use tokio::{
    process::{Child, Command},
    sync::watch,
};
use tokio_util::task::AbortOnDropHandle;

use super::{
    DYING,
    cgroup::PodCgroup,
    error::PodError,
    helper::SHIM,
    io_at,
    layout::{PodDir, PodRecord, Stage},
};
use crate::{
    inotify::{Watch, pollable},
    lifecycle::{Event, Outcome, Policy, State, step},
    spec::PodUid,
};

/// Beyond the grace period, for a supervisor that does not do its part.
const PATIENCE: Duration = Duration::from_secs(5);
/// Exit code of what was ended by SIGKILL.
const KILLED: i32 = 137;

/// What the agent was started with.
#[derive(Clone, Debug)]
struct Terms {
    helper: PathBuf,
    allow_host_network: bool,
}

/// All supervisors of one runtime. The only one who starts them.
#[derive(Debug)]
pub(super) struct Supervisors {
    terms: Terms,
    changes: watch::Sender<u64>,
    watched: Mutex<BTreeMap<PodUid, Watched>>,
}

#[derive(Debug)]
struct Watched {
    ended: watch::Receiver<bool>,
    shared: Arc<Shared>,
    _task: AbortOnDropHandle<()>,
}

/// Between a pod's watcher and those who want it stopped.
#[derive(Debug, Default)]
struct Shared {
    stopping: AtomicBool,
    /// The supervisor that lives.
    pidfd: Mutex<Option<Arc<OwnedFd>>>,
}

impl Shared {
    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    fn set(&self, life: &Life) {
        *self.pidfd.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&life.pidfd));
        if self.is_stopping() {
            self.terminate();
        }
    }

    fn terminate(&self) {
        let pidfd = self.pidfd.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(pidfd) = pidfd {
            // One that has ended already needs no signal.
            crate::ignore(pidfd_send_signal(&pidfd, Signal::TERM));
        }
    }
}

/// One supervisor process.
struct Life {
    pidfd: Arc<OwnedFd>,
    /// Set when this process is its parent and has to reap it.
    child: Option<Child>,
}

impl Life {
    async fn end(mut self) -> io::Result<()> {
        let poll = pollable(self.pidfd.try_clone()?)?;
        let _ready = poll.readable().await?;
        if let Some(child) = &mut self.child {
            child.wait().await?;
        }
        Ok(())
    }
}

impl Supervisors {
    pub(super) fn new(helper: PathBuf, allow_host_network: bool) -> Self {
        let terms = Terms { helper, allow_host_network };
        Self { terms, changes: watch::Sender::new(0), watched: Mutex::default() }
    }

    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub(super) fn changed(&self) {
        self.changes.send_modify(|n| *n = n.wrapping_add(1));
    }

    /// Starts the pod's first supervisor.
    pub(super) async fn spawn(&self, dir: &PodDir, record: &PodRecord) -> Result<(), PodError> {
        let life = launch(&self.terms.helper, dir, record).await?;
        self.watch(dir, record, life);
        Ok(())
    }

    /// Finds the pod's supervisor, or deals with its loss.
    pub(super) async fn take_over(&self, dir: &PodDir, record: &PodRecord) -> Result<(), PodError> {
        let life = match find(dir).await.map_err(io_at("find the supervisor of", dir.path()))? {
            Some(life) => Some(life),
            None => recover(&self.terms, dir, record).await?,
        };
        if let Some(life) = life {
            self.watch(dir, record, life);
        }
        self.changed();
        Ok(())
    }

    fn watch(&self, dir: &PodDir, record: &PodRecord, life: Life) {
        let (ended_tx, ended) = watch::channel(false);
        let shared = Arc::new(Shared::default());
        shared.set(&life);
        let watcher = Watcher {
            terms: self.terms.clone(),
            dir: dir.clone(),
            record: record.clone(),
            shared: Arc::clone(&shared),
            changes: self.changes.clone(),
        };
        let task = AbortOnDropHandle::new(tokio::spawn(async move {
            watcher.run(life).await;
            ended_tx.send_replace(true);
        }));
        let watched = Watched { ended, shared, _task: task };
        self.lock().insert(record.spec.uid.clone(), watched);
        self.changed();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<PodUid, Watched>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the pod's supervisor to stop it and waits until it has, or until it takes too long.
    pub(super) async fn stop(&self, dir: &PodDir, record: &PodRecord) -> Result<(), PodError> {
        let uid = &record.spec.uid;
        let found = self.lock().get(uid).map(|w| (w.ended.clone(), Arc::clone(&w.shared)));
        if let Some((mut ended, shared)) = found {
            shared.stopping.store(true, Ordering::SeqCst);
            shared.terminate();
            let limit = record.spec.grace.saturating_add(PATIENCE);
            if tokio::time::timeout(limit, ended.wait_for(|e| *e)).await.is_err() {
                tracing::warn!(%uid, "the supervisor did not stop its pod in time; killing both");
            }
            self.lock().remove(uid);
        } else if let Some(life) =
            find(dir).await.map_err(io_at("find the supervisor of", dir.path()))?
        {
            // One that could not be taken over; its group is killed by the caller.
            crate::ignore(pidfd_send_signal(&life.pidfd, Signal::TERM));
            crate::ignore(
                tokio::time::timeout(record.spec.grace.saturating_add(PATIENCE), life.end()).await,
            );
        }
        Ok(())
    }

    /// Turns true once the pod writes nothing more.
    pub(super) fn ended(&self, uid: &PodUid, already: bool) -> watch::Receiver<bool> {
        let watched = self.lock().get(uid).map(|w| w.ended.clone());
        watched.filter(|_| !already).unwrap_or_else(|| watch::channel(true).1)
    }
}

struct Watcher {
    terms: Terms,
    dir: PodDir,
    record: PodRecord,
    shared: Arc<Shared>,
    changes: watch::Sender<u64>,
}

impl Watcher {
    async fn run(&self, mut life: Life) {
        let uid = &self.record.spec.uid;
        loop {
            if let Err(error) = self.until_end(life).await {
                tracing::error!(%uid, %error, "cannot watch a pod");
            }
            let ended = self.dir.status().ok().flatten().is_some_and(|s| s.stage == Stage::Ended);
            if ended || self.shared.is_stopping() {
                break;
            }
            match recover(&self.terms, &self.dir, &self.record).await {
                Ok(Some(next)) => {
                    self.shared.set(&next);
                    life = next;
                    self.bump();
                }
                Ok(None) => break,
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::error!(%uid, error, "cannot restart a pod's supervisor");
                    break;
                }
            }
        }
        self.bump();
    }

    async fn until_end(&self, life: Life) -> io::Result<()> {
        let mut files = Watch::new(self.dir.path())?;
        self.bump();
        let end = life.end();
        tokio::pin!(end);
        loop {
            tokio::select! {
                done = &mut end => return done,
                changed = files.changed() => { changed?; self.bump(); }
            }
        }
    }

    fn bump(&self) {
        self.changes.send_modify(|n| *n = n.wrapping_add(1));
    }
}

async fn launch(helper: &PathBuf, dir: &PodDir, record: &PodRecord) -> Result<Life, PodError> {
    let lock = open_lock(dir).map_err(io_at("open", &dir.lock()))?;
    if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        let found = find(dir).await.map_err(io_at("find the supervisor of", dir.path()))?;
        if let Some(life) = found {
            return Ok(life);
        }
    }
    let errors = dir.path().join("supervisor.log");
    let stderr = File::options().create(true).append(true).open(&errors);
    let stderr = stderr.map_err(io_at("open", &errors))?;
    PodCgroup::at(&record.cgroup).create().map_err(io_at("create cgroup", &record.cgroup))?;
    let child = Command::new(helper)
        .arg0("rlark-agent")
        .arg(SHIM)
        .arg(dir.path())
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::from(lock))
        .stdout(Stdio::null())
        .stderr(Stdio::from(stderr))
        .spawn()
        .map_err(io_at("start the supervisor of", dir.path()))?;
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::other("it has no pid"));
    let pidfd = pid.and_then(|pid| Ok(pidfd_open(pid, PidfdFlags::NONBLOCK)?));
    let pidfd = pidfd.map_err(io_at("watch the supervisor of", dir.path()))?;
    Ok(Life { pidfd: Arc::new(pidfd), child: Some(child) })
}

fn open_lock(dir: &PodDir) -> io::Result<File> {
    File::options().create(true).truncate(false).read(true).write(true).open(dir.lock())
}

/// The living supervisor, if there is one: it holds the lock, and its pid stands in it.
async fn find(dir: &PodDir) -> io::Result<Option<Life>> {
    // A supervisor writes its pid as its first act, so an empty lock fills within moments.
    for _ in 0..100 {
        let Some(mut lock) = open_existing(dir)? else { return Ok(None) };
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            return Ok(None);
        }
        let mut text = String::new();
        lock.read_to_string(&mut text)?;
        let pidfd = text
            .parse()
            .ok()
            .and_then(Pid::from_raw)
            .and_then(|pid| pidfd_open(pid, PidfdFlags::NONBLOCK).ok());
        // Still locked after the descriptor was opened: so it is this process and no successor
        // of its pid.
        if let Some(pidfd) = pidfd
            && flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err()
        {
            return Ok(Some(Life { pidfd: Arc::new(pidfd), child: None }));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, "the lock is held, but by no known process"))
}

fn open_existing(dir: &PodDir) -> io::Result<Option<File>> {
    match File::options().read(true).write(true).open(dir.lock()) {
        Ok(file) => Ok(Some(file)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// A supervisor is gone without having written an end: what is left of the pod is killed, and the
/// loss counts as a failure by SIGKILL. A pod on the machine's network is not started again where that is allowed no more: unlike one
/// that was found running, it would be a new one.
async fn recover(
    terms: &Terms,
    dir: &PodDir,
    record: &PodRecord,
) -> Result<Option<Life>, PodError> {
    let group = PodCgroup::at(&record.cgroup);
    let fail = || io_at("kill cgroup", &record.cgroup);
    group.kill_all().map_err(fail())?;
    if !group.emptied(DYING).await.map_err(fail())? {
        return Err(PodError::Undying { uid: record.spec.uid.clone(), seconds: DYING.as_secs() });
    }
    let mut status =
        dir.status().map_err(io_at("read the status in", dir.path()))?.unwrap_or_default();
    let policy = Policy {
        restart: record.spec.restart,
        backoff_limit: record.spec.backoff_limit,
        grace: record.spec.grace,
    };
    let state = match status.stage {
        Stage::Stopping => State::Stopping,
        _ => State::Running { failures: status.failures },
    };
    let event = Event::Exited { code: KILLED, ran: Duration::ZERO };
    let refused = record.spec.host_network.is_some() && !terms.allow_host_network;
    let outcome = match step(state, event, &policy).0 {
        State::Ended(outcome) => outcome,
        State::BackOff { .. } if refused => {
            let message = "given up, as the agent runs without --allow-host-network".to_owned();
            Outcome::Failed { code: Some(KILLED), message }
        }
        State::BackOff { failures } => {
            status.stage = Stage::BackOff;
            status.failures = failures;
            dir.write_status(&status).map_err(io_at("write the status in", dir.path()))?;
            return launch(&terms.helper, dir, record).await.map(Some);
        }
        _ => return Ok(None),
    };
    status.stage = Stage::Ended;
    status.ended = Some(jiff::Timestamp::now());
    status.outcome = Some(match outcome {
        Outcome::Failed { code, message } => {
            let message = format!("the pod's supervisor was lost; {message}");
            Outcome::Failed { code, message }
        }
        other => other,
    });
    dir.write_status(&status).map_err(io_at("write the status in", dir.path()))?;
    Ok(None)
}
