//! Puts the definitions of `rlinf.io/v1alpha1` into the API server, newer ones over older ones.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    api::PostParams,
    runtime::wait::{await_condition, conditions},
};
use tokio::time::{Duration, timeout};

use crate::exit::ServerError;

const ESTABLISHED_WITHIN: Duration = Duration::from_secs(30);

/// Installs all eight and waits until they are served.
pub(crate) async fn definitions(client: &Client) -> Result<(), ServerError> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    for crd in control_api::crds::crds() {
        let name = crd.metadata.name.clone().unwrap_or_default();
        let failed = |source: Box<dyn std::error::Error + Send + Sync>| ServerError::Install {
            name: name.clone(),
            source,
        };
        install(&api, &name, crd).await.map_err(|e| failed(e.into()))?;
        let established = await_condition(api.clone(), &name, conditions::is_crd_established());
        match timeout(ESTABLISHED_WITHIN, established).await {
            Ok(Ok(_)) => {}
            Ok(Err(e)) => return Err(failed(e.into())),
            Err(elapsed) => return Err(failed(elapsed.into())),
        }
    }
    Ok(())
}

/// Only the spec is ours; what others added to the metadata stays.
async fn install(
    api: &Api<CustomResourceDefinition>,
    name: &str,
    crd: CustomResourceDefinition,
) -> Result<(), kube::Error> {
    match api.get_opt(name).await? {
        None => {
            api.create(&PostParams::default(), &crd).await?;
        }
        Some(mut old) => {
            if old.spec != crd.spec {
                old.spec = crd.spec;
                api.replace(name, &PostParams::default(), &old).await?;
            }
        }
    }
    Ok(())
}
