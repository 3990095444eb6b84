//! What a request is about, read from its method, path and query alone. Pure.

use axum::http::Method;
use control_schema::FieldError;
use serde_json::Value;

use crate::status::ApiError;

/// Longest `fieldManager`, in bytes.
const MAX_FIELD_MANAGER: usize = 128;

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
    /// As it was sent; see [`Query::check`].
    pub dry_run_values: Vec<String>,
    pub dry_run: bool,
    pub field_manager: String,
    pub field_validation: FieldValidation,
    /// A value of `fieldValidation` that is none; see [`Query::check`].
    pub field_validation_unknown: Option<String>,
    pub force: Option<bool>,
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

    /// Checks the options of a verb, with kube's messages.
    pub fn check(&self, verb: Verb) -> Result<(), ApiError> {
        let (kind, errors) = match verb {
            Verb::Get => return Ok(()),
            Verb::List => ("ListOptions", self.list_errors()),
            Verb::Watch => ("ListOptions", self.watch_errors()),
            Verb::Create => ("CreateOptions", self.write_errors()),
            Verb::Update => ("UpdateOptions", self.write_errors()),
            Verb::Patch => ("PatchOptions", self.write_errors()),
            Verb::Delete | Verb::DeleteCollection => {
                ("DeleteOptions", check_dry_run(&self.dry_run_values).into_iter().collect())
            }
        };
        if errors.is_empty() {
            return Ok(());
        }
        Err(invalid_options(kind, errors))
    }

    fn write_errors(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        if self.field_manager.len() > MAX_FIELD_MANAGER {
            errors.push(FieldError::too_long("fieldManager", MAX_FIELD_MANAGER as u64));
        }
        for (at, c) in self.field_manager.char_indices().filter(|(_, c)| c.is_control()) {
            let detail = format!("invalid character U+{:04X} (at position {at})", u32::from(c));
            let shown = Value::from(self.field_manager.as_str());
            errors.push(FieldError::invalid("fieldManager", &shown, &detail));
        }
        errors.extend(check_dry_run(&self.dry_run_values));
        if let Some(unknown) = &self.field_validation_unknown {
            errors.push(FieldError::not_supported(
                "fieldValidation",
                &Value::from(unknown.as_str()),
                &["", "Ignore", "Strict", "Warn"].map(Value::from),
            ));
        }
        errors
    }

    fn list_errors(&self) -> Vec<FieldError> {
        const FIELD: &str = "resourceVersionMatch";
        let mut errors = Vec::new();
        let wanted = self.resource_version_match.as_str();
        let mut forbid =
            |field: &str, detail: &str| errors.push(FieldError::forbidden(field, detail));
        if !wanted.is_empty() {
            if self.resource_version.is_empty() {
                forbid(
                    FIELD,
                    "resourceVersionMatch is forbidden unless resourceVersion is provided",
                );
            }
            if !self.continue_token.is_empty() {
                forbid(FIELD, "resourceVersionMatch is forbidden when continue is provided");
            }
            if wanted == "Exact" && self.resource_version == "0" {
                forbid(
                    FIELD,
                    "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
                );
            }
        }
        if self.send_initial_events.is_some() {
            forbid("sendInitialEvents", "sendInitialEvents is forbidden for list");
        }
        if !matches!(wanted, "" | "Exact" | "NotOlderThan") {
            errors.push(FieldError::not_supported(
                FIELD,
                &Value::from(wanted),
                &["Exact", "NotOlderThan", ""].map(Value::from),
            ));
        }
        errors
    }

    fn watch_errors(&self) -> Vec<FieldError> {
        const FIELD: &str = "resourceVersionMatch";
        const NOT_OLDER: &str = "NotOlderThan";
        let mut errors = Vec::new();
        let wanted = self.resource_version_match.as_str();
        if self.send_initial_events.is_some() && wanted != NOT_OLDER {
            let detail = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
            errors.push(FieldError::forbidden(FIELD, detail));
        }
        if wanted.is_empty() {
            return errors;
        }
        if self.send_initial_events.is_none() {
            let detail =
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
            errors.push(FieldError::forbidden(FIELD, detail));
        }
        if wanted != NOT_OLDER {
            let known = [Value::from(NOT_OLDER)];
            errors.push(FieldError::not_supported(FIELD, &Value::from(wanted), &known));
        }
        if !self.continue_token.is_empty() {
            let detail = "resourceVersionMatch is forbidden when continue is provided";
            errors.push(FieldError::forbidden(FIELD, detail));
        }
        errors
    }

    fn set(&mut self, key: &str, value: String) -> Result<(), ApiError> {
        match key {
            // Go's client writes a limit of zero for "all" and negative ones mean the same.
            "limit" => self.limit = usize::try_from(number(&value)?).unwrap_or_default(),
            "continue" => self.continue_token = value,
            "labelSelector" => self.label_selector = value,
            "fieldSelector" => self.field_selector = value,
            "watch" => self.watch = truth(&value),
            "resourceVersion" => self.resource_version = value,
            "resourceVersionMatch" => self.resource_version_match = value,
            "timeoutSeconds" => self.timeout_seconds = u64::try_from(number(&value)?).ok(),
            "allowWatchBookmarks" => self.allow_watch_bookmarks = truth(&value),
            "sendInitialEvents" => self.send_initial_events = Some(truth(&value)),
            "dryRun" => {
                self.dry_run |= value == DRY_RUN_ALL;
                self.dry_run_values.push(value);
            }
            "fieldManager" => self.field_manager = value,
            "fieldValidation" => match field_validation(&value) {
                Some(known) => self.field_validation = known,
                None => self.field_validation_unknown = Some(value),
            },
            "force" => self.force = Some(truth(&value)),
            "gracePeriodSeconds" => self.grace_period_seconds = Some(number(&value)?),
            "propagationPolicy" => self.propagation_policy = Some(value),
            "orphanDependents" => self.orphan_dependents = Some(truth(&value)),
            "includeObject" => self.include_object = value,
            _ => {}
        }
        Ok(())
    }
}

/// The refusal of request options of a kind of `meta.k8s.io`.
pub(crate) fn invalid_options(kind: &str, errors: Vec<FieldError>) -> ApiError {
    ApiError::Invalid {
        group: "meta.k8s.io".to_owned(),
        kind: kind.to_owned(),
        name: String::new(),
        errors,
    }
}

fn truth(value: &str) -> bool {
    !matches!(value, "false" | "0")
}

fn number(value: &str) -> Result<i64, ApiError> {
    value.parse().map_err(|_not| {
        ApiError::bad(format!("strconv.ParseInt: parsing {value:?}: invalid syntax"))
    })
}

pub(crate) const DRY_RUN_ALL: &str = "All";

/// Refuses values of `dryRun` other than the one there is.
pub(crate) fn check_dry_run(values: &[String]) -> Option<FieldError> {
    let shown = Value::from(values.to_vec());
    values
        .iter()
        .any(|v| v != DRY_RUN_ALL)
        .then(|| FieldError::not_supported("dryRun", &shown, &[Value::from(DRY_RUN_ALL)]))
}

fn field_validation(value: &str) -> Option<FieldValidation> {
    match value {
        "" | "Warn" => Some(FieldValidation::Warn),
        "Ignore" => Some(FieldValidation::Ignore),
        "Strict" => Some(FieldValidation::Strict),
        _ => None,
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
        let refused = |query: &str, verb| Query::parse(query).unwrap().check(verb).unwrap_err();
        assert_eq!(
            refused("fieldValidation=Maybe&dryRun=No", Verb::Create).to_string(),
            "CreateOptions.meta.k8s.io \"\" is invalid: [dryRun: Unsupported value: [\"No\"]: supported values: \"All\", fieldValidation: Unsupported value: \"Maybe\": supported values: \"\", \"Ignore\", \"Strict\", \"Warn\"]"
        );
        assert_eq!(
            refused("resourceVersionMatch=Exact&resourceVersion=0", Verb::List).to_string(),
            "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\""
        );
        assert_eq!(
            refused("sendInitialEvents=true", Verb::Watch).to_string(),
            "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        );
        assert!(Query::parse("limit=x").is_err());
    }
}
