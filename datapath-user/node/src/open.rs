//! What becomes of a landed connection: carried to the peer's node by the relay, or joined with a
//! pod of this very node.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex},
};

use control_api::{
    ids::NodeRef,
    session::{Member, Protocol},
};
use datapath_net::pace::LogPace;
use datapath_relay::{Admitted, Deliver as _, OpenRequest, Reason, Relay};
use tokio::{net::TcpStream, runtime::Handle};

use crate::{
    deliver::Delivery,
    events::{Feed, Refusal},
    keeper::{Keeper, LocalPod, View},
    landing::{Open, reset},
    local::{self, LocalFlows},
    packets::Packets,
    plan::desired::Face,
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
    pub feed: Arc<Feed>,
    /// The node's own: flows within the node must not hold up the relay's thread.
    pub runtime: Handle,
    pub said: LogPace,
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
    let src = named(pod, src, dst).ok_or(Reason::Denied)?;
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

/// The source as peers see it: a program that bound its real address (`curl --interface`, `if_include` of MPI) means this pod, too.
fn named(pod: &LocalPod, src: SocketAddr, dst: SocketAddr) -> Option<SocketAddr> {
    if pod.attached.is_vip(src.ip()) {
        return Some(src);
    }
    let mut faces = pod.join.pod.faces.iter();
    let face = faces.find(|f| f.real == Some(src.ip()) && f.vip.is_ipv4() == dst.is_ipv4())?;
    Some(SocketAddr::new(face.vip, src.port()))
}

/// Whether the pod was connected to, rather than connecting. A real address within the Domain's network is some other pod's VIP here:
/// nobody connects to it directly.
fn is_own(pod: &LocalPod, to: IpAddr) -> bool {
    let real = |face: &Face| face.real == Some(to) && !face.cidr.contains(to);
    pod.attached.is_vip(to) || pod.join.pod.faces.iter().any(real)
}

/// A member's direct connection for a listener on the pod's VIP that the guard has no hold of. Its addresses are the real ones, or
/// VIPs where the hooks see this process too.
///
/// # Errors
/// [`Reason::SourceForged`] when no one member of the site has the address that it comes from.
pub fn arrival(
    view: &View,
    pod: &LocalPod,
    src: SocketAddr,
    dst: SocketAddr,
) -> Result<OpenRequest, Reason> {
    let attached = &pod.attached;
    let domain = view.table.domain(&attached.domain).ok_or(Reason::HostUnreachable)?;
    let to = domain.member(&attached.uid).ok_or(Reason::HostUnreachable)?;
    let at_site = |m: &&Member| m.node.cluster == to.node.cluster;
    let is_it = |m: &&Member| m.vips.contains(&src.ip()) || m.local_ips.contains(&src.ip());
    // Both ends show addresses of one family.
    let vip = |of: &[IpAddr]| of.iter().copied().find(|vip| vip.is_ipv4() == src.is_ipv4());
    let no_such = Reason::HostUnreachable;
    let mut from = domain.members().filter(at_site).filter(is_it);
    match (from.next(), from.next()) {
        (Some(from), None) => Ok(OpenRequest {
            domain: attached.domain.clone(),
            peer: from.node.clone(),
            src: SocketAddr::new(vip(&from.vips).ok_or(no_such)?, src.port()),
            dst: SocketAddr::new(vip(&to.vips).ok_or(no_such)?, dst.port()),
            from_pod: from.pod.clone(),
            to_pod: to.pod.clone(),
        }),
        _ => Err(Reason::SourceForged),
    }
}

impl Opener {
    fn is_here(&self, node: &NodeRef) -> bool {
        node == self.keeper.me()
    }

    /// The bytes leave no machine, or came in directly, so they are joined without a carrier.
    fn join(&self, request: OpenRequest, stream: TcpStream, place: Admitted) {
        let _entered = self.runtime.enter();
        let stream = match stream.into_std().and_then(TcpStream::from_std) {
            Ok(stream) => stream,
            Err(e) => return tracing::warn!(error = %e, "landed connection lost"),
        };
        let delivery = Arc::clone(&self.delivery);
        let peer = request.peer.clone();
        self.local.spawn(request, stream, place, move |request| async move {
            let OpenRequest { domain, src, dst, .. } = request;
            let made = delivery.deliver(&domain, &peer, src, dst).await;
            if let Err(reason) = made {
                // Where no hook knows the listeners, the next try is refused before it stands.
                delivery.refused(&domain, dst, reason);
            }
            made
        });
    }
}

impl Open for Opener {
    /// The relay's: a thread less to wake for every connection.
    fn runtime(&self) -> Handle {
        self.relay.runtime()
    }

    fn open(&self, pod: &Arc<LocalPod>, from: SocketAddr, to: SocketAddr, stream: TcpStream) {
        let view = self.keeper.view();
        let arrives = is_own(pod, to.ip());
        let request =
            if arrives { arrival(&view, pod, from, to) } else { target(&view, pod, from, to) };
        match request {
            // Encryption within the site is demanded, or a pod has no real address.
            Ok(request) if arrives || self.is_here(&request.peer) => {
                let vip = if arrives { request.dst.ip() } else { request.src.ip() };
                match self.relay.admit(&request.domain, vip, local::DESCRIPTORS) {
                    Some(place) => self.join(request, stream, place),
                    None => self.refuse(pod, from, to, stream, Reason::Limit),
                }
            }
            Ok(request) => self.relay.open_here(request, stream),
            Err(reason) => self.refuse(pod, from, to, stream, reason),
        }
    }

    fn refuse(
        &self,
        pod: &LocalPod,
        from: SocketAddr,
        to: SocketAddr,
        stream: TcpStream,
        reason: Reason,
    ) {
        if let Some(unsaid) = self.said.may_say() {
            let uid = &pod.attached.uid;
            tracing::info!(pod = uid, %from, %to, %reason, unsaid, "landed connection refused");
        }
        Refusals::count(&self.refusals, reason);
        let refusal = Refusal {
            domain: &pod.attached.domain,
            protocol: Protocol::Tcp,
            from,
            to,
            reason: reason.as_str(),
        };
        self.feed.tell(|| refusal.event(&self.keeper.view()));
        reset(stream);
    }

    fn packet(&self, pod: &LocalPod, packet: &[u8]) {
        self.packets.from_pod(&self.relay, pod, packet);
    }

    fn closed(&self, pod: &LocalPod) {
        for address in &pod.attached.addresses {
            self.relay.drop_pod(&pod.attached.domain, address.vip);
            self.local.drop_pod(&pod.attached.domain, address.vip);
        }
    }
}

#[cfg(test)]
mod tests {
    use control_api::session::RouteUpdate;

    use super::*;
    use crate::deliver::tests::view;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    /// With real addresses for the two members of the site.
    fn site() -> (View, Arc<LocalPod>) {
        let mut view = view();
        let RouteUpdate::Snapshot { mut domains } = view.table.snapshot() else { panic!() };
        for (uid, real) in
            [("here", "10.244.0.2"), ("elsewhere", "10.244.1.2"), ("far", "10.244.0.3")]
        {
            for member in domains.iter_mut().flat_map(|d| &mut d.members) {
                if member.uid == uid {
                    member.local_ips = vec![real.parse().unwrap()];
                }
            }
        }
        view.table.apply(RouteUpdate::Snapshot { domains }).unwrap();
        let pod = Arc::clone(view.pods.get("here").unwrap());
        (view, pod)
    }

    #[test]
    fn a_direct_connection_arrives_under_its_virtual_addresses() {
        let (view, pod) = site();
        for (from, to) in [("10.244.1.2:5", "10.244.0.2:80"), ("10.2.0.3:5", "10.2.0.1:80")] {
            let request = arrival(&view, &pod, at(from), at(to)).unwrap();
            assert_eq!((request.src, request.dst), (at("10.2.0.3:5"), at("10.2.0.1:80")));
            assert_eq!(request.peer, "s1/n2".parse().unwrap());
        }
    }

    #[test]
    fn a_program_that_bound_the_pods_real_address_speaks_for_the_pod() {
        let (view, pod) = site();
        let mut pod = LocalPod::clone(&pod);
        for face in &mut pod.join.pod.faces {
            face.real = Some([10, 244, 0, 2].into());
        }
        let open = |from| target(&view, &pod, at(from), at("10.2.0.2:80"));
        assert_eq!(open("10.244.0.2:5").unwrap().src, at("10.2.0.1:5"));
        assert_eq!(open("10.2.0.1:5").unwrap().src, at("10.2.0.1:5"));
        for from in ["10.244.0.3:5", "10.2.0.3:5"] {
            assert_eq!(open(from).err(), Some(Reason::Denied), "{from}");
        }
    }

    #[test]
    fn only_a_member_of_the_site_arrives() {
        let (view, pod) = site();
        for from in ["10.244.0.3:5", "10.2.0.2:5", "10.244.9.9:5"] {
            let refused = arrival(&view, &pod, at(from), at("10.244.0.2:80"));
            assert_eq!(refused.err(), Some(Reason::SourceForged), "{from}");
        }
    }
}
