use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

#[test]
fn what_is_not_an_artifact_is_named() {
    for bad in
        ["", "tool", "ftp://x/y", "file://relative", "/", "/a/..", "/a#md5=1", "/a#sha256=12"]
    {
        let error = bad.parse::<Artifact>().unwrap_err().to_string();
        assert!(error.contains(&format!("{bad:?}")), "{error}");
    }
}

#[tokio::test]
async fn a_local_file_is_kept_by_its_digest() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("tool");
    fs::write(&source, "#!/bin/sh\n").unwrap();
    let cache = dir.path().join("cache");
    let artifact: Artifact = format!("file://{}", source.display()).parse().unwrap();
    let kept = artifact.fetch(&cache).await.unwrap();
    assert_eq!(fs::read_to_string(&kept).unwrap(), "#!/bin/sh\n");
    assert_eq!(kept.metadata().unwrap().permissions().mode() & 0o777, 0o755);
    assert_eq!(fs::read_dir(&cache).unwrap().count(), 1, "no partial file stays");
}

#[tokio::test]
async fn a_wrong_digest_and_a_missing_file_are_said() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("tool");
    fs::write(&source, "x").unwrap();
    let wrong = format!("{}#sha256={}", source.display(), "0".repeat(64));
    let error = wrong.parse::<Artifact>().unwrap().fetch(dir.path()).await.unwrap_err();
    assert!(matches!(error, ArtifactError::Digest { .. }), "{error}");
    let error = "/nowhere/x".parse::<Artifact>().unwrap().fetch(dir.path()).await.unwrap_err();
    assert_eq!(error.to_string(), "cannot read artifact /nowhere/x");
}

#[tokio::test]
async fn a_url_is_fetched_once_when_its_digest_is_known() {
    let dir = tempfile::tempdir().unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0; 1024];
        let _ = stream.read(&mut request).await.unwrap();
        stream
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello")
            .await
            .unwrap();
    };
    let digest = hex(&Sha256::digest(b"hello"));
    let url = format!("http://{address}/bin/tool?key=secret#sha256={digest}");
    let artifact: Artifact = url.parse().unwrap();
    let (kept, ()) = tokio::join!(artifact.fetch(dir.path()), server);
    assert_eq!(kept.unwrap(), dir.path().join(&digest).join("tool"));
    drop(listener);
    artifact.fetch(dir.path()).await.unwrap();

    let unknown: Artifact = format!("http://{address}/bin/tool?key=secret").parse().unwrap();
    let error = unknown.fetch(dir.path()).await.unwrap_err();
    assert!(error.is_transient() && !error.to_string().contains("secret"), "{error}");
}
