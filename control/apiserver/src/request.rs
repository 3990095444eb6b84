//! What a request is about, read from its method, path and query alone. Pure.

use axum::http::Method;

use crate::status::ApiError;

/// The object or collection a path names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// Empty for core.
    pub group: String,
    pub version: String,
    /// Plural, lower case.
    pub resource: String,
    /// `None` for cluster-scoped objects and for lists over all namespaces.
    pub namespace: Option<String>,
    /// `None` for collections.
    pub name: Option<String>,
    pub subresource: Option<String>,
}

/// Subresources of a namespace; any other third part is a resource inside it.
const OF_NAMESPACE: [&str; 2] = ["status", "finalize"];

impl Target {
    /// Reads `/api/v1/…` and `/apis/GROUP/VERSION/…`; `None` when the path is not of that shape.
    #[must_use]
    pub fn parse(path: &str) -> Option<Self> {
        let mut parts = path.strip_prefix('/')?.split('/').peekable();
        let group = match parts.next()? {
            "api" => String::new(),
            "apis" => decode(parts.next()?)?,
            _ => return None,
        };
        let version = decode(parts.next()?)?;
        let mut rest: Vec<String> = parts.map(decode).collect::<Option<_>>()?;
        if rest.last().is_some_and(String::is_empty) {
            rest.pop();
        }
        let mut rest = rest.into_iter();
        let first = rest.next().filter(|r| !r.is_empty())?;
        let mut target = Self { group, version, ..Self::default() };
        if first == "namespaces" {
            target.within_namespace(rest.collect());
        } else {
            target.resource = first;
            target.name = rest.next();
            target.set_subresource(&rest.collect::<Vec<_>>());
        }
        let empty = |part: &Option<String>| part.as_deref() == Some("");
        if empty(&target.name) || empty(&target.namespace) { None } else { Some(target) }
    }

    fn within_namespace(&mut self, rest: Vec<String>) {
        match rest.as_slice() {
            [] => "namespaces".clone_into(&mut self.resource),
            [name] => {
                "namespaces".clone_into(&mut self.resource);
                self.name = Some(name.clone());
            }
            [name, sub] if self.group.is_empty() && OF_NAMESPACE.contains(&sub.as_str()) => {
                "namespaces".clone_into(&mut self.resource);
                self.name = Some(name.clone());
                self.subresource = Some(sub.clone());
            }
            [namespace, resource, tail @ ..] => {
                self.namespace = Some(namespace.clone());
                self.resource.clone_from(resource);
                if let Some((name, sub)) = tail.split_first() {
                    self.name = Some(name.clone());
                    self.set_subresource(sub);
                }
            }
        }
    }

    fn set_subresource(&mut self, parts: &[String]) {
        if !parts.is_empty() {
            self.subresource = Some(parts.join("/"));
        }
    }

    /// `jobs.rlinf.io`, as messages name it.
    #[must_use]
    pub fn qualified(&self) -> String {
        if self.group.is_empty() {
            self.resource.clone()
        } else {
            format!("{}.{}", self.resource, self.group)
        }
    }

    /// The namespace that authorisation looks at: for a namespace object, itself.
    #[must_use]
    pub fn authorised_namespace(&self) -> &str {
        if self.group.is_empty() && self.resource == "namespaces" {
            return self.name.as_deref().unwrap_or_default();
        }
        self.namespace.as_deref().unwrap_or_default()
    }
}

/// Percent-decodes one path segment.
fn decode(segment: &str) -> Option<String> {
    if !segment.contains('%') {
        return Some(segment.to_owned());
    }
    let mut bytes = Vec::with_capacity(segment.len());
    let mut rest = segment.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next()?, rest.next()?];
            let text = std::str::from_utf8(&digits).ok()?;
            bytes.push(u8::from_str_radix(text, 16).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

/// How unknown or duplicate fields in a request body are treated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FieldValidation {
    Ignore,
    #[default]
    Warn,
    Strict,
}

/// Query parameters of the Kubernetes API that this server knows; others are ignored, as kube does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a query parameter of its own")]
pub struct Query {
    pub limit: usize,
    pub continue_token: String,
    pub label_selector: String,
    pub field_selector: String,
    pub watch: bool,
    pub resource_version: String,
    pub resource_version_match: String,
    pub timeout_seconds: Option<u64>,
    pub allow_watch_bookmarks: bool,
    pub send_initial_events: Option<bool>,
    pub dry_run: bool,
    pub field_manager: String,
    pub field_validation: FieldValidation,
    pub force: bool,
    pub grace_period_seconds: Option<i64>,
    pub propagation_policy: Option<String>,
    pub orphan_dependents: Option<bool>,
    pub include_object: String,
}

impl Query {
    /// Parses the part after `?`.
    pub fn parse(query: &str) -> Result<Self, ApiError> {
        let mut parsed = Self::default();
        for pair in query.split('&').filter(|p| !p.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decode(&value.replace('+', " ")).ok_or_else(|| {
                ApiError::bad(format!("invalid URL escape in query parameter {key}"))
            })?;
            parsed.set(key, value)?;
        }
        Ok(parsed)
    }

    fn set(&mut self, key: &str, value: String) -> Result<(), ApiError> {
        match key {
            // Go's client writes a limit of zero for "all" and negative ones mean the same.
            "limit" => self.limit = usize::try_from(number(key, &value)?).unwrap_or_default(),
            "continue" => self.continue_token = value,
            "labelSelector" => self.label_selector = value,
            "fieldSelector" => self.field_selector = value,
            "watch" => self.watch = truth(&value),
            "resourceVersion" => self.resource_version = value,
            "resourceVersionMatch" => self.resource_version_match = value,
            "timeoutSeconds" => self.timeout_seconds = u64::try_from(number(key, &value)?).ok(),
            "allowWatchBookmarks" => self.allow_watch_bookmarks = truth(&value),
            "sendInitialEvents" => self.send_initial_events = Some(truth(&value)),
            "dryRun" => self.dry_run = dry_run(&value)?,
            "fieldManager" => self.field_manager = value,
            "fieldValidation" => self.field_validation = field_validation(&value)?,
            "force" => self.force = truth(&value),
            "gracePeriodSeconds" => self.grace_period_seconds = Some(number(key, &value)?),
            "propagationPolicy" => self.propagation_policy = Some(value),
            "orphanDependents" => self.orphan_dependents = Some(truth(&value)),
            "includeObject" => self.include_object = value,
            _ => {}
        }
        Ok(())
    }
}

fn truth(value: &str) -> bool {
    !matches!(value, "false" | "0")
}

fn number(key: &str, value: &str) -> Result<i64, ApiError> {
    value.parse().map_err(|_not| {
        ApiError::bad(format!("invalid value for query parameter {key}: \"{value}\""))
    })
}

pub(crate) fn dry_run(value: &str) -> Result<bool, ApiError> {
    match value {
        "" => Ok(false),
        "All" => Ok(true),
        other => Err(ApiError::bad(format!("invalid dryRun value \"{other}\": must be \"All\""))),
    }
}

fn field_validation(value: &str) -> Result<FieldValidation, ApiError> {
    match value {
        "" | "Warn" => Ok(FieldValidation::Warn),
        "Ignore" => Ok(FieldValidation::Ignore),
        "Strict" => Ok(FieldValidation::Strict),
        other => Err(ApiError::bad(format!(
            "fieldValidation: Unsupported value: \"{other}\": supported values: \"Ignore\", \"Strict\", \"Warn\""
        ))),
    }
}

/// The verb of a request in Kubernetes' terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
}

impl Verb {
    /// `None` when the method means nothing on such a target.
    #[must_use]
    pub fn of(method: &Method, target: &Target, query: &Query) -> Option<Self> {
        let named = target.name.is_some();
        match *method {
            Method::GET | Method::HEAD if named && !query.watch => Some(Self::Get),
            Method::GET | Method::HEAD if query.watch => Some(Self::Watch),
            Method::GET | Method::HEAD => Some(Self::List),
            Method::POST => Some(Self::Create),
            Method::PUT => Some(Self::Update),
            Method::PATCH => Some(Self::Patch),
            Method::DELETE if named => Some(Self::Delete),
            Method::DELETE => Some(Self::DeleteCollection),
            _ => None,
        }
    }

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(path: &str) -> (String, Option<String>, Option<String>, Option<String>) {
        let t = Target::parse(path).unwrap();
        (t.resource, t.namespace, t.name, t.subresource)
    }

    fn some(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn paths_name_their_targets() {
        assert_eq!(parsed("/api/v1/namespaces"), ("namespaces".into(), None, None, None));
        assert_eq!(parsed("/api/v1/namespaces/a"), ("namespaces".into(), None, some("a"), None));
        assert_eq!(
            parsed("/api/v1/namespaces/a/finalize"),
            ("namespaces".into(), None, some("a"), some("finalize"))
        );
        assert_eq!(
            parsed("/apis/rlinf.io/v1alpha1/namespaces/a/jobs/b/status"),
            ("jobs".into(), some("a"), some("b"), some("status"))
        );
        assert_eq!(
            parsed("/apis/rlinf.io/v1alpha1/namespaces/a/jobs"),
            ("jobs".into(), some("a"), None, None)
        );
        assert_eq!(parsed("/apis/rlinf.io/v1alpha1/jobs"), ("jobs".into(), None, None, None));
        assert_eq!(
            parsed("/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Anode"),
            ("clusterroles".into(), None, some("system:node"), None)
        );
    }

    #[test]
    fn paths_of_another_shape_are_none() {
        for path in
            ["/", "/api", "/api/v1", "/apis/x/v1", "/apis", "/healthz", "/api/v1/namespaces//pods"]
        {
            assert_eq!(Target::parse(path), None, "{path}");
        }
    }

    #[test]
    fn a_query_is_decoded_and_checked() {
        let q = Query::parse("limit=500&labelSelector=a%3Db%2Cc&watch=true&dryRun=All").unwrap();
        assert_eq!(
            (q.limit, q.label_selector.as_str(), q.watch, q.dry_run),
            (500, "a=b,c", true, true)
        );
        assert!(Query::parse("fieldValidation=Maybe").is_err());
        assert!(Query::parse("limit=x").is_err());
    }
}
