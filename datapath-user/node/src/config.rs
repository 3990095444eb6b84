//! The command line and its configuration file. Checked once, here; the rest of the node works
//! with [`Config`].

use std::{
    fs, io,
    net::{IpAddr, SocketAddr},
    num::NonZeroUsize,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Parser;
use control_api::{
    attach, direct,
    ids::{NameError, NodeName},
};
use control_identity::{
    client::{BadServerAddress, ServerAddress},
    token::{JoinToken, NotAToken},
};
use datapath_net::thread::HALT_POLL_US;
use serde::Deserialize;

use crate::{direct::addresses::Setting, kernel::real::Hooks};

const RELAY_PORT: u16 = 7443;
const DATA_DIR: &str = "/var/lib/rlark/node";

/// The data path of one machine: brings pods into their Domains.
#[derive(Clone, Debug, Default, Parser)]
#[command(name = "rlark-node", version)]
pub struct Args {
    /// TOML file with the same names as these options; options win
    #[arg(long, env = "RLARK_NODE_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub settings: Settings,
}

/// What both the command line and the file may set.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Settings {
    /// The control plane, https://HOST[:8443]
    #[arg(long, env = "RLARK_SERVER", value_name = "URL")]
    pub server: Option<String>,
    /// File with a join token; needed until the machine is enrolled
    #[arg(long, env = "RLARK_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// This machine's name within its cluster [default: the host name]
    #[arg(long, env = "RLARK_NODE_NAME")]
    pub name: Option<String>,
    /// Identity, routes and attachments [default: /var/lib/rlark/node]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Unix socket for runtimes [default: /run/rlark/node.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// cgroup v2 directory to attach to [default: the root of the cgroup v2 mount]
    #[arg(long, value_name = "DIR")]
    pub cgroup: Option<PathBuf>,
    /// Attach nothing to cgroups, as on a machine without cgroup v2: all connections between pods are relayed, those of one site
    /// too, and what is refused is reset (ECONNREFUSED, whatever the reason)
    #[arg(long, conflicts_with = "cgroup")]
    pub no_hooks: bool,
    /// Keep programs and maps here while no rlark-node runs, for example /sys/fs/bpf/rlark; without this they stay only if it
    /// is killed, on a BPF file system in the data directory
    #[arg(long, value_name = "DIR")]
    pub pins: Option<PathBuf>,
    /// The hub's relay [default: the server's host, port 7443]
    #[arg(long, value_name = "HOST:PORT")]
    pub hub_relay: Option<String>,
    /// How many microseconds the relay waits awake for the next message of a conversation before its
    /// thread sleeps; 0 saves energy and adds a wake-up to every message [default: 200]
    #[arg(long, value_name = "US")]
    pub halt_poll_us: Option<u32>,
    /// The most TCP flows at a time, beyond which they are refused; the limit of open files may be lower. One pod and one
    /// peer get three quarters [default: 200000]
    #[arg(long, value_name = "N")]
    pub max_flows: Option<NonZeroUsize>,
    /// The most TCP flows of one pod, of which one peer gets three quarters [default: 98304]
    #[arg(long, value_name = "N")]
    pub max_flows_per_pod: Option<NonZeroUsize>,
    /// Take direct carriers from other nodes on this TCP port, for example 7400; 0: on none [default: 0]
    #[arg(long, value_name = "PORT")]
    pub direct_port: Option<u16>,
    /// Where peers reach that port, IP or IP:PORT; repeatable [default: the machine's addresses, and
    /// the one that the hub sees it come from]
    #[arg(long, value_name = "IP[:PORT]")]
    pub direct_address: Vec<String>,
    /// Serve /metrics and /healthz over HTTP here, for example 127.0.0.1:9090
    #[arg(long, value_name = "IP:PORT")]
    pub metrics_address: Option<SocketAddr>,
}

/// Why the node cannot be configured.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("configuration file {path}: {source}")]
    File { path: PathBuf, source: toml::de::Error },
    #[error("--server is missing (or RLARK_SERVER, or server in the configuration file)")]
    NoServer,
    #[error("--server")]
    Server(#[from] BadServerAddress),
    #[error("--name (the host name if not given)")]
    Name(#[source] NameError),
    #[error("the token in {path}")]
    Token {
        path: PathBuf,
        #[source]
        source: NotAToken,
    },
    #[error("--no-hooks and --cgroup exclude each other")]
    NoHooks,
    #[error("--hub-relay: {text:?} is not HOST:PORT")]
    HubRelay { text: String },
    #[error("--direct-port: {port} is below {}, where peers are not sent", direct::LEAST_PORT)]
    DirectPort { port: u16 },
    #[error("--direct-address needs --direct-port")]
    NoDirectPort,
    #[error(
        "--direct-address: {text:?} is no IP or IP:PORT of one machine that peers can be sent to"
    )]
    DirectAddress { text: String },
    #[error("--direct-address: at most {}", direct::MAX_ADDRESSES)]
    DirectAddresses,
    #[error(
        "--metrics-address {address} is not on loopback; metrics are served without authentication"
    )]
    Metrics { address: SocketAddr },
}

/// What the node runs with.
#[derive(Clone, Debug)]
pub struct Config {
    pub server: ServerAddress,
    pub token: Option<JoinToken>,
    pub name: NodeName,
    pub data_dir: PathBuf,
    pub socket: PathBuf,
    pub hooks: Hooks,
    pub pins: Option<PathBuf>,
    pub hub_relay: String,
    pub halt_poll: Duration,
    /// [`datapath_relay::RelayConfig`] has the defaults.
    pub max_flows: Option<usize>,
    pub max_flows_per_pod: Option<usize>,
    pub direct: Setting,
    pub metrics_address: Option<SocketAddr>,
}

impl Args {
    /// Merges command line and file and checks everything that needs no network. `host_name` is
    /// the machine's, the default of `--name`.
    ///
    /// # Errors
    /// The first setting that is missing or wrong, by name.
    pub fn resolve(self, host_name: &str) -> Result<Config, ConfigError> {
        let file = match &self.config {
            Some(path) => read_file(path)?,
            None => Settings::default(),
        };
        let s = self.settings.or(file);
        let server = ServerAddress::parse(&s.server.ok_or(ConfigError::NoServer)?)?;
        let name = s.name.unwrap_or_else(|| host_name.to_lowercase());
        if let Some(address) = s.metrics_address.filter(|a| !a.ip().is_loopback()) {
            return Err(ConfigError::Metrics { address });
        }
        let hub_relay = match s.hub_relay {
            Some(text) => host_port(text)?,
            None => relay_of(server.host()),
        };
        Ok(Config {
            token: s.token_file.as_deref().map(read_token).transpose()?.flatten(),
            name: name.parse().map_err(ConfigError::Name)?,
            data_dir: s.data_dir.unwrap_or_else(|| DATA_DIR.into()),
            socket: s.socket.unwrap_or_else(|| attach::SOCKET.into()),
            hooks: hooks(s.cgroup, s.no_hooks)?,
            pins: s.pins,
            metrics_address: s.metrics_address,
            halt_poll: Duration::from_micros(s.halt_poll_us.unwrap_or(HALT_POLL_US).into()),
            max_flows: s.max_flows.map(NonZeroUsize::get),
            max_flows_per_pod: s.max_flows_per_pod.map(NonZeroUsize::get),
            hub_relay,
            direct: direct_setting(s.direct_port, &s.direct_address)?,
            server,
        })
    }
}

impl Settings {
    fn or(self, file: Self) -> Self {
        Self {
            server: self.server.or(file.server),
            token_file: self.token_file.or(file.token_file),
            name: self.name.or(file.name),
            data_dir: self.data_dir.or(file.data_dir),
            socket: self.socket.or(file.socket),
            no_hooks: self.no_hooks || (file.no_hooks && self.cgroup.is_none()),
            cgroup: self.cgroup.or(file.cgroup),
            pins: self.pins.or(file.pins),
            hub_relay: self.hub_relay.or(file.hub_relay),
            halt_poll_us: self.halt_poll_us.or(file.halt_poll_us),
            max_flows: self.max_flows.or(file.max_flows),
            max_flows_per_pod: self.max_flows_per_pod.or(file.max_flows_per_pod),
            direct_port: self.direct_port.or(file.direct_port),
            direct_address: if self.direct_address.is_empty() {
                file.direct_address
            } else {
                self.direct_address
            },
            metrics_address: self.metrics_address.or(file.metrics_address),
        }
    }
}

fn read_file(path: &Path) -> Result<Settings, ConfigError> {
    let text = fs::read_to_string(path)
        .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    toml::from_str(&text).map_err(|source| ConfigError::File { path: path.to_owned(), source })
}

/// A token file that is gone is no error: it may be removed once the machine is enrolled, and
/// enrolling without one says what is missing.
fn read_token(path: &Path) -> Result<Option<JoinToken>, ConfigError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(ConfigError::Read { path: path.to_owned(), source }),
    };
    let token = text.trim().parse();
    token.map(Some).map_err(|source| ConfigError::Token { path: path.to_owned(), source })
}

fn hooks(cgroup: Option<PathBuf>, off: bool) -> Result<Hooks, ConfigError> {
    match cgroup {
        Some(_) if off => Err(ConfigError::NoHooks),
        Some(path) => Ok(Hooks::Below(path)),
        None if off => Ok(Hooks::Off),
        None => Ok(Hooks::Everywhere),
    }
}

fn host_port(text: String) -> Result<String, ConfigError> {
    let port = text.rsplit_once(':').filter(|(host, _)| !host.is_empty());
    match port.and_then(|(_, port)| port.parse::<u16>().ok()) {
        Some(_) => Ok(text),
        None => Err(ConfigError::HubRelay { text }),
    }
}

fn direct_setting(port: Option<u16>, named: &[String]) -> Result<Setting, ConfigError> {
    let Some(port) = port.filter(|p| *p != 0) else {
        return match named {
            [] => Ok(Setting { port: None, named: vec![] }),
            _ => Err(ConfigError::NoDirectPort),
        };
    };
    if port < direct::LEAST_PORT {
        return Err(ConfigError::DirectPort { port });
    }
    if named.len() > direct::MAX_ADDRESSES {
        return Err(ConfigError::DirectAddresses);
    }
    let parse = |text: &String| {
        let bad = || ConfigError::DirectAddress { text: text.clone() };
        let bare = text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, port));
        let address = bare.or_else(|_| text.parse::<SocketAddr>()).map_err(|_no_address| bad())?;
        if direct::is_plausible(&address) { Ok(address) } else { Err(bad()) }
    };
    Ok(Setting { port: Some(port), named: named.iter().map(parse).collect::<Result<_, _>>()? })
}

fn relay_of(host: &str) -> String {
    if host.contains(':') {
        format!("[{host}]:{RELAY_PORT}")
    } else {
        format!("{host}:{RELAY_PORT}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(words: &[&str]) -> Result<Config, ConfigError> {
        let words = ["rlark-node"].iter().chain(words);
        Args::try_parse_from(words).unwrap().resolve("Host-1")
    }

    #[test]
    fn defaults_follow_from_the_server() {
        let c = resolve(&["--server", "https://hub.example"]).unwrap();
        assert_eq!(c.hub_relay, "hub.example:7443");
        assert_eq!(c.name.as_str(), "host-1");
        assert_eq!(c.socket, Path::new(attach::SOCKET));
        let c = resolve(&["--server", "https://[fd00::1]:9"]).unwrap();
        assert_eq!(c.hub_relay, "[fd00::1]:7443");
    }

    #[test]
    fn options_win_over_the_file_and_unknown_settings_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.toml");
        fs::write(&path, "server = \"https://a\"\nname = \"x\"\nhub-relay = \"r:1\"\n").unwrap();
        let c = resolve(&["--config", path.to_str().unwrap(), "--name", "y"]).unwrap();
        assert_eq!((c.name.as_str(), c.hub_relay.as_str()), ("y", "r:1"));
        fs::write(&path, "sever = \"https://a\"\n").unwrap();
        let e = resolve(&["--config", path.to_str().unwrap()]).unwrap_err();
        assert!(e.to_string().contains("sever"), "{e}");
    }

    #[test]
    fn hooks_go_to_the_root_unless_it_is_said_otherwise() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.toml");
        let with = |file: &str, words: &[&str]| {
            fs::write(&path, format!("server = \"https://a\"\n{file}")).unwrap();
            resolve(&[&["--config", path.to_str().unwrap()], words].concat()).map(|c| c.hooks)
        };
        let below = |path: &str| Hooks::Below(path.into());
        assert_eq!(with("", &[]).unwrap(), Hooks::Everywhere);
        assert_eq!(with("", &["--no-hooks"]).unwrap(), Hooks::Off);
        assert_eq!(with("no-hooks = true", &[]).unwrap(), Hooks::Off);
        assert_eq!(with("cgroup = \"/c\"", &[]).unwrap(), below("/c"));
        assert_eq!(with("no-hooks = true", &["--cgroup", "/c"]).unwrap(), below("/c"));
        assert!(with("cgroup = \"/c\"\nno-hooks = true", &[]).is_err());
    }

    #[test]
    fn no_port_is_open_unless_it_is_asked_for() {
        let server = ["--server", "https://a"];
        assert_eq!(resolve(&server).unwrap().direct.port, None);
        let off = [&server[..], &["--direct-port", "0"]].concat();
        assert_eq!(resolve(&off).unwrap().direct.port, None);
        let words = ["--direct-port", "7400", "--direct-address", "192.0.2.1", "--direct-address"];
        let on = [&server[..], &words, &["[2001:db8::1]:17400"]].concat();
        let direct = resolve(&on).unwrap().direct;
        let named = ["192.0.2.1:7400", "[2001:db8::1]:17400"].map(|a| a.parse().unwrap());
        assert_eq!((direct.port, direct.named), (Some(7400), named.to_vec()));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let server = ["--server", "https://a"];
        let cases: [(&[&str], &str); 9] = [
            (&[], "--server"),
            (&["--hub-relay", "nowhere"], "--hub-relay"),
            (&["--name", "A_B"], "--name"),
            (&["--metrics-address", "0.0.0.0:9090"], "--metrics-address"),
            (&["--direct-port", "22"], "--direct-port"),
            (&["--direct-address", "192.0.2.1"], "--direct-port"),
            (&["--direct-port", "7400", "--direct-address", "127.0.0.1"], "127.0.0.1"),
            (&["--direct-port", "7400", "--direct-address", "host"], "host"),
            (&["--direct-port", "7400", "--direct-address", "192.0.2.1:22"], "192.0.2.1:22"),
        ];
        for (words, part) in cases {
            let words = if words.is_empty() { vec![] } else { [&server[..], words].concat() };
            let e = resolve(&words).unwrap_err();
            assert!(e.to_string().contains(part), "{e}");
        }
    }
}
