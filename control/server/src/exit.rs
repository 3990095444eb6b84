//! Why the server ends, in one line, and with which exit status (sysexits.h).

use std::{net::SocketAddr, path::PathBuf, process::ExitCode};

use control_identity::{ca::CaError, tls::TlsError};
use control_store::OpenError;

use crate::args::ConfigError;

const USAGE: u8 = 64;
const UNAVAILABLE: u8 = 69;
const SOFTWARE: u8 = 70;
const CANT_CREATE: u8 = 73;
const NO_PERMISSION: u8 = 77;
const CONFIG: u8 = 78;

/// Why the server did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("cannot start the runtime")]
    Runtime(#[source] std::io::Error),
    #[error("the data directory {} cannot be used", path.display())]
    DataDir {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error(transparent)]
    Store(#[from] OpenError),
    #[error(transparent)]
    Authority(#[from] CaError),
    #[error("TLS")]
    Tls(#[from] TlsError),
    #[error("cannot listen on {address} ({what}): {source}; choose another with {flag}")]
    Listen { what: &'static str, flag: &'static str, address: SocketAddr, source: std::io::Error },
    #[error("the API server cannot start")]
    ApiServer(#[from] control_apiserver::StartError),
    #[error("cannot install the definition of {name}")]
    Install {
        name: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("cannot write {}", path.display())]
    Kubeconfig {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{part} ended by itself")]
    Ended {
        part: &'static str,
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    #[error("ended by a second signal before everything was drained")]
    Killed,
}

impl ServerError {
    fn status(&self) -> u8 {
        let denied = |e: &std::io::Error| e.kind() == std::io::ErrorKind::PermissionDenied;
        match self {
            Self::Config(ConfigError::File { .. }) => CONFIG,
            Self::Config(_) => USAGE,
            Self::DataDir { source, .. } | Self::Listen { source, .. } if denied(source) => {
                NO_PERMISSION
            }
            Self::Listen { .. } | Self::Store(OpenError::Locked { .. }) => UNAVAILABLE,
            Self::DataDir { .. } | Self::Kubeconfig { .. } | Self::Authority(CaError::File(_)) => {
                CANT_CREATE
            }
            Self::Store(_) | Self::Authority(_) | Self::Tls(_) => UNAVAILABLE,
            Self::Runtime(_)
            | Self::ApiServer(_)
            | Self::Install { .. }
            | Self::Ended { .. }
            | Self::Killed => SOFTWARE,
        }
    }
}

/// One line on stderr with all causes, and the status.
#[expect(clippy::print_stderr, reason = "the last words of a program go to its user")]
pub fn report(error: &ServerError) -> ExitCode {
    eprintln!("rlark-server: {}", line(error));
    ExitCode::from(error.status())
}

/// The error and its causes, joined; a cause that its parent already told is left out.
pub(crate) fn line(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let words = cause.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        next = cause.source();
    }
    text.replace('\n', " ")
}
