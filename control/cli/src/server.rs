//! The server behind a kubeconfig: Kubernetes API and the hub's routes on the same address.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde::{Serialize, de::DeserializeOwned};

const INSTALLED: &str = "/var/lib/rlark/server/admin.kubeconfig";

/// A connected (not yet called) server.
pub(crate) struct Server {
    pub(crate) client: Client,
    pub(crate) url: String,
    pub(crate) kubeconfig: PathBuf,
    pub(crate) user: String,
}

impl Server {
    pub(crate) async fn connect(file: Option<&Path>, context: Option<String>) -> Result<Self> {
        let kubeconfig = find(file)?;
        let parsed = Kubeconfig::read_from(&kubeconfig)
            .with_context(|| format!("cannot read kubeconfig {}", kubeconfig.display()))?;
        let options = KubeConfigOptions { context, ..KubeConfigOptions::default() };
        let wanted = options.context.clone().or_else(|| parsed.current_context.clone());
        let named = parsed.contexts.iter().find(|c| Some(&c.name) == wanted.as_ref());
        let user = named.and_then(|c| c.context.as_ref()?.user.clone()).unwrap_or_default();
        let config = Config::from_custom_kubeconfig(parsed, &options)
            .await
            .with_context(|| format!("kubeconfig {}", kubeconfig.display()))?;
        let url = config.cluster_url.to_string().trim_end_matches('/').to_owned();
        let client = Client::try_from(config)
            .with_context(|| format!("kubeconfig {}", kubeconfig.display()))?;
        Ok(Self { client, url, kubeconfig, user })
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        let request = http::Request::get(path).body(Vec::new())?;
        self.client.request(request).await.map_err(|e| self.explain(e))
    }

    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &(impl Serialize + Sync),
    ) -> Result<T> {
        let request = http::Request::post(path)
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(serde_json::to_vec(body)?)?;
        self.client.request(request).await.map_err(|e| self.explain(e))
    }

    /// The server's own words where it has some; else that it cannot be reached, and where.
    pub(crate) fn explain(&self, error: kube::Error) -> anyhow::Error {
        match error {
            kube::Error::Api(status) if !status.message.is_empty() => anyhow!("{}", status.message),
            kube::Error::Api(status) => anyhow!("the server answered {}", status.code),
            other => anyhow::Error::new(other).context(format!("server {}", self.url)),
        }
    }
}

fn find(file: Option<&Path>) -> Result<PathBuf> {
    if let Some(file) = file {
        return Ok(file.to_owned());
    }
    if let Some(list) = std::env::var_os("KUBECONFIG").filter(|v| !v.is_empty()) {
        // Like kubectl with several files, but without merging: the first that exists.
        let all: Vec<PathBuf> = std::env::split_paths(&list).collect();
        let first = all.iter().find(|p| p.exists()).or_else(|| all.first());
        return first.cloned().context("KUBECONFIG names no file");
    }
    let home = std::env::var_os("HOME").map(|h| Path::new(&h).join(".kube/config"));
    let candidates = [Some(PathBuf::from(INSTALLED)), home];
    for path in candidates.into_iter().flatten() {
        if std::fs::File::open(&path).is_ok() {
            return Ok(path);
        }
    }
    bail!("no kubeconfig: give --kubeconfig FILE or set KUBECONFIG")
}

/// All causes in one line; one that its parent already told is left out.
pub(crate) fn one_line(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let words = cause.to_string();
        if text.contains(&words) {
            continue;
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&words);
    }
    text.replace('\n', " ")
}
