//! The sign of life: the Lease [`labels::AGENT_LEASE`] in the site's namespace, renewed every ten
//! seconds. The control plane takes a site's Nodes offline after four misses.

use std::time::Duration;

use control_api::labels;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api, Client,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
};

/// From one renewal to the next.
pub(crate) const EVERY: Duration = Duration::from_secs(10);
const LIFE_SECONDS: i32 = 40;

/// Renews the Lease, or makes it.
pub(crate) async fn beat(client: &Client, holder: &str) -> kube::Result<()> {
    let leases: Api<Lease> = Api::default_namespaced(client.clone());
    let now = MicroTime(jiff::Timestamp::now());
    let spec = LeaseSpec {
        holder_identity: Some(holder.to_owned()),
        lease_duration_seconds: Some(LIFE_SECONDS),
        renew_time: Some(now.clone()),
        ..LeaseSpec::default()
    };
    let change = serde_json::json!({ "spec": spec });
    let params = PatchParams::default();
    match leases.patch(labels::AGENT_LEASE, &params, &Patch::Merge(&change)).await {
        Err(kube::Error::Api(e)) if e.is_not_found() => {
            let metadata =
                ObjectMeta { name: Some(labels::AGENT_LEASE.to_owned()), ..ObjectMeta::default() };
            let spec = Some(LeaseSpec { acquire_time: Some(now), ..spec });
            let lease = Lease { metadata, spec };
            match leases.create(&PostParams::default(), &lease).await {
                // Another agent of the site was faster, which serves as well.
                Err(kube::Error::Api(e)) if e.is_already_exists() => Ok(()),
                done => done.map(drop),
            }
        }
        done => done.map(drop),
    }
}
