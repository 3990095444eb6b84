//! From settings to an enrolled machine and a client of the Kubernetes API.

use std::time::Duration;

use anyhow::Context as _;
use control_api::session::MachineRole;
use control_identity::machine::{EnrolError, Identity, MachineConfig};
use kube::{Client, Config, config::AuthInfo};

use crate::config::Settings;

const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LAST_PAUSE: Duration = Duration::from_secs(15);

/// Loads or enrols. Waits for a server that cannot be reached, saying so once per reason; a refusal
/// (token expired, used up, name taken) is an error at once.
pub(crate) async fn identity(settings: &Settings) -> Result<Identity, EnrolError> {
    let config = MachineConfig {
        dir: settings.data_dir.join("identity"),
        server: settings.server.clone(),
        role: MachineRole::Agent,
        name: settings.name.clone(),
    };
    let mut pause = FIRST_PAUSE;
    let mut said = String::new();
    loop {
        let error = match Identity::open(&config, settings.token.as_ref()).await {
            Ok(identity) => return Ok(identity),
            Err(error) if error.is_transient() => error,
            Err(error) => return Err(error),
        };
        let text = with_causes(&error);
        if text != said {
            tracing::warn!(error = text, "cannot enrol yet; trying on");
            said = text;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

/// A client with the certificate of now. After a renewal a new one is to be made.
pub(crate) fn client(identity: &Identity) -> anyhow::Result<Client> {
    let paths = identity.paths();
    let url = identity.server().to_string().parse().context("the server's address")?;
    let mut config = Config::new(url);
    config.default_namespace = identity.machine().cluster.namespace();
    config.root_cert_file = Some(paths.ca);
    config.tls_server_name = Some(identity.server_name().to_owned());
    config.auth_info = AuthInfo {
        client_certificate: Some(paths.certificate.display().to_string()),
        client_key: Some(paths.key.display().to_string()),
        ..AuthInfo::default()
    };
    Client::try_from(config).context("cannot make a client of the Kubernetes API")
}

/// An error and its causes in one line.
#[must_use]
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(e) = cause {
        let more = e.to_string();
        // Some libraries repeat the cause in their own text.
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = e.source();
    }
    text
}

/// Logs trouble once per change, and its end.
#[derive(Debug, Default)]
pub(crate) struct Trouble {
    said: Option<String>,
}

impl Trouble {
    pub(crate) fn on(&mut self, what: &str, error: &dyn std::error::Error) {
        let text = with_causes(error);
        if self.said.as_ref() != Some(&text) {
            tracing::warn!(error = text, "{what}; trying on");
            self.said = Some(text);
        }
    }

    pub(crate) fn over(&mut self, what: &str) {
        if self.said.take().is_some() {
            tracing::info!("{what} again");
        }
    }
}
