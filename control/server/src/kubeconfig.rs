//! The admin's kubeconfig: written on the first start, and again when its certificate is near its
//! end, when the authority changed, or when the server is to be reached elsewhere.

use std::{
    fs, io,
    path::Path,
    time::{Duration, SystemTime},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use control_identity::{
    ca::{Authority, SERVER_NAME},
    files,
    peer::Peer,
};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};

use crate::exit::ServerError;

const RENEW_BEFORE: Duration = Duration::from_secs(60 * 24 * 3600);

/// Makes sure that `path` holds a working kubeconfig for `server`; says whether it was written.
pub(crate) fn ensure(
    path: &Path,
    server: &str,
    authority: &Authority,
) -> Result<bool, ServerError> {
    let failed = |source| ServerError::Kubeconfig { path: path.to_owned(), source };
    match fs::read_to_string(path) {
        Ok(text) if is_current(&text, server, authority) => return Ok(false),
        Ok(_) => {}
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(failed(e)),
    }
    let admin = authority.issue_admin("admin")?;
    let text = render(server, authority.certificate_pem(), &admin.certificate_pem, &admin.key_pem);
    files::replace(path, text.as_bytes(), 0o600).map_err(failed)?;
    Ok(true)
}

fn render(server: &str, ca: &str, certificate: &str, key: &str) -> String {
    let (ca, certificate, key) =
        (STANDARD.encode(ca), STANDARD.encode(certificate), STANDARD.encode(key));
    // The name is in the certificate whatever the address, so a forwarded port works as well.
    format!(
        "apiVersion: v1\n\
         kind: Config\n\
         clusters:\n\
         - name: rlark\n  cluster:\n    server: {server}\n    tls-server-name: {SERVER_NAME}\n    \
         certificate-authority-data: {ca}\n\
         users:\n\
         - name: admin\n  user:\n    client-certificate-data: {certificate}\n    \
         client-key-data: {key}\n\
         contexts:\n\
         - name: rlark\n  context:\n    cluster: rlark\n    user: admin\n\
         current-context: rlark\n"
    )
}

fn is_current(text: &str, server: &str, authority: &Authority) -> bool {
    let field =
        |name: &str| text.lines().find_map(|l| l.trim_start().strip_prefix(name)).map(str::trim);
    let ca = STANDARD.encode(authority.certificate_pem());
    let certificate = || {
        let pem = STANDARD.decode(field("client-certificate-data:")?).ok()?;
        Peer::parse(&CertificateDer::from_pem_slice(&pem).ok()?).ok()
    };
    field("server:") == Some(server)
        && field("certificate-authority-data:") == Some(ca.as_str())
        && certificate().is_some_and(|p| !p.expired(SystemTime::now() + RENEW_BEFORE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubeconfig_is_kept_while_it_works_and_rewritten_when_the_address_changes() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::open_or_create(dir.path()).unwrap();
        let path = dir.path().join("admin.kubeconfig");
        assert!(ensure(&path, "https://a:1", &authority).unwrap());
        assert!(!ensure(&path, "https://a:1", &authority).unwrap());
        assert!(ensure(&path, "https://b:1", &authority).unwrap());
        let parsed: kube::config::Kubeconfig =
            kube::config::Kubeconfig::from_yaml(&fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!(parsed.current_context.as_deref(), Some("rlark"));
        let mode =
            std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&path).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
    }
}
