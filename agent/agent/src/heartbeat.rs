//! The sign of life: a Lease of the Node's name in the site's namespace, renewed every ten
//! seconds. The control plane takes the Node offline after four misses.

use std::{collections::BTreeMap, time::Duration};

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

/// Renews the Lease of `node`, or makes it.
pub(crate) async fn beat(client: &Client, node: &str, holder: &str) -> kube::Result<()> {
    let leases: Api<Lease> = Api::default_namespaced(client.clone());
    let now = MicroTime(jiff::Timestamp::now());
    let spec = LeaseSpec {
        holder_identity: Some(holder.to_owned()),
        lease_duration_seconds: Some(LIFE_SECONDS),
        renew_time: Some(now.clone()),
        ..LeaseSpec::default()
    };
    let marks = BTreeMap::from([(labels::NODE_LEASE.to_owned(), "true".to_owned())]);
    let change = serde_json::json!({ "metadata": { "labels": marks }, "spec": spec });
    let params = PatchParams::default();
    match leases.patch(node, &params, &Patch::Merge(&change)).await {
        Err(kube::Error::Api(e)) if e.is_not_found() => {
            let metadata = ObjectMeta {
                name: Some(node.to_owned()),
                labels: Some(marks),
                ..ObjectMeta::default()
            };
            let spec = Some(LeaseSpec { acquire_time: Some(now), ..spec });
            let lease = Lease { metadata, spec };
            leases.create(&PostParams::default(), &lease).await.map(drop)
        }
        done => done.map(drop),
    }
}
