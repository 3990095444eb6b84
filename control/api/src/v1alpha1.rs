//! The objects of `rlinf.io/v1alpha1`: eight kinds, one module each.
//!
//! Field names, scopes and short names are a contract with existing manifests, SDKs and the web
//! UI. Every field that may be absent is optional, and texts that older controllers wrote freely
//! are read without loss ([`AgentType`], phases), so that no stored object becomes unreadable.

mod addon;
mod common;
mod domain;
mod domain_peer;
mod job;
mod node;
mod pod;
mod task;
mod workflow;

pub use addon::{Addon, AddonPhase, AddonSpec, AddonStatus};
pub use common::{AgentType, EnvVar, Phase, PullProgress};
pub use domain::{Domain, DomainSpec, DomainStatus, IpAllocation};
pub use domain_peer::{DomainPeer, DomainPeerSpec, DomainPeerStatus, PeerPod};
pub use job::{Job, JobPhase, JobSpec, JobStatus, JobTask, JobTaskStatus};
pub use node::{Disk, Node, NodeAddress, NodeEvent, NodeInfo, NodePhase, NodeSpec, NodeStatus};
pub use pod::{Pod, PodPhase, PodSpec, PodStatus};
pub use task::{
    DockerContainer, DockerTask, DockerVolume, KubernetesTask, RawTask, RestartPolicy, Task,
    TaskSpec, TaskStatus, Workload, WorkloadKind,
};
pub use workflow::{
    JobTemplate, Workflow, WorkflowJobStatus, WorkflowPhase, WorkflowSpec, WorkflowStatus,
};
