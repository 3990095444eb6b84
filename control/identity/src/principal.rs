//! The caller of a request, parsed once where the connection is accepted.

use control_api::ids::NodeRef;

/// An authenticated (or openly anonymous) caller. Only the edge constructs one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Principal {
    /// Holder of an `O=rlark:admins` certificate; everything is allowed (`system:masters`).
    Admin { name: String },
    /// The agent of a site.
    Agent(NodeRef),
    /// The data path of a machine.
    Node(NodeRef),
    /// A person or service with a name and groups, authorised by RBAC objects alone.
    User { name: String, groups: Vec<String> },
    /// Nobody; may read discovery and health only.
    Anonymous,
}

/// Organisation (O) of each machine's or admin's certificate subject.
pub const ADMINS: &str = "rlark:admins";
pub const AGENTS: &str = "rlark:agents";
pub const NODES: &str = "rlark:nodes";

impl Principal {
    /// The Kubernetes user name.
    #[must_use]
    pub fn user(&self) -> String {
        match self {
            Self::Admin { name } => name.clone(),
            Self::Agent(n) => format!("rlark:agent:{n}"),
            Self::Node(n) => format!("rlark:node:{n}"),
            Self::User { name, .. } => name.clone(),
            Self::Anonymous => "system:anonymous".to_owned(),
        }
    }

    /// The Kubernetes groups, `system:authenticated` or `system:unauthenticated` among them.
    #[must_use]
    pub fn groups(&self) -> Vec<String> {
        let authenticated = "system:authenticated".to_owned();
        match self {
            Self::Admin { .. } => vec!["system:masters".to_owned(), authenticated],
            Self::Agent(n) => {
                vec![AGENTS.to_owned(), format!("{AGENTS}:{}", n.cluster), authenticated]
            }
            Self::Node(_) => vec![NODES.to_owned(), authenticated],
            Self::User { groups, .. } => {
                let mut all = groups.clone();
                if !all.contains(&authenticated) {
                    all.push(authenticated);
                }
                all
            }
            Self::Anonymous => vec!["system:unauthenticated".to_owned()],
        }
    }
}
