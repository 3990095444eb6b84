//! Brings a task's artifact to this machine: parsed from text, fetched once, kept by digest.
//!
//! The cache holds `<sha256>/<name>`, never changed once it is there. A URL without a digest is
//! fetched again each time, because what stands behind it may have changed.

use std::{
    fs::{self, File},
    io::{self, Read as _, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    str::FromStr,
};

use http_body_util::{BodyExt as _, Empty};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use sha2::{Digest as _, Sha256};

/// Why a text is not an artifact.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArtifactSyntax {
    #[error("artifact {text:?} is neither an absolute path nor a file://, http:// or https:// URL")]
    Scheme { text: String },
    #[error("artifact {text:?} has an unknown fragment: only #sha256= and 64 hexadecimal digits")]
    Digest { text: String },
    #[error("artifact {text:?} has no file name")]
    NoName { text: String },
}

/// Why an artifact could not be had. Names the artifact; the cause is the source.
#[derive(Debug, thiserror::Error)]
pub enum ArtifactError {
    #[error(transparent)]
    Syntax(#[from] ArtifactSyntax),
    #[error("cannot read artifact {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("artifact {path} is not a regular file")]
    NotAFile { path: PathBuf },
    #[error("cannot fetch artifact {url}: {reason}")]
    Fetch { url: String, reason: String },
    #[error("artifact {artifact} has sha256 {found}, but {wanted} was asked for")]
    Digest { artifact: String, wanted: String, found: String },
    #[error("cannot keep the artifact in {path}")]
    Cache {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl ArtifactError {
    /// Whether the same request may succeed later.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Fetch { .. } | Self::Cache { .. })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    File(PathBuf),
    Url(http::Uri),
}

/// A checked reference to an artifact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Artifact {
    place: Place,
    name: String,
    sha256: Option<String>,
}

impl FromStr for Artifact {
    type Err = ArtifactSyntax;

    fn from_str(text: &str) -> Result<Self, ArtifactSyntax> {
        let (location, fragment) = match text.split_once('#') {
            Some((location, fragment)) => (location, Some(fragment)),
            None => (text, None),
        };
        let sha256 = fragment.map(|f| digest_of(f, text)).transpose()?;
        let scheme = || ArtifactSyntax::Scheme { text: text.to_owned() };
        let (place, path) = if let Some(path) = location.strip_prefix("file://") {
            (Place::File(PathBuf::from(path)), path.to_owned())
        } else if location.starts_with('/') {
            (Place::File(PathBuf::from(location)), location.to_owned())
        } else if location.starts_with("http://") || location.starts_with("https://") {
            let uri: http::Uri = location.parse().map_err(|_not_a_uri| scheme())?;
            let path = uri.path().to_owned();
            (Place::Url(uri), path)
        } else {
            return Err(scheme());
        };
        if !path.starts_with('/') {
            return Err(scheme());
        }
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        if name.is_empty() || name == "." || name == ".." {
            return Err(ArtifactSyntax::NoName { text: text.to_owned() });
        }
        Ok(Self { place, name, sha256 })
    }
}

fn digest_of(fragment: &str, text: &str) -> Result<String, ArtifactSyntax> {
    let digest = fragment
        .strip_prefix("sha256=")
        .filter(|d| d.len() == 64 && d.bytes().all(|b| b.is_ascii_hexdigit()));
    digest
        .map(str::to_ascii_lowercase)
        .ok_or_else(|| ArtifactSyntax::Digest { text: text.to_owned() })
}

impl Artifact {
    /// The file name by which the pod finds it in its PATH.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Path of the executable in `cache`, fetched if it is not there yet.
    pub async fn fetch(&self, cache: &Path) -> Result<PathBuf, ArtifactError> {
        if let Some(digest) = &self.sha256 {
            let kept = cache.join(digest).join(&self.name);
            if kept.is_file() {
                return Ok(kept);
            }
        }
        fs::create_dir_all(cache).map_err(|source| keep_error(cache, source))?;
        let mut part = Part::new(cache)?;
        match &self.place {
            Place::File(path) => copy(path, &mut part)?,
            Place::Url(uri) => download(uri, &mut part).await?,
        }
        self.keep(part, cache)
    }

    fn keep(&self, part: Part, cache: &Path) -> Result<PathBuf, ArtifactError> {
        let found = hex(&part.hash.clone().finalize());
        if let Some(wanted) = self.sha256.as_ref().filter(|w| **w != found) {
            let artifact = match &self.place {
                Place::File(path) => path.display().to_string(),
                Place::Url(uri) => public(uri),
            };
            return Err(ArtifactError::Digest { artifact, wanted: wanted.clone(), found });
        }
        let dir = cache.join(&found);
        let path = dir.join(&self.name);
        let put = || -> io::Result<()> {
            part.file.set_permissions(fs::Permissions::from_mode(0o755))?;
            part.file.sync_all()?;
            fs::create_dir_all(&dir)?;
            // Replacing would change the file under a pod that runs it from here.
            if !path.is_file() {
                fs::rename(&part.path, &path)?;
            }
            Ok(())
        };
        put().map_err(|source| keep_error(&path, source))?;
        Ok(path)
    }
}

fn keep_error(path: &Path, source: io::Error) -> ArtifactError {
    ArtifactError::Cache { path: path.to_owned(), source }
}

/// A file that is being filled; removed unless it was kept.
struct Part {
    path: PathBuf,
    file: File,
    hash: Sha256,
}

impl Part {
    fn new(cache: &Path) -> Result<Self, ArtifactError> {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let n = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = cache.join(format!(".part-{}-{n}", std::process::id()));
        let file = File::create(&path).map_err(|source| keep_error(&path, source))?;
        Ok(Self { path, file, hash: Sha256::new() })
    }

    fn add(&mut self, bytes: &[u8]) -> Result<(), ArtifactError> {
        self.hash.update(bytes);
        self.file.write_all(bytes).map_err(|source| keep_error(&self.path, source))
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // Gone already when it was kept.
        crate::ignore(fs::remove_file(&self.path));
    }
}

fn copy(path: &Path, part: &mut Part) -> Result<(), ArtifactError> {
    let fail = |source| ArtifactError::Read { path: path.to_owned(), source };
    let mut file = File::open(path).map_err(fail)?;
    if !file.metadata().map_err(fail)?.is_file() {
        return Err(ArtifactError::NotAFile { path: path.to_owned() });
    }
    let mut chunk = vec![0; 1024 * 1024];
    loop {
        let n = file.read(&mut chunk).map_err(fail)?;
        match chunk.get(..n) {
            Some([]) | None => return Ok(()),
            Some(bytes) => part.add(bytes)?,
        }
    }
}

/// Redirects followed before giving up.
const REDIRECTS: usize = 5;

async fn download(uri: &http::Uri, part: &mut Part) -> Result<(), ArtifactError> {
    let fail = |reason: String| ArtifactError::Fetch { url: public(uri), reason };
    let tls = hyper_rustls::HttpsConnectorBuilder::new()
        .with_provider_and_native_roots(rustls::crypto::aws_lc_rs::default_provider())
        .map_err(|e| fail(e.to_string()))?
        .https_or_http()
        .enable_http1()
        .build();
    let client: Client<_, Empty<bytes::Bytes>> = Client::builder(TokioExecutor::new()).build(tls);
    let mut target = uri.clone();
    for _ in 0..=REDIRECTS {
        let answer = client.get(target.clone()).await.map_err(|e| fail(chain(&e)))?;
        if answer.status().is_redirection() {
            let location = answer.headers().get(http::header::LOCATION);
            target = redirect(&target, location.and_then(|l| l.to_str().ok()))
                .ok_or_else(|| fail("it redirects to no usable place".to_owned()))?;
            continue;
        }
        if !answer.status().is_success() {
            return Err(fail(format!("the server answered {}", answer.status())));
        }
        let mut body = answer.into_body();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|e| fail(chain(&e)))?;
            if let Some(data) = frame.data_ref() {
                part.add(data)?;
            }
        }
        return Ok(());
    }
    Err(fail(format!("more than {REDIRECTS} redirects")))
}

/// The next URL; a downgrade from https to http is refused.
fn redirect(from: &http::Uri, location: Option<&str>) -> Option<http::Uri> {
    let to: http::Uri = location?.parse().ok()?;
    let mut parts = to.into_parts();
    if parts.authority.is_none() {
        parts.scheme = from.scheme().cloned();
        parts.authority = from.authority().cloned();
    }
    let to = http::Uri::from_parts(parts).ok()?;
    let downgrade = from.scheme_str() == Some("https") && to.scheme_str() != Some("https");
    (!downgrade).then_some(to)
}

/// A URL without its query and credentials, which may hold secrets.
fn public(uri: &http::Uri) -> String {
    let host = uri.host().unwrap_or_default();
    let port = uri.port_u16().map(|p| format!(":{p}")).unwrap_or_default();
    format!("{}://{host}{port}{}", uri.scheme_str().unwrap_or_default(), uri.path())
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(e) = cause {
        text = format!("{text}: {e}");
        cause = e.source();
    }
    text
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, b| {
        // Writing into a String cannot fail.
        crate::ignore(write!(text, "{b:02x}"));
        text
    })
}

#[cfg(test)]
mod tests;
