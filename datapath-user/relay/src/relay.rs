//! The public face.

use std::{net::TcpStream, sync::Arc};

use control_api::ids::{DomainName, NodeRef};

use crate::api::{
    CarrierStats, Counters, Deliver, DomainIdentity, FlowStats, Lane, OpenRequest, Path, Paths,
    RelayConfig, RelayError,
};

/// All flows of this node. Cheap to clone; when the last clone is dropped, every flow is reset,
/// every carrier closed and the lanes' threads end.
#[derive(Clone, Debug)]
pub struct Relay {
    inner: Arc<()>,
}

impl Relay {
    /// Starts the lanes' threads.
    ///
    /// # Errors
    /// [`RelayError::Thread`].
    pub fn new(
        config: RelayConfig,
        deliver: Arc<dyn Deliver>,
        paths: Arc<dyn Paths>,
    ) -> Result<Self, RelayError> {
        let _: (RelayConfig, Arc<dyn Deliver>, Arc<dyn Paths>) = (config, deliver, paths);
        Ok(Self { inner: Arc::new(()) })
    }

    /// Carries a landed connection to its target. Returns at once and never fails: what goes wrong
    /// is an RST to the application, a reason in [`Relay::flows`] and a count. `conn` may be in
    /// either blocking mode.
    pub fn open(&self, request: OpenRequest, conn: TcpStream) {
        let _: (OpenRequest, TcpStream) = (request, conn);
    }

    /// Serves a connection that `peer` dialled for (`domain`, `lane`): we are the SSH server.
    /// Returns at once; a peer that cannot prove to be `peer` is closed and counted.
    ///
    /// # Errors
    /// [`RelayError::NoIdentity`] when [`Relay::set_identity`] was not called for `domain`.
    pub fn accept(
        &self,
        domain: &DomainName,
        peer: &NodeRef,
        lane: Lane,
        path: Path,
    ) -> Result<(), RelayError> {
        let _: (&DomainName, &NodeRef, Lane, Path) = (domain, peer, lane, path);
        Ok(())
    }

    /// Sets or renews this node's identity in `domain`. Standing carriers stay, unless the
    /// certificate authority changed: then they are closed and flows resume on new ones.
    ///
    /// # Errors
    /// [`RelayError::BadIdentity`].
    pub fn set_identity(
        &self,
        domain: &DomainName,
        identity: DomainIdentity,
    ) -> Result<(), RelayError> {
        let _: (&DomainName, DomainIdentity) = (domain, identity);
        Ok(())
    }

    /// Forgets the Domain: resets its flows, closes its carriers, drops the key.
    pub fn drop_domain(&self, domain: &DomainName) {
        let _: &DomainName = domain;
    }

    /// Resets all flows with `peer` and closes its carriers, in one Domain.
    pub fn drop_peer(&self, domain: &DomainName, peer: &NodeRef) {
        let _: (&DomainName, &NodeRef) = (domain, peer);
    }

    /// Resets the flows of one local pod address, on either end.
    pub fn drop_pod(&self, domain: &DomainName, vip: std::net::IpAddr) {
        let _: (&DomainName, std::net::IpAddr) = (domain, vip);
    }

    /// Brings up the interactive carrier to `peer` before a flow needs it.
    pub fn warm(&self, domain: &DomainName, peer: &NodeRef) {
        let _: (&DomainName, &NodeRef) = (domain, peer);
    }

    /// Living flows, then recently ended ones, newest first.
    #[must_use]
    pub fn flows(&self) -> Vec<FlowStats> {
        Vec::new()
    }
    #[must_use]
    pub fn carriers(&self) -> Vec<CarrierStats> {
        Vec::new()
    }
    #[must_use]
    pub fn counters(&self) -> Counters {
        let _ = &self.inner;
        Counters::default()
    }
}
