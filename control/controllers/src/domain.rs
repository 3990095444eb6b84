//! Domain: addresses for its pods, and a DomainPeer for every site that has some.
//!
//! Addresses are written before peers, so that no peer shows an address that is not recorded.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use control_api::{
    cidr::Subnets,
    labels,
    v1alpha1::{Domain, DomainPeer, DomainPeerSpec, DomainStatus, Pod},
    validate,
};
use control_plan::{
    addresses::{Allocated, allocate},
    conditions::{self, Finding},
    job::Note,
    names, peers,
};
use k8s_openapi::{api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
    runtime::{controller::Action, reflector::ObjectRef},
};

use crate::{
    context::{Context, now},
    status::{self, StatusError, is_overtaken},
};

/// Condition: whether the Domain gives addresses as it should.
const READY: &str = "Ready";
/// How soon to look again for what nobody announces: the authority's Secret, a site's namespace.
const AGAIN: Duration = Duration::from_secs(5);

/// Why a pass over a Domain failed. It is tried again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DomainError {
    #[error("cannot read the certificate authority of Domain {domain}")]
    Authority {
        domain: String,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("cannot {verb} DomainPeer {namespace}/{name}")]
    Peer {
        verb: &'static str,
        namespace: String,
        name: String,
        #[source]
        source: Box<kube::Error>,
    },
    #[error(transparent)]
    Status(#[from] StatusError),
}

pub(crate) async fn reconcile(
    domain: Arc<Domain>,
    ctx: Arc<Context>,
) -> Result<Action, DomainError> {
    if domain.metadata.deletion_timestamp.is_some() {
        return Ok(Action::await_change());
    }
    let name = names::of_domain(&domain);
    let pods = ctx.stores.pods.state_filter(|p| p.spec.domain == name && is_entitled(p, &ctx));
    let mut new = domain.status.clone().unwrap_or_default();
    let (subnets, fault) = match (subnets_of(&domain), new.cidr.parse::<Subnets>()) {
        (Ok(subnets), _) => (subnets, None),
        // A slip in an edit must not take the network from the pods that run.
        (Err(message), Ok(last)) => (last, Some(format!("{message}; {last} stays in use"))),
        (Err(message), Err(_none_yet)) => {
            report(&domain, &mut new, Finding::no(READY, "InvalidCIDR", message), &ctx).await?;
            return Ok(Action::await_change());
        }
    };
    let claims = peers::claims(&pods, |namespace, task| {
        let key = ObjectRef::new(task).within(namespace);
        ctx.stores.tasks.get(&key).and_then(|t| peers::job_of_task(&t))
    });
    let allocated = allocate(&subnets, &claims, &new.ip_allocations);
    new.cidr = subnets.to_string();
    new.ip_allocations.clone_from(&allocated.allocations);
    let finding = match (fault, ports_fault(&domain)) {
        (Some(message), _) => Finding::no(READY, "InvalidCIDR", message),
        (None, Some(message)) => Finding::no(READY, "InvalidPorts", message),
        (None, None) => judge(&domain, &subnets, &allocated, &ctx),
    };
    report(&domain, &mut new, finding, &ctx).await?;
    peers_of(&domain, &subnets, &pods, &allocated, &ctx).await
}

fn is_entitled(pod: &Pod, ctx: &Context) -> bool {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let task = ctx.stores.tasks.get(&ObjectRef::new(&pod.spec.task_name).within(namespace));
    let job = task.as_deref().and_then(peers::job_of_task);
    let job = job.and_then(|name| ctx.stores.jobs.get(&ObjectRef::new(&name)));
    peers::is_entitled(pod, task.as_deref(), job.as_deref())
}

const PORTS: &str = "spec.allowedPorts";

/// Ports that no range says are not allowed; the others of the list are.
fn ports_fault(domain: &Domain) -> Option<String> {
    let mut errors = validate::domain(names::of_domain(domain), &domain.spec);
    errors.retain(|e| e.field.starts_with(PORTS));
    (!errors.is_empty()).then(|| validate::summary(&errors))
}

fn subnets_of(domain: &Domain) -> Result<Subnets, String> {
    let mut errors = validate::domain(names::of_domain(domain), &domain.spec);
    errors.retain(|e| !e.field.starts_with(PORTS));
    if errors.is_empty() {
        domain.spec.cidr.parse::<Subnets>().map_err(|e| e.to_string())
    } else {
        Err(validate::summary(&errors))
    }
}

fn judge(domain: &Domain, subnets: &Subnets, allocated: &Allocated, ctx: &Context) -> Finding {
    if let Some(first) = allocated.unserved.first() {
        let n = allocated.unserved.len();
        let message = format!("{subnets} has no address left for {n} pods, such as {first}");
        return Finding::no(READY, "Exhausted", message);
    }
    if let Some((other, its)) = peers::overlapped_by(domain, subnets, &ctx.stores.domains.state()) {
        let message = format!(
            "{subnets} overlaps {its} of Domain {other}; addresses are given out, but are not unique between the two"
        );
        return Finding::no(READY, "OverlappingCIDR", message);
    }
    Finding::yes(READY, "AddressesGiven", format!("every pod has an address of {subnets}"))
}

/// Writes the status and, when the finding is news, says so.
async fn report(
    domain: &Domain,
    new: &mut DomainStatus,
    finding: Finding,
    ctx: &Context,
) -> Result<(), StatusError> {
    let old = domain.status.as_ref();
    let before = old.and_then(|s| s.conditions.iter().find(|c| c.type_ == READY));
    let news = before.is_none_or(|c| c.reason != finding.reason);
    let note = Note {
        warning: !finding.status,
        reason: finding.reason.to_owned(),
        message: finding.message.clone(),
    };
    conditions::set(&mut new.conditions, finding, domain.metadata.generation, &now());
    new.observed_generation = domain.metadata.generation;
    let api: Api<Domain> = Api::all(ctx.client.clone());
    if status::write(&api, domain, old, new).await? && news {
        ctx.notes.publish(domain, &[note]).await;
    }
    Ok(())
}

async fn peers_of(
    domain: &Domain,
    subnets: &Subnets,
    pods: &[Arc<Pod>],
    allocated: &Allocated,
    ctx: &Context,
) -> Result<Action, DomainError> {
    let name = names::of_domain(domain);
    let existing: BTreeMap<String, Arc<DomainPeer>> = ctx
        .stores
        .peers
        .state_filter(|p| p.metadata.name.as_deref() == Some(name))
        .into_iter()
        .filter_map(|p| Some((p.metadata.namespace.clone()?, p)))
        .collect();
    let mut wanted = peers::peers(subnets, pods, allocated, "");
    let mut incomplete = false;
    if !wanted.is_empty() {
        match authority(domain, ctx).await? {
            Some(certificate) => {
                for peer in wanted.values_mut() {
                    certificate.clone_into(&mut peer.cert);
                }
            }
            None => incomplete = true,
        }
    }
    for (namespace, spec) in &wanted {
        let old = existing.get(namespace).map(Arc::as_ref);
        incomplete |= !write_peer(domain, namespace, spec, old, ctx).await?;
    }
    for (namespace, _) in existing.iter().filter(|(n, _)| !wanted.contains_key(*n)) {
        let api: Api<DomainPeer> = Api::namespaced(ctx.client.clone(), namespace);
        match api.delete(name, &DeleteParams::background()).await {
            Ok(_) => {}
            Err(error) if is_overtaken(&error) => {}
            Err(source) => return Err(peer_error("delete", namespace, name, source)),
        }
    }
    Ok(if incomplete { Action::requeue(AGAIN) } else { Action::await_change() })
}

/// The public half of the Domain's SSH authority; none until the hub has made it.
async fn authority(domain: &Domain, ctx: &Context) -> Result<Option<String>, DomainError> {
    let uid = domain.metadata.uid.as_ref();
    let domain = names::of_domain(domain);
    let api: Api<Secret> = Api::namespaced(ctx.client.clone(), labels::SYSTEM_NAMESPACE);
    let secret = api.get_opt(&names::domain_ca_secret(domain)).await.map_err(|source| {
        DomainError::Authority { domain: domain.to_owned(), source: Box::new(source) }
    })?;
    // One of an earlier Domain of the name is about to be replaced.
    let secret = secret
        .filter(|s| s.metadata.annotations.as_ref().and_then(|a| a.get(labels::DOMAIN_UID)) == uid);
    let public = secret.and_then(|s| s.data?.remove(labels::DOMAIN_CA_PUBLIC));
    Ok(public.and_then(|p| String::from_utf8(p.0).ok()).map(|p| p.trim().to_owned()))
}

/// Returns whether it is as wanted; not when the site's namespace is missing.
async fn write_peer(
    domain: &Domain,
    namespace: &str,
    spec: &DomainPeerSpec,
    old: Option<&DomainPeer>,
    ctx: &Context,
) -> Result<bool, DomainError> {
    let name = names::of_domain(domain);
    let api: Api<DomainPeer> = Api::namespaced(ctx.client.clone(), namespace);
    let owner = OwnerReference {
        api_version: labels::API_VERSION.to_owned(),
        kind: "Domain".to_owned(),
        name: name.to_owned(),
        uid: domain.metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    };
    let mut new = old.cloned().unwrap_or_else(|| {
        let mut fresh = DomainPeer::new(name, DomainPeerSpec::default());
        fresh.metadata.namespace = Some(namespace.to_owned());
        fresh
    });
    new.spec = spec.clone();
    new.metadata.owner_references = Some(vec![owner]);
    let result = match old {
        Some(old) if *old == new => return Ok(true),
        Some(_) => api.replace(name, &PostParams::default(), &new).await,
        None => api.create(&PostParams::default(), &new).await,
    };
    match result {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(s)) if s.code == 404 && old.is_none() => {
            tracing::warn!(domain = name, namespace, "the site's namespace does not exist");
            Ok(false)
        }
        Err(source) => {
            let verb = if old.is_some() { "update" } else { "create" };
            Err(peer_error(verb, namespace, name, source))
        }
    }
}

fn peer_error(verb: &'static str, namespace: &str, name: &str, source: kube::Error) -> DomainError {
    DomainError::Peer {
        verb,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        source: Box::new(source),
    }
}
