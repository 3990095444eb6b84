//! What becomes of a landed connection: carried to the peer's node by the relay, or joined with a
//! pod of this very node.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use control_api::ids::NodeRef;
use datapath_relay::{Deliver as _, OpenRequest, Reason, Relay};
use tokio::{net::TcpStream, runtime::Handle};

use crate::{
    deliver::Delivery,
    keeper::{Keeper, LocalPod, View},
    landing::{Open, reset},
    local::LocalFlows,
    packets::Packets,
    refusals::Refusals,
};

/// [`Open`] over routes, relay and local delivery.
pub struct Opener {
    pub keeper: Keeper,
    pub relay: Relay,
    pub delivery: Arc<Delivery>,
    pub local: LocalFlows,
    pub packets: Arc<Packets>,
    pub refusals: Arc<Mutex<Refusals>>,
    /// The node's own: flows within the node must not hold up the relay's thread.
    pub runtime: Handle,
}

impl std::fmt::Debug for Opener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Opener(..)")
    }
}

/// Where a landed connection goes.
///
/// # Errors
/// [`Reason::Denied`] when the source is not the pod's own address (a program bound to another
/// VIP), [`Reason::HostUnreachable`] when nobody holds the target.
pub fn target(
    view: &View,
    pod: &LocalPod,
    src: SocketAddr,
    dst: SocketAddr,
) -> Result<OpenRequest, Reason> {
    let attached = &pod.attached;
    let domain = view.table.domain(&attached.domain).ok_or(Reason::HostUnreachable)?;
    if !attached.is_vip(src.ip()) {
        return Err(Reason::Denied);
    }
    let to = domain.holder(dst.ip()).ok_or(Reason::HostUnreachable)?;
    let from = domain.member(&attached.uid).ok_or(Reason::HostUnreachable)?;
    Ok(OpenRequest {
        domain: attached.domain.clone(),
        peer: to.node.clone(),
        src,
        dst,
        from_pod: from.pod.clone(),
        to_pod: to.pod.clone(),
    })
}

impl Opener {
    fn is_here(&self, node: &NodeRef) -> bool {
        node == self.keeper.me()
    }

    /// Both ends on this node (encryption within the site is demanded, or a pod has no real
    /// address): the bytes leave no machine, so they are joined without a carrier.
    fn join(&self, request: OpenRequest, stream: TcpStream) {
        let _entered = self.runtime.enter();
        let stream = match stream.into_std().and_then(TcpStream::from_std) {
            Ok(stream) => stream,
            Err(e) => return tracing::warn!(error = %e, "landed connection lost"),
        };
        let delivery = Arc::clone(&self.delivery);
        let me = self.keeper.me().clone();
        self.local.spawn(request, stream, move |request| async move {
            delivery.deliver(&request.domain, &me, request.src, request.dst).await
        });
    }
}

impl Open for Opener {
    /// The relay's: a thread less to wake for every connection.
    fn runtime(&self) -> Handle {
        self.relay.runtime()
    }

    fn open(&self, pod: &Arc<LocalPod>, from: SocketAddr, to: SocketAddr, stream: TcpStream) {
        match target(&self.keeper.view(), pod, from, to) {
            Ok(request) if self.is_here(&request.peer) => self.join(request, stream),
            Ok(request) => self.relay.open_here(request, stream),
            Err(reason) => {
                let uid = &pod.attached.uid;
                tracing::info!(pod = uid, %from, %to, %reason, "landed connection refused");
                Refusals::count(&self.refusals, reason);
                reset(stream);
            }
        }
    }

    fn packet(&self, pod: &LocalPod, packet: &[u8]) {
        self.packets.from_pod(&self.relay, pod, packet);
    }

    fn closed(&self, pod: &LocalPod) {
        for address in &pod.attached.addresses {
            self.relay.drop_pod(&pod.attached.domain, address.vip);
        }
    }
}
