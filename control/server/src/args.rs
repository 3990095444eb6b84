//! Flags, environment and the configuration file, merged into one [`Config`].

use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
};

use clap::Parser;
use control_hub::HALT_POLL_US;
use serde::{Deserialize, Serialize};
use tracing_subscriber::EnvFilter;

const DEFAULT_DATA_DIR: &str = "/var/lib/rlark/server";

/// The RLark control plane: Kubernetes-style API, controllers and the hub of all sites.
///
/// On its first start it makes a certificate authority and an admin kubeconfig in the data
/// directory. Flags win over the environment, the environment over the file.
#[derive(Debug, Default, Parser)]
#[command(name = "rlark-server", version)]
pub struct Args {
    /// TOML file with the same names as the flags (data-dir = "…").
    #[arg(long, value_name = "FILE", env = "RLARK_CONFIG")]
    pub config: Option<PathBuf>,
    /// Where state, keys and the admin kubeconfig are kept [default: /var/lib/rlark/server]
    #[arg(long, value_name = "DIR", env = "RLARK_DATA_DIR")]
    pub data_dir: Option<PathBuf>,
    /// API, enrolment and sessions [default: 0.0.0.0:8443]
    #[arg(long, value_name = "ADDRESS:PORT", env = "RLARK_LISTEN")]
    pub listen: Option<SocketAddr>,
    /// Relay of carriers between sites [default: 0.0.0.0:7443]
    #[arg(long, value_name = "ADDRESS:PORT", env = "RLARK_RELAY_LISTEN")]
    pub relay_listen: Option<SocketAddr>,
    /// The name or address under which machines and people reach this server; written into the
    /// kubeconfig and the certificate [default: the listening address, or 127.0.0.1]
    #[arg(long, value_name = "HOST", env = "RLARK_ADVERTISE_ADDRESS")]
    pub advertise_address: Option<String>,
    /// A further name for the server's certificate; may be repeated.
    #[arg(long = "tls-san", value_name = "NAME", env = "RLARK_TLS_SAN", value_delimiter = ',')]
    pub tls_san: Vec<String>,
    /// Prometheus metrics and health, without authentication: keep it on loopback [default: off]
    #[arg(long, value_name = "ADDRESS:PORT", env = "RLARK_METRICS_ADDRESS")]
    pub metrics_address: Option<SocketAddr>,
    /// How many microseconds the relay waits awake for the next message of a carrier before its thread
    /// sleeps; 0 saves energy and adds a wake-up to every message [default: 200]
    #[arg(long, value_name = "US", env = "RLARK_HALT_POLL_US")]
    pub halt_poll_us: Option<u32>,
    /// Log filter, such as `info` or `control_hub=debug,info` [default: info]
    #[arg(long, value_name = "FILTER", env = "RLARK_LOG")]
    pub log: Option<String>,
}

/// The file's content: every key is optional, an unknown one is an error.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
struct File {
    data_dir: Option<PathBuf>,
    listen: Option<SocketAddr>,
    relay_listen: Option<SocketAddr>,
    advertise_address: Option<String>,
    tls_san: Vec<String>,
    metrics_address: Option<SocketAddr>,
    halt_poll_us: Option<u32>,
    log: Option<String>,
}

/// What the server runs with. It holds no secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Config {
    pub data_dir: PathBuf,
    pub listen: SocketAddr,
    pub relay_listen: SocketAddr,
    pub advertise_address: String,
    pub tls_san: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics_address: Option<SocketAddr>,
    pub halt_poll_us: u32,
    pub log: String,
}

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("configuration file {}: {problem}", path.display())]
    File { path: PathBuf, problem: String },
    #[error("--log {filter:?} is not a log filter: {problem}")]
    Log { filter: String, problem: String },
    #[error("{flag} {value:?} is neither a host name nor an address")]
    Name { flag: &'static str, value: String },
    #[error("--listen and --relay-listen are both {0}")]
    SamePort(SocketAddr),
}

impl Config {
    /// Merges flags, file and defaults, and checks the result.
    pub fn load(args: Args) -> Result<Self, ConfigError> {
        let file = match &args.config {
            Some(path) => read(path)?,
            None => File::default(),
        };
        let listen = args.listen.or(file.listen).unwrap_or_else(|| any(8443));
        let relay_listen = args.relay_listen.or(file.relay_listen).unwrap_or_else(|| any(7443));
        if listen == relay_listen && listen.port() != 0 {
            return Err(ConfigError::SamePort(listen));
        }
        let advertised = args.advertise_address.or(file.advertise_address);
        let config = Self {
            data_dir: args
                .data_dir
                .or(file.data_dir)
                .unwrap_or_else(|| PathBuf::from(DEFAULT_DATA_DIR)),
            listen,
            relay_listen,
            advertise_address: advertised.unwrap_or_else(|| reachable(listen.ip())),
            tls_san: if args.tls_san.is_empty() { file.tls_san } else { args.tls_san },
            metrics_address: args.metrics_address.or(file.metrics_address),
            halt_poll_us: args.halt_poll_us.or(file.halt_poll_us).unwrap_or(HALT_POLL_US),
            log: args.log.or(file.log).unwrap_or_else(|| "info".to_owned()),
        };
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), ConfigError> {
        let advertised = ("--advertise-address", &self.advertise_address);
        let names = self.tls_san.iter().map(|n| ("--tls-san", n)).chain([advertised]);
        for (flag, name) in names {
            let good = name.parse::<IpAddr>().is_ok()
                || (!name.is_empty()
                    && name.split('.').all(|label| {
                        !label.is_empty()
                            && label.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-')
                    }));
            if !good {
                return Err(ConfigError::Name { flag, value: name.clone() });
            }
        }
        if let Err(e) = EnvFilter::try_new(&self.log) {
            return Err(ConfigError::Log { filter: self.log.clone(), problem: e.to_string() });
        }
        Ok(())
    }

    /// The filter, which [`Config::load`] has checked.
    #[must_use]
    pub fn log_filter(&self) -> EnvFilter {
        EnvFilter::new(&self.log)
    }

    /// Names for the server's certificate.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names = vec![self.advertise_address.clone()];
        names.extend(self.tls_san.iter().cloned());
        names
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.data_dir.join("admin.kubeconfig")
    }
}

fn any(port: u16) -> SocketAddr {
    SocketAddr::from(([0, 0, 0, 0], port))
}

fn reachable(ip: IpAddr) -> String {
    if ip.is_unspecified() { "127.0.0.1".to_owned() } else { ip.to_string() }
}

fn read(path: &Path) -> Result<File, ConfigError> {
    let problem = |problem: String| ConfigError::File { path: path.to_owned(), problem };
    let text = std::fs::read_to_string(path).map_err(|e| problem(e.to_string()))?;
    toml::from_str(&text).map_err(|e: toml::de::Error| problem(e.message().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_win_over_the_file_and_unknown_keys_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.toml");
        std::fs::write(&path, "data-dir = \"/a\"\nlisten = \"10.0.0.1:1\"\n").unwrap();
        let args =
            Args { config: Some(path.clone()), data_dir: Some("/b".into()), ..Args::default() };
        let config = Config::load(args).unwrap();
        assert_eq!(config.data_dir, Path::new("/b"));
        assert_eq!(config.advertise_address, "10.0.0.1");
        std::fs::write(&path, "data_dri = 1\n").unwrap();
        let error = Config::load(Args { config: Some(path), ..Args::default() }).unwrap_err();
        assert!(error.to_string().contains("data_dri"), "{error}");
    }

    #[test]
    fn a_bad_advertised_name_names_its_flag() {
        let args = Args { advertise_address: Some("https://x".to_owned()), ..Args::default() };
        let error = Config::load(args).unwrap_err().to_string();
        assert!(error.contains("--advertise-address"), "{error}");
    }
}
