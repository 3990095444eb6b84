//! The one owner of what this node knows and has set up: routes, attachments, kernel state.
//!
//! A single task takes commands in order; everyone else holds a [`Keeper`] handle and reads
//! published [`View`]s. What the kernel holds is remembered operation by operation, so a failed one
//! is retried with the next change or tick, and never assumed.

mod attachments;
mod task;

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use control_api::{
    attach::{AttachRequest, Attached},
    ids::{DomainName, NodeRef},
    session::{Refusal, RouteUpdate},
};
use tokio::sync::{mpsc, oneshot, watch};

pub(crate) use self::task::chain;
pub use self::{attachments::Record, task::Task};
use crate::{
    kernel::Join,
    plan::{
        desired::{DomainId, DomainIds},
        table::{Domain, RouteTable, UpdateError},
    },
};

/// Commands that may wait; a sender waits for room.
const QUEUE: usize = 64;
/// The longest a runtime may make us wait for an address.
const MAX_WAIT: Duration = Duration::from_secs(600);

/// A pod that stands in its Domain on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalPod {
    pub attached: Attached,
    pub domain_id: DomainId,
    pub join: Join,
    pub hosts: Option<PathBuf>,
}

impl LocalPod {
    /// Its own address of the family of `far`; the unspecified one when it has none.
    #[must_use]
    pub fn vip_towards(&self, far: IpAddr) -> IpAddr {
        let mut own = self.attached.addresses.iter().map(|a| a.vip);
        let unspecified =
            if far.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        own.find(|vip| vip.is_ipv4() == far.is_ipv4()).unwrap_or(unspecified)
    }
}

/// What is known at one moment. Never edited: a change publishes another one.
#[derive(Clone, Debug, Default)]
pub struct View {
    pub table: RouteTable,
    /// By uid.
    pub pods: BTreeMap<String, Arc<LocalPod>>,
    pub ids: DomainIds,
}

impl View {
    /// The pod of this machine that has this VIP in this Domain.
    #[must_use]
    pub fn local(&self, domain: &DomainName, vip: IpAddr) -> Option<&Arc<LocalPod>> {
        let vip = vip.to_canonical();
        self.pods.values().find(|p| p.attached.domain == *domain && p.attached.is_vip(vip))
    }

    /// The Domains that have a pod here.
    pub fn active(&self) -> impl Iterator<Item = &Arc<Domain>> {
        self.table.domains().filter(|d| self.pods.values().any(|p| p.attached.domain == d.name))
    }
}

/// What the keeper is asked to do.
#[derive(Debug)]
pub enum Command {
    Update(RouteUpdate, oneshot::Sender<Result<(), Vec<UpdateError>>>),
    Attach {
        uid: String,
        request: AttachRequest,
        reply: oneshot::Sender<Result<Attached, Refusal>>,
    },
    Detach {
        uid: String,
        reply: oneshot::Sender<()>,
    },
}

/// The handle. Cheap to clone; useless once the task has ended (all calls then refuse).
#[derive(Clone, Debug)]
pub struct Keeper {
    me: NodeRef,
    commands: mpsc::Sender<Command>,
    view: watch::Receiver<Arc<View>>,
}

/// The task's end of a [`Keeper`].
#[derive(Debug)]
pub struct Inbox {
    me: NodeRef,
    commands: mpsc::Receiver<Command>,
    publish: watch::Sender<Arc<View>>,
}

/// The keeper's task has ended: the node is shutting down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rlark-node is shutting down")]
pub struct Stopped;

impl From<Stopped> for Refusal {
    fn from(e: Stopped) -> Self {
        Self { reason: "shutting-down".into(), message: e.to_string() }
    }
}

/// Addresses as people read them.
pub(crate) fn listed<'a>(addresses: impl IntoIterator<Item = &'a IpAddr>) -> String {
    let all: Vec<String> = addresses.into_iter().map(ToString::to_string).collect();
    all.join(" and ")
}

impl Keeper {
    /// A handle of a keeper that is yet to be started with [`Task::load`]; its view is empty.
    #[must_use]
    pub fn new(me: NodeRef) -> (Self, Inbox) {
        let (sender, commands) = mpsc::channel(QUEUE);
        let (publish, view) = watch::channel(Arc::default());
        (Self { me: me.clone(), commands: sender, view }, Inbox { me, commands, publish })
    }

    /// The newest view.
    #[must_use]
    pub fn view(&self) -> Arc<View> {
        Arc::clone(&self.view.borrow())
    }

    /// A handle that sees what the sender is given.
    #[cfg(test)]
    pub(crate) fn with_view(self, view: View) -> (Self, watch::Sender<Arc<View>>) {
        let (sender, view) = watch::channel(Arc::new(view));
        (Self { view, ..self }, sender)
    }

    /// For waiting on changes.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Arc<View>> {
        self.view.clone()
    }

    /// This machine.
    #[must_use]
    pub const fn me(&self) -> &NodeRef {
        &self.me
    }

    /// Hands over one line of the route stream; waits while the keeper is busy (64 commands).
    ///
    /// # Errors
    /// The outer one when the node stops; the inner says what was refused.
    pub async fn update(
        &self,
        update: RouteUpdate,
    ) -> Result<Result<(), Vec<UpdateError>>, Stopped> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(Command::Update(update, reply)).await.map_err(|_gone| Stopped)?;
        answer.await.map_err(|_gone| Stopped)
    }

    /// Brings a pod into its Domain; waits until the control plane has given it an address.
    ///
    /// # Errors
    /// `no-address` when that does not happen within the request's time; see the crate's
    /// documentation for the other reasons.
    pub async fn attach(&self, uid: String, request: AttachRequest) -> Result<Attached, Refusal> {
        let within = Duration::from_millis(request.timeout_ms).min(MAX_WAIT);
        let mut view = self.view.clone();
        let arrived = view.wait_for(|v| {
            v.table
                .domain(&request.domain)
                .and_then(|d| d.member(&uid))
                .is_some_and(|m| m.node == self.me)
        });
        match tokio::time::timeout(within, arrived).await {
            Ok(Ok(_)) => {}
            Ok(Err(_)) => return Err(Stopped.into()),
            Err(_) => return Err(self.no_address(&uid, &request.domain, within)),
        }
        let (reply, answer) = oneshot::channel();
        let command = Command::Attach { uid, request, reply };
        self.commands.send(command).await.map_err(|_gone| Stopped)?;
        answer.await.map_err(|_gone| Refusal::from(Stopped))?
    }

    fn no_address(&self, uid: &str, domain: &DomainName, within: Duration) -> Refusal {
        let view = self.view();
        let why = match view.table.domain(domain).map(|d| d.member(uid)) {
            None => format!("this node knows no Domain {domain}"),
            Some(None) => format!("Domain {domain} has no address for it"),
            Some(Some(m)) => format!("its address {} belongs to node {}", listed(&m.vips), m.node),
        };
        Refusal {
            reason: "no-address".into(),
            message: format!("pod {uid}: after {} ms {why}", within.as_millis()),
        }
    }

    /// Takes a pod out of its Domain; an unknown uid is success.
    ///
    /// # Errors
    /// The node stops.
    pub async fn detach(&self, uid: String) -> Result<(), Stopped> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(Command::Detach { uid, reply }).await.map_err(|_gone| Stopped)?;
        answer.await.map_err(|_gone| Stopped)
    }
}
