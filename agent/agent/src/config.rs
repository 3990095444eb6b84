//! What the operator decides: command line over configuration file over defaults.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use cidr::{Ipv4Cidr, Ipv6Cidr};
use clap::Parser;
use control_api::{attach, ids::NodeName};
use control_identity::{client::ServerAddress, token::JoinToken};
use serde::Deserialize;

/// Runs RLark tasks on this machine.
///
/// The join token is read from --token-file or from the environment variable RLARK_TOKEN, and is
/// needed only until the machine has enrolled.
#[derive(Debug, Default, Parser, Deserialize)]
#[command(name = "rlark-agent", version)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(crate) struct Options {
    /// TOML file with these options (names as here); the command line wins.
    #[arg(long, env = "RLARK_AGENT_CONFIG", value_name = "FILE")]
    #[serde(skip)]
    config: Option<PathBuf>,
    /// Address of the control plane.
    #[arg(long, env = "RLARK_SERVER", value_name = "https://HOST[:PORT]")]
    server: Option<String>,
    /// File that holds the join token.
    #[arg(long, env = "RLARK_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// This machine's name in its cluster [default: the host name]
    #[arg(long, env = "RLARK_NODE_NAME")]
    name: Option<String>,
    /// Labels of the Node object, KEY=VALUE; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',')]
    labels: Vec<String>,
    /// Identity, artifacts, pods [default: /var/lib/rlark/agent]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Names of network namespaces [default: /run/rlark]
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// Addresses of pods on this machine; of IPv4, and after a comma of IPv6, by which they reach the site's other pods alone
    /// [default: 10.244.0.0/24, and the same below fd72:6c61:726b::]
    #[arg(long, value_name = "CIDR[,CIDR]")]
    pod_cidr: Option<String>,
    /// Where the pods of all machines of this site are: they reach each other without address
    /// translation [default: the same as --pod-cidr]
    #[arg(long, value_name = "CIDR")]
    site_cidr: Option<String>,
    /// Name of the bridge that connects pods [default: rlark0]
    #[arg(long, value_name = "NAME")]
    bridge: Option<String>,
    /// Directory of a cgroup v2 hierarchy for pods [default: where one is mounted]
    #[arg(long, value_name = "DIR")]
    cgroup: Option<PathBuf>,
    /// Where rlark-node listens for runtimes [default: /run/rlark/node.sock]
    #[arg(long, value_name = "SOCKET")]
    node_socket: Option<PathBuf>,
    /// Files and directories that no task may see, beside RLark's own and the machine's usual
    /// secrets; may be repeated.
    #[arg(long, value_name = "PATH")]
    hide: Vec<PathBuf>,
    /// Let tasks use the machine's own network (hostNetwork): they reach what the machine itself reaches, with its loopback address and
    /// the abstract sockets of its daemons, and may take its ports. Those that run when the agent starts again go on in any case.
    #[arg(long)]
    allow_host_network: bool,
    /// Leave tasks running when the agent is stopped; the next one takes them over.
    #[arg(long)]
    keep: bool,
}

/// All of it checked.
#[derive(Debug)]
pub(crate) struct Settings {
    pub server: ServerAddress,
    pub token: Option<JoinToken>,
    pub name: NodeName,
    pub labels: BTreeMap<String, String>,
    pub data_dir: PathBuf,
    pub run_dir: PathBuf,
    pub pod_cidr: Ipv4Cidr,
    pub pod_cidr6: Option<Ipv6Cidr>,
    pub site_cidr: Ipv4Cidr,
    pub bridge: String,
    pub cgroup: Option<PathBuf>,
    pub node_socket: PathBuf,
    pub hide: Vec<PathBuf>,
    pub allow_host_network: bool,
    pub keep: bool,
}

impl Options {
    /// Reads the file that `self` names, fills in what the command line left open, and checks.
    pub(crate) fn resolve(self) -> anyhow::Result<Settings> {
        let file = match &self.config {
            None => Self::default(),
            Some(path) => {
                let text = fs::read_to_string(path);
                let text = text.with_context(|| format!("cannot read {}", path.display()))?;
                toml::from_str(&text).with_context(|| format!("in {}", path.display()))?
            }
        };
        let server = self.server.or(file.server).context(
            "--server is missing (or RLARK_SERVER, or server in the configuration file): the control \
             plane's address, such as https://rlark.example:8443",
        )?;
        let name = match self.name.or(file.name) {
            Some(name) => name,
            None => crate::facts::host_name(),
        };
        let cidr = self.pod_cidr.or(file.pod_cidr).unwrap_or_else(|| "10.244.0.0/24".to_owned());
        let dir = |a: Option<PathBuf>, b: Option<PathBuf>, or: &str| {
            let path = a.or(b).unwrap_or_else(|| or.into());
            std::path::absolute(&path).with_context(|| format!("no path: {}", path.display()))
        };
        let (cidr, cidr6) = match cidr.split_once(',') {
            Some((v4, v6)) => (v4.trim().to_owned(), Some(v6.trim().to_owned())),
            None => (cidr, None),
        };
        let site = self.site_cidr.or(file.site_cidr).unwrap_or_else(|| cidr.clone());
        let pod_cidr6 = cidr6
            .map(|v6| v6.parse().with_context(|| format!("--pod-cidr {cidr},{v6}")))
            .transpose()?;
        let token_file = self.token_file.or(file.token_file);
        let node_socket = dir(self.node_socket, file.node_socket, attach::SOCKET)?;
        // Keys, tokens and the door to the data path. What lies in /run/rlark is hidden anyway.
        let mut hide: Vec<PathBuf> = ["/var/lib/rlark", "/etc/rlark"].map(Into::into).into();
        hide.extend(token_file.clone());
        hide.push(node_socket.clone());
        hide.extend(file.hide.into_iter().chain(self.hide));
        let labels = file.labels.iter().chain(&self.labels).map(|l| label(l));
        Ok(Settings {
            server: ServerAddress::parse(&server)?,
            token: token(token_file.as_deref())?,
            name: name.parse().context("--name")?,
            labels: labels.collect::<anyhow::Result<_>>()?,
            data_dir: dir(self.data_dir, file.data_dir, "/var/lib/rlark/agent")?,
            run_dir: dir(self.run_dir, file.run_dir, "/run/rlark")?,
            pod_cidr: cidr.parse().with_context(|| format!("--pod-cidr {cidr}"))?,
            pod_cidr6,
            site_cidr: site.parse().with_context(|| format!("--site-cidr {site}"))?,
            bridge: self.bridge.or(file.bridge).unwrap_or_else(|| "rlark0".to_owned()),
            cgroup: self.cgroup.or(file.cgroup),
            node_socket,
            hide,
            allow_host_network: self.allow_host_network || file.allow_host_network,
            keep: self.keep || file.keep,
        })
    }
}

fn label(text: &str) -> anyhow::Result<(String, String)> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => bail!("--labels {text}: KEY=VALUE is expected"),
    }
}

/// A file that is gone is no error: many installers remove it once the machine has enrolled.
fn token(file: Option<&Path>) -> anyhow::Result<Option<JoinToken>> {
    let text = match file {
        Some(path) => match fs::read_to_string(path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e).with_context(|| format!("cannot read {}", path.display())),
        },
        None => match std::env::var("RLARK_TOKEN") {
            Ok(text) => text,
            Err(_unset) => return Ok(None),
        },
    };
    let token = text.trim().parse();
    token.map(Some).with_context(|| match file {
        Some(path) => format!("in {}", path.display()),
        None => "in RLARK_TOKEN".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(arguments: &[&str]) -> anyhow::Result<Settings> {
        Options::parse_from([&["rlark-agent"], arguments].concat()).resolve()
    }

    #[test]
    fn the_command_line_wins_over_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("agent.toml");
        fs::write(
            &file,
            "server = \"https://a\"\nname = \"file\"\nkeep = true\nlabels = [\"a=1\"]\nallow-host-network = true\n",
        )
        .unwrap();
        let file = format!("--config={}", file.display());
        let settings = resolve(&[&file, "--name=line", "--labels=b=2"]).unwrap();
        assert_eq!(settings.name.as_str(), "line");
        assert_eq!(settings.server.to_string(), "https://a:8443");
        assert!(settings.keep && settings.allow_host_network);
        assert_eq!(settings.labels.len(), 2);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let error = resolve(&[]).unwrap_err().to_string();
        assert!(error.starts_with("--server is missing"), "{error}");
        let error = resolve(&["--server=https://a", "--labels=x"]).unwrap_err().to_string();
        assert_eq!(error, "--labels x: KEY=VALUE is expected");
        let error = resolve(&["--server=https://a", "--pod-cidr=10.0.0.1/24"]).unwrap_err();
        assert_eq!(error.to_string(), "--pod-cidr 10.0.0.1/24");
        let both = resolve(&["--server=https://a", "--name=n", "--pod-cidr=10.0.0.0/24,fd00::/64"])
            .unwrap();
        assert_eq!(both.pod_cidr6.unwrap().to_string(), "fd00::/64");
        assert!(!both.allow_host_network, "only where the operator says so");
        let error =
            resolve(&["--server=https://a", "--pod-cidr=10.0.0.0/24,10.0.1.0/24"]).unwrap_err();
        assert_eq!(error.to_string(), "--pod-cidr 10.0.0.0/24,10.0.1.0/24");
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("agent.toml");
        fs::write(&file, "sever = \"https://a\"\n").unwrap();
        let error = resolve(&[&format!("--config={}", file.display())]).unwrap_err();
        assert!(format!("{error:#}").contains("sever"), "{error:#}");
    }
}
