//! Names of stored objects and of sets of them.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

/// Separates the parts; sorts below every character a name may contain, so that keys order by
/// (group, resource, namespace, name).
const SEPARATOR: char = '\0';

/// Identity of one object: group, resource (plural), namespace (empty when cluster-scoped), name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

impl Key {
    /// Parts must not contain NUL; the API server validates names before they come here.
    #[must_use]
    pub fn new(group: &str, resource: &str, namespace: &str, name: &str) -> Self {
        Self(format!("{group}\0{resource}\0{namespace}\0{name}").into())
    }

    pub(crate) fn from_stored(text: &str) -> Self {
        Self(text.into())
    }

    /// The whole key as it is ordered and stored.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn part(&self, index: usize) -> &str {
        self.0.splitn(4, SEPARATOR).nth(index).unwrap_or_default()
    }

    #[must_use]
    pub fn group(&self) -> &str {
        self.part(0)
    }

    #[must_use]
    pub fn resource(&self) -> &str {
        self.part(1)
    }

    #[must_use]
    pub fn namespace(&self) -> &str {
        self.part(2)
    }

    #[must_use]
    pub fn name(&self) -> &str {
        self.part(3)
    }
}

impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.replace(SEPARATOR, "/"))
    }
}

/// A contiguous set of keys: everything, a resource, or a resource within one namespace.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Scope(Arc<str>);

impl Scope {
    /// Every object of the workspace.
    #[must_use]
    pub fn everything() -> Self {
        Self("".into())
    }

    /// A resource in all namespaces, or in one.
    #[must_use]
    pub fn resource(group: &str, resource: &str, namespace: Option<&str>) -> Self {
        Self(match namespace {
            Some(namespace) => format!("{group}\0{resource}\0{namespace}\0").into(),
            None => format!("{group}\0{resource}\0").into(),
        })
    }

    #[must_use]
    pub fn contains(&self, key: &Key) -> bool {
        key.as_str().starts_with(&*self.0)
    }

    pub(crate) fn start(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}*", self.0.replace(SEPARATOR, "/"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_gives_back_its_parts() {
        let key = Key::new("rlinf.io", "jobs", "default", "a.b");
        assert_eq!(
            (key.group(), key.resource(), key.namespace(), key.name()),
            ("rlinf.io", "jobs", "default", "a.b")
        );
    }

    #[test]
    fn a_resource_does_not_contain_one_with_a_longer_name() {
        let key = Key::new("", "pods2", "default", "a");
        assert!(!Scope::resource("", "pods", None).contains(&key));
        assert!(!Scope::resource("", "pods2", Some("def")).contains(&key));
        assert!(Scope::resource("", "pods2", Some("default")).contains(&key));
    }
}
