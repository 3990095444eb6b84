//! The keeper's task: commands in order, one writer of everything.

mod stand;

use std::{
    collections::BTreeMap,
    error::Error,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use control_api::{
    attach::{AttachRequest, Attached},
    ids::NodeRef,
    session::{Member, Refusal},
};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use self::stand::Standing;
use super::{
    Command, Inbox, QUEUE, Record, View,
    attachments::{Files, Saved},
};
use crate::{
    hosts,
    kernel::{Kernel, KernelError, is_host},
    landing::Open,
    persist::PersistError,
    plan::{
        desired::{Desired, Local, desired},
        diff::{Op, diff},
        reach::Reach,
        table::RouteTable,
    },
};

/// How long route changes are collected before they are written to disk.
const FLUSH: Duration = Duration::from_secs(1);
/// How often vanished namespaces are looked for and failed operations tried again.
const TICK: Duration = Duration::from_secs(10);

/// The state behind a [`Keeper`]; [`Task::run`] consumes it.
pub struct Task {
    me: NodeRef,
    kernel: Arc<dyn Kernel>,
    open: Arc<dyn Open>,
    files: Files,
    table: RouteTable,
    saved: Saved,
    standing: BTreeMap<String, Standing>,
    applied: Desired,
    commands: mpsc::Receiver<Command>,
    publish: watch::Sender<Arc<View>>,
    flush_at: Option<Instant>,
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Task").field("me", &self.me).finish_non_exhaustive()
    }
}

impl Task {
    /// Loads what an earlier process left in `data_dir`. Nothing is touched before [`Task::run`].
    ///
    /// # Errors
    /// `attachments.json` exists and cannot be used: guessing would lose pods. A bad route file is
    /// only logged, because the hub sends routes again.
    pub fn load(
        inbox: Inbox,
        data_dir: &Path,
        kernel: Arc<dyn Kernel>,
        open: Arc<dyn Open>,
    ) -> Result<Self, PersistError> {
        let files = Files::new(data_dir);
        let saved = files.load()?;
        let mut table = RouteTable::default();
        match files.routes() {
            Ok(Some(snapshot)) => log_refused(table.apply(snapshot).err()),
            Ok(None) => {}
            Err(e) => tracing::warn!(error = chain(&e), "starting without the last routes"),
        }
        let view = Arc::new(View { table: table.clone(), ..View::default() });
        inbox.publish.send_replace(view);
        Ok(Self {
            me: inbox.me,
            kernel,
            open,
            files,
            table,
            saved,
            standing: BTreeMap::new(),
            applied: Desired::default(),
            commands: inbox.commands,
            publish: inbox.publish,
            flush_at: None,
        })
    }

    /// Works until `stop` is cancelled, then takes out what is not pinned.
    pub async fn run(mut self, stop: CancellationToken) {
        self.reconcile().await;
        if let Err(e) = self.kernel.sweep(&self.applied) {
            tracing::warn!(error = chain(&e), "left-over map entries could not be removed");
        }
        let mut tick = tokio::time::interval_at(tokio::time::Instant::now() + TICK, TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut batch = Vec::with_capacity(QUEUE);
        loop {
            let flush = self.flush_at.unwrap_or_else(Instant::now).into();
            tokio::select! {
                () = stop.cancelled() => break,
                n = self.commands.recv_many(&mut batch, QUEUE) => {
                    if n == 0 { break }
                    self.take(std::mem::take(&mut batch)).await;
                }
                () = tokio::time::sleep_until(flush), if self.flush_at.is_some() => {
                    self.flush().await;
                }
                _ = tick.tick() => self.reconcile().await,
            }
        }
        self.flush().await;
        let joins = self.standing.values().map(|s| s.join.clone()).collect();
        self.standing.clear();
        self.kernel.shut_down(joins).await;
    }

    /// Many route lines at once cost one pass over the kernel state.
    async fn take(&mut self, batch: Vec<Command>) {
        let mut changed = false;
        for command in batch {
            match command {
                Command::Update(update, reply) => {
                    changed = true;
                    let result = self.table.apply(update);
                    log_refused(result.as_ref().err().cloned());
                    self.flush_at.get_or_insert_with(|| Instant::now() + FLUSH);
                    // The stream that sent it may be gone; its routes count all the same.
                    drop(reply.send(result));
                }
                Command::Attach { uid, request, reply } => {
                    let result = self.attach(uid, &request).await;
                    drop(reply.send(result));
                }
                Command::Detach { uid, reply } => {
                    self.detach(&uid).await;
                    self.save().await;
                    self.converge();
                    if reply.send(()).is_err() {
                        tracing::debug!("the runtime did not wait for the end of its detach");
                    }
                }
            }
        }
        if changed {
            self.settle().await;
        }
    }

    fn member(&self, uid: &str, record: &Record) -> Option<&Member> {
        self.table.domain(&record.domain)?.member(uid).filter(|m| m.node == self.me)
    }

    async fn attach(&mut self, uid: String, request: &AttachRequest) -> Result<Attached, Refusal> {
        let cookie = self.kernel.identify(&request.netns, request.cgroup.as_deref());
        let cookie = cookie.map_err(|e| refusal(e.about(), &uid, chain(&e)))?;
        if let Some((other, _)) =
            self.saved.pods.iter().find(|(u, r)| r.netns_cookie == cookie && **u != uid)
        {
            let (reason, what) = match is_host(cookie) {
                true => ("cgroup-in-use", "cgroup"),
                false => ("netns-in-use", "network namespace"),
            };
            let why = format!("its {what} already belongs to pod {other}");
            return Err(refusal(reason, &uid, why));
        }
        if let Some(path) = request.hosts.as_ref().filter(|p| !p.is_file()) {
            return Err(refusal("hosts", &uid, format!("{} is not a file", path.display())));
        }
        let record = Record::new(request, cookie);
        if self.member(&uid, &record).is_none() {
            let why = format!("its address in Domain {} was withdrawn", request.domain);
            return Err(refusal("no-address", &uid, why));
        }
        if self.saved.pods.get(&uid).is_some_and(|old| *old != record) {
            self.detach(&uid).await;
        }
        self.saved.ids.assign(&request.domain);
        self.saved.pods.insert(uid.clone(), record);
        let result = match self.stand(&uid).await {
            Ok(()) => self.converge_for(&uid).map_err(|e| refusal("kernel", &uid, chain(&e))),
            Err(e) => Err(refusal("kernel", &uid, chain(&e))),
        };
        if result.is_err() {
            self.detach(&uid).await;
            self.converge();
        }
        self.save().await;
        result?;
        let standing = self.standing.get(&uid).map(|s| s.view.attached.clone());
        standing.ok_or_else(|| refusal("kernel", &uid, "it is gone again".to_owned()))
    }

    async fn detach(&mut self, uid: &str) {
        self.fall(uid).await;
        let Some(record) = self.saved.pods.remove(uid) else { return };
        self.applied.hosts.remove(uid);
        let Some(path) = record.hosts.filter(|p| p.exists()) else { return };
        if let Err(e) = hosts::update(&path, None) {
            tracing::warn!(pod = uid, path = %path.display(), error = %e, "names not removed");
        }
    }

    /// Drops the pods whose network namespace is gone, then as [`Task::settle`].
    async fn reconcile(&mut self) {
        let vanished: Vec<String> = self
            .saved
            .pods
            .iter()
            .filter(|(_, r)| match self.kernel.identify(&r.netns, r.cgroup.as_deref()) {
                Ok(now) => now != r.netns_cookie,
                Err(e) => !e.is_shortage(),
            })
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in &vanished {
            tracing::info!(pod = uid, "network namespace or cgroup is gone, detaching");
            self.detach(uid).await;
        }
        if !vanished.is_empty() {
            self.save().await;
        }
        self.settle().await;
    }

    /// Brings every attachment and map to what the routes say. A pod without a route keeps its
    /// guard and local route (its traffic must not leak into the site's network) but is cut off.
    async fn settle(&mut self) {
        let uids: Vec<String> = self.saved.pods.keys().cloned().collect();
        for uid in uids {
            if let Err(e) = self.stand(&uid).await {
                tracing::error!(pod = uid, error = chain(&e), "pod cannot be set up, will retry");
            }
        }
        self.converge();
    }

    fn wanted(&self) -> Desired {
        let locals: Vec<Local> = self
            .standing
            .values()
            .map(|s| Local {
                uid: s.join.uid.clone(),
                domain: s.view.attached.domain.clone(),
                netns_cookie: s.join.cookie,
                stands: s.join.pod.clone(),
            })
            .collect();
        let reach = Reach::of_this_machine().steered(self.kernel.steers());
        desired(&self.me, &self.table, &locals, &self.saved.ids, &reach)
    }

    /// Carries out the difference and publishes; failures are logged and tried again later.
    fn converge(&mut self) {
        for op in diff(&self.applied, &self.wanted()) {
            self.apply(&op);
        }
        self.publish();
    }

    /// As [`Task::converge`], but an attachment is good only if all of it stands.
    fn converge_for(&mut self, uid: &str) -> Result<(), KernelError> {
        for op in diff(&self.applied, &self.wanted()) {
            match (self.carry_out(&op), &op) {
                (Ok(()), _) => self.applied.note(&op),
                (Err(e), Op::WriteHosts { uid: of, .. }) if of != uid => log_failed(&op, &e),
                (Err(e), Op::WriteHosts { .. } | Op::PutPod(..) | Op::PutVip(..)) => return Err(e),
                (Err(e), _) => log_failed(&op, &e),
            }
        }
        self.publish();
        Ok(())
    }

    fn apply(&mut self, op: &Op) {
        match self.carry_out(op) {
            Ok(()) => self.applied.note(op),
            Err(e) => log_failed(op, &e),
        }
    }

    fn carry_out(&self, op: &Op) -> Result<(), KernelError> {
        let Op::WriteHosts { uid, section } = op else { return self.kernel.apply(op) };
        let Some(path) = self.saved.pods.get(uid).and_then(|r| r.hosts.as_ref()) else {
            return Ok(());
        };
        hosts::update(path, Some(section)).map_err(|e| KernelError::Pod {
            uid: uid.clone(),
            step: "writing its hosts file",
            source: e.into(),
        })
    }

    fn publish(&self) {
        let pods = self
            .standing
            .iter()
            .filter(|(_, s)| s.routed && self.applied.pods.contains_key(&s.join.cookie))
            .map(|(uid, s)| (uid.clone(), Arc::clone(&s.view)))
            .collect();
        let view = View { table: self.table.clone(), pods, ids: self.saved.ids.clone() };
        self.publish.send_replace(Arc::new(view));
    }

    async fn save(&self) {
        let (files, saved) = (self.files.clone(), self.saved.clone());
        on_disk("attachments", move || files.save(&saved)).await;
    }

    async fn flush(&mut self) {
        if self.flush_at.take().is_some() {
            let (files, snapshot) = (self.files.clone(), self.table.snapshot());
            on_disk("routes", move || files.save_routes(&snapshot)).await;
        }
    }
}

async fn on_disk(what: &str, write: impl FnOnce() -> Result<(), PersistError> + Send + 'static) {
    match tokio::task::spawn_blocking(write).await {
        Ok(Ok(())) => {}
        Ok(Err(e)) => tracing::error!(error = chain(&e), "{what} not saved"),
        Err(e) => tracing::error!(error = %e, "{what} not saved"),
    }
}

fn log_failed(op: &Op, error: &KernelError) {
    tracing::error!(?op, error = chain(error), "kernel state not changed, will retry");
}

fn log_refused(errors: Option<Vec<crate::plan::table::UpdateError>>) {
    for error in errors.unwrap_or_default() {
        tracing::warn!(%error, "part of a route update refused");
    }
}

fn refusal(reason: &str, uid: &str, why: String) -> Refusal {
    Refusal { reason: reason.to_owned(), message: format!("pod {uid}: {why}") }
}

/// An error with its causes in one line.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}
