//! How one pod is set up and taken down.

use std::sync::Arc;

use control_api::attach::{Attached, INTERFACE, VirtualAddress};
use tokio_util::task::AbortOnDropHandle;

use super::{Task, chain};
use crate::{
    keeper::LocalPod,
    kernel::{Join, KernelError, is_host},
    landing, packets,
    plan::{
        desired::{Face, Pod, faces},
        diff::Op,
    },
};

/// A pod that has been set up in its namespace.
#[derive(Debug)]
pub(super) struct Standing {
    pub(super) join: Join,
    pub(super) view: Arc<LocalPod>,
    /// Whether the routes give it its address; without one it is cut off, and seen by nobody.
    pub(super) routed: bool,
    /// Accept what the guard lands, or what the hooks send to the relay's port; end with the pod.
    _landing: Vec<AbortOnDropHandle<()>>,
    /// Reads what the pod sends besides; `None` until that works.
    packets: Option<AbortOnDropHandle<()>>,
}

impl Task {
    /// Sets the pod up as its route says, anew if its address changed.
    pub(super) async fn stand(&mut self, uid: &str) -> Result<(), KernelError> {
        let Some(join) = self.join_of(uid) else {
            self.strand(uid);
            return Ok(());
        };
        if let Some(old) = self.standing.get(uid) {
            if old.join == join {
                let missing = old.packets.is_none().then(|| Arc::clone(&old.view));
                let again = missing.and_then(|view| self.read_packets(&view));
                if let Some(old) = self.standing.get_mut(uid) {
                    old.routed = true;
                    old.packets = old.packets.take().or(again);
                }
                return Ok(());
            }
            self.fall(uid).await;
        }
        let listeners = self.kernel.join(join.clone()).await?;
        let Some(record) = self.saved.pods.get(uid) else { return Ok(()) };
        let view = Arc::new(LocalPod {
            attached: Attached {
                uid: uid.to_owned(),
                domain: record.domain.clone(),
                addresses: join.pod.faces.iter().map(virtual_address).collect(),
                interface: if is_host(join.cookie) { "" } else { INTERFACE }.to_owned(),
                netns_cookie: join.cookie,
            },
            domain_id: join.pod.domain,
            join: join.clone(),
            hosts: record.hosts.clone(),
        });
        let accept = |listener| {
            let (view, open) = (Arc::clone(&view), Arc::clone(&self.open));
            let accept = landing::run(listener, view, open, Arc::clone(&self.kernel));
            AbortOnDropHandle::new(self.open.runtime().spawn(accept))
        };
        let landing = listeners.into_iter().map(accept).collect();
        let packets = self.read_packets(&view);
        let standing = Standing { join, view, routed: true, _landing: landing, packets };
        self.standing.insert(uid.to_owned(), standing);
        Ok(())
    }

    /// Datagrams and echoes are worth less than connections: without them the pod stands all the same, and the next tick
    /// tries again.
    fn read_packets(&self, view: &Arc<LocalPod>) -> Option<AbortOnDropHandle<()>> {
        if is_host(view.join.cookie) {
            return None;
        }
        let runtime = self.open.runtime();
        let tap = {
            let _entered = runtime.enter();
            self.kernel.tap(view.join.cookie)
        };
        match tap {
            Ok(tap) => {
                let read = packets::run(tap, Arc::clone(view), Arc::clone(&self.open));
                Some(AbortOnDropHandle::new(runtime.spawn(read)))
            }
            Err(error) => {
                let uid = &view.attached.uid;
                tracing::error!(pod = uid, %error, "its datagrams cannot be read, will retry");
                None
            }
        }
    }

    /// The pod has lost its address: its flows end now, not when they next need a carrier.
    fn strand(&mut self, uid: &str) {
        let Some(standing) = self.standing.get_mut(uid) else { return };
        if std::mem::replace(&mut standing.routed, false) {
            let domain = &standing.view.attached.domain;
            tracing::info!(pod = uid, %domain, "the pod's address was withdrawn");
            self.open.closed(&standing.view);
        }
    }

    fn join_of(&self, uid: &str) -> Option<Join> {
        let record = self.saved.pods.get(uid)?;
        let member = self.member(uid, record)?;
        let domain = self.table.domain(&record.domain)?;
        let pod = Pod {
            domain: self.saved.ids.get(&record.domain)?,
            faces: faces(domain, member),
            // Of no concern to how it stands: a list of ports that changes must not reset its flows.
            restricted: false,
        };
        let (netns, cgroup) = (record.netns.clone(), record.cgroup.clone());
        Some(Join { uid: uid.to_owned(), netns, cgroup, cookie: record.netns_cookie, pod })
    }

    /// Out of the maps first, so that no new flow is steered into what is being taken down.
    pub(super) async fn fall(&mut self, uid: &str) {
        let Some(old) = self.standing.remove(uid) else { return };
        self.apply(&Op::DeletePod(old.join.cookie));
        self.open.closed(&old.view);
        if let Err(e) = self.kernel.leave(old.join).await {
            tracing::warn!(pod = uid, error = chain(&e), "pod not taken down completely");
        }
    }
}

fn virtual_address(face: &Face) -> VirtualAddress {
    VirtualAddress { vip: face.vip, prefix_len: face.cidr.prefix_len() }
}
