//! Field numbers of the messages of `k8s.io/api` that this server takes in.

/// The fields of a message that matter; others are skipped.
pub(super) type Message = &'static [Field];

#[derive(Debug)]
pub(super) struct Field {
    pub(super) number: u64,
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) repeated: bool,
}

#[derive(Debug)]
pub(super) enum Kind {
    Text,
    Bytes,
    Bool,
    Int,
    Time,
    MicroTime,
    Raw,
    Message(Message),
    /// From strings.
    Map(&'static Self),
}

const fn one(number: u64, name: &'static str, kind: Kind) -> Field {
    Field { number, name, kind, repeated: false }
}

const fn many(number: u64, name: &'static str, kind: Kind) -> Field {
    Field { number, name, kind, repeated: true }
}

const fn text(number: u64, name: &'static str) -> Field {
    one(number, name, Kind::Text)
}

const fn message(number: u64, name: &'static str, message: Message) -> Field {
    one(number, name, Kind::Message(message))
}

const META: Field = message(
    1,
    "metadata",
    &[
        text(1, "name"),
        text(2, "generateName"),
        text(3, "namespace"),
        text(5, "uid"),
        text(6, "resourceVersion"),
        one(7, "generation", Kind::Int),
        one(8, "creationTimestamp", Kind::Time),
        one(9, "deletionTimestamp", Kind::Time),
        one(10, "deletionGracePeriodSeconds", Kind::Int),
        one(11, "labels", Kind::Map(&Kind::Text)),
        one(12, "annotations", Kind::Map(&Kind::Text)),
        many(
            13,
            "ownerReferences",
            Kind::Message(&[
                text(1, "kind"),
                text(3, "name"),
                text(4, "uid"),
                text(5, "apiVersion"),
                one(6, "controller", Kind::Bool),
                one(7, "blockOwnerDeletion", Kind::Bool),
            ]),
        ),
        many(14, "finalizers", Kind::Text),
        many(
            17,
            "managedFields",
            Kind::Message(&[
                text(1, "manager"),
                text(2, "operation"),
                text(3, "apiVersion"),
                one(4, "time", Kind::Time),
                text(6, "fieldsType"),
                one(7, "fieldsV1", Kind::Raw),
                text(8, "subresource"),
            ]),
        ),
    ],
);

const REFERENCE: Message = &[
    text(1, "kind"),
    text(2, "namespace"),
    text(3, "name"),
    text(4, "uid"),
    text(5, "apiVersion"),
    text(6, "resourceVersion"),
    text(7, "fieldPath"),
];

const SOURCE: Message = &[text(1, "component"), text(2, "host")];

const SERIES: Message = &[one(1, "count", Kind::Int), one(2, "lastObservedTime", Kind::MicroTime)];

const RULES: Field = many(
    2,
    "rules",
    Kind::Message(&[
        many(1, "verbs", Kind::Text),
        many(2, "apiGroups", Kind::Text),
        many(3, "resources", Kind::Text),
        many(4, "resourceNames", Kind::Text),
        many(5, "nonResourceURLs", Kind::Text),
    ]),
);

const BINDING: Message = &[
    META,
    many(
        2,
        "subjects",
        Kind::Message(&[
            text(1, "kind"),
            text(2, "apiGroup"),
            text(3, "name"),
            text(4, "namespace"),
        ]),
    ),
    message(3, "roleRef", &[text(1, "apiGroup"), text(2, "kind"), text(3, "name")]),
];

const RESOURCE_ATTRIBUTES: Field = message(
    1,
    "resourceAttributes",
    &[
        text(1, "namespace"),
        text(2, "verb"),
        text(3, "group"),
        text(4, "version"),
        text(5, "resource"),
        text(6, "subresource"),
        text(7, "name"),
    ],
);

const PATH_ATTRIBUTES: Field =
    message(2, "nonResourceAttributes", &[text(1, "path"), text(2, "verb")]);

const ACCESS_REVIEW: Message = &[
    META,
    message(
        2,
        "spec",
        &[
            RESOURCE_ATTRIBUTES,
            PATH_ATTRIBUTES,
            text(3, "user"),
            many(4, "groups", Kind::Text),
            text(6, "uid"),
        ],
    ),
];

const EVENT: Message = &[
    META,
    message(2, "involvedObject", REFERENCE),
    text(3, "reason"),
    text(4, "message"),
    message(5, "source", SOURCE),
    one(6, "firstTimestamp", Kind::Time),
    one(7, "lastTimestamp", Kind::Time),
    one(8, "count", Kind::Int),
    text(9, "type"),
    one(10, "eventTime", Kind::MicroTime),
    message(11, "series", SERIES),
    text(12, "action"),
    message(13, "related", REFERENCE),
    text(14, "reportingComponent"),
    text(15, "reportingInstance"),
];

const NEW_EVENT: Message = &[
    META,
    one(2, "eventTime", Kind::MicroTime),
    message(3, "series", SERIES),
    text(4, "reportingController"),
    text(5, "reportingInstance"),
    text(6, "action"),
    text(7, "reason"),
    message(8, "regarding", REFERENCE),
    message(9, "related", REFERENCE),
    text(10, "note"),
    text(11, "type"),
    message(12, "deprecatedSource", SOURCE),
    one(13, "deprecatedFirstTimestamp", Kind::Time),
    one(14, "deprecatedLastTimestamp", Kind::Time),
    one(15, "deprecatedCount", Kind::Int),
];

const LEASE: Message = &[
    META,
    message(
        2,
        "spec",
        &[
            text(1, "holderIdentity"),
            one(2, "leaseDurationSeconds", Kind::Int),
            one(3, "acquireTime", Kind::MicroTime),
            one(4, "renewTime", Kind::MicroTime),
            one(5, "leaseTransitions", Kind::Int),
            text(6, "strategy"),
            text(7, "preferredHolder"),
        ],
    ),
];

const DELETE_OPTIONS: Message = &[
    one(1, "gracePeriodSeconds", Kind::Int),
    message(2, "preconditions", &[text(1, "uid"), text(2, "resourceVersion")]),
    one(3, "orphanDependents", Kind::Bool),
    text(4, "propagationPolicy"),
    many(5, "dryRun", Kind::Text),
];

const NAMESPACE: Message = &[
    META,
    message(2, "spec", &[many(1, "finalizers", Kind::Text)]),
    message(3, "status", &[text(1, "phase")]),
];

const SECRET: Message = &[
    META,
    one(2, "data", Kind::Map(&Kind::Bytes)),
    text(3, "type"),
    one(4, "stringData", Kind::Map(&Kind::Text)),
    one(5, "immutable", Kind::Bool),
];

const CONFIG_MAP: Message = &[
    META,
    one(2, "data", Kind::Map(&Kind::Text)),
    one(3, "binaryData", Kind::Map(&Kind::Bytes)),
    one(4, "immutable", Kind::Bool),
];

const SERVICE_ACCOUNT: Message = &[
    META,
    many(2, "secrets", Kind::Message(REFERENCE)),
    many(3, "imagePullSecrets", Kind::Message(&[text(1, "name")])),
    one(4, "automountServiceAccountToken", Kind::Bool),
];

const ROLE: Message = &[META, RULES];

const RULES_REVIEW: Message = &[META, message(2, "spec", &[text(1, "namespace")])];

const SELF_REVIEW: Message = &[META];

/// The message of a kind.
pub(super) fn of_kind(api_version: &str, kind: &str) -> Option<Message> {
    Some(match (api_version, kind) {
        (_, "DeleteOptions") => DELETE_OPTIONS,
        ("v1", "Namespace") => NAMESPACE,
        ("v1", "Secret") => SECRET,
        ("v1", "ConfigMap") => CONFIG_MAP,
        ("v1", "ServiceAccount") => SERVICE_ACCOUNT,
        ("v1", "Event") => EVENT,
        ("events.k8s.io/v1", "Event") => NEW_EVENT,
        ("coordination.k8s.io/v1", "Lease") => LEASE,
        ("rbac.authorization.k8s.io/v1", "Role" | "ClusterRole") => ROLE,
        ("rbac.authorization.k8s.io/v1", "RoleBinding" | "ClusterRoleBinding") => BINDING,
        (
            "authorization.k8s.io/v1",
            "SelfSubjectAccessReview" | "SubjectAccessReview" | "LocalSubjectAccessReview",
        ) => ACCESS_REVIEW,
        ("authorization.k8s.io/v1", "SelfSubjectRulesReview") => RULES_REVIEW,
        ("authentication.k8s.io/v1", "SelfSubjectReview") => SELF_REVIEW,
        _ => return None,
    })
}
