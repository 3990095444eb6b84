//! Keeps the authoriser's snapshot equal to the RBAC objects in the store.

use std::sync::Arc;

use control_identity::rbac::{BindingObject, Rbac, RoleObject, Snapshot};
use futures::{StreamExt as _, stream::select_all};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use kube::{
    Api, Client, Resource,
    runtime::{
        WatchStreamExt as _,
        reflector::{self, Store},
        watcher,
    },
};
use serde::{Serialize, de::DeserializeOwned};

/// Follows the four kinds for ever; the watchers retry by themselves.
pub(crate) async fn follow(client: Client, rbac: Arc<Rbac>) {
    let (cluster_roles, a) = one::<ClusterRole>(&client);
    let (roles, b) = one::<Role>(&client);
    let (cluster_bindings, c) = one::<ClusterRoleBinding>(&client);
    let (bindings, d) = one::<RoleBinding>(&client);
    let mut changes = select_all([a, b, c, d]);
    while changes.next().await.is_some() {
        let mut all_roles: Vec<RoleObject> = objects(&cluster_roles);
        all_roles.extend(objects::<_, RoleObject>(&roles));
        let mut all_bindings: Vec<BindingObject> = objects(&cluster_bindings);
        all_bindings.extend(objects::<_, BindingObject>(&bindings));
        rbac.replace(Snapshot::new(all_roles, all_bindings));
    }
}

type Changes = futures::stream::BoxStream<'static, ()>;

fn one<K>(client: &Client) -> (Store<K>, Changes)
where
    K: Resource<DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    let (store, writer) = reflector::store();
    let changes = watcher(Api::all(client.clone()), watcher::Config::default())
        .default_backoff()
        .reflect(writer)
        .map(|event| {
            if let Err(error) = event {
                tracing::warn!(%error, "watching RBAC objects failed, trying again");
            }
        })
        .boxed();
    (store, changes)
}

/// An object that does not have the shape of its kind gives nobody any right.
fn objects<K, T>(store: &Store<K>) -> Vec<T>
where
    K: Resource<DynamicType = ()> + Clone + Serialize,
    T: DeserializeOwned,
{
    store
        .state()
        .iter()
        .filter_map(|o| serde_json::to_value(o.as_ref()).ok())
        .filter_map(|v| serde_json::from_value(v).ok())
        .collect()
}
