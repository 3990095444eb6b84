//! The stock kubectl against a server on loopback.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

use control_apiserver::{ApiServer, Options};
use control_identity::authorize::{Attributes, Authorizer, Decision};
use control_identity::principal::Principal;
use control_store::Workspace;
use tempfile::TempDir;
use tokio::task::JoinHandle;

struct Everything;

impl Authorizer for Everything {
    fn authorize(&self, _who: &Principal, _what: &Attributes<'_>) -> Decision {
        Decision::Allow
    }
}

const CRD: &str = r"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget, shortNames: [wd]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}, scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas}}
    additionalPrinterColumns:
    - {name: Size, type: integer, jsonPath: .spec.size}
    - {name: Note, type: string, jsonPath: .spec.note, priority: 1}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            required: [size]
            properties:
              size: {type: integer, minimum: 1, description: How big it is.}
              note: {type: string, default: none}
              replicas: {type: integer}
          status:
            type: object
            properties: {phase: {type: string}, replicas: {type: integer}}
";

fn widget(name: &str, size: i64) -> String {
    format!(
        "apiVersion: example.com/v1\nkind: Widget\nmetadata: {{name: {name}, labels: {{app: x}}}}\nspec: {{size: {size}}}\n"
    )
}

/// A served workspace with the widgets' definition, and a home for kubectl.
struct Site {
    address: String,
    home: TempDir,
    serving: JoinHandle<()>,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Site {
    async fn start() -> Self {
        let workspace = Workspace::in_memory(&control_store::Options::default()).unwrap();
        let server =
            ApiServer::new(workspace, Arc::new(Everything), Options::default()).await.unwrap();
        let who = Principal::Admin { name: "admin".to_owned() };
        let router = server.router().layer(axum::Extension(who));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let serving = tokio::spawn(async move {
            axum::serve(listener, router).await.unwrap();
        });
        let site = Self { address, home: tempfile::tempdir().unwrap(), serving };
        site.ok(&["apply", "-f", &site.file("crd.yaml", CRD)]).await;
        site
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.home.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    async fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new("kubectl");
        command
            .args(["--server", &self.address])
            .args(arguments)
            .env("KUBECONFIG", "/dev/null")
            .env("HOME", self.home.path())
            .env("EDITOR", Path::new(self.home.path()).join("editor.sh"));
        tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
    }

    async fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments).await;
        let (out, err) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "kubectl {arguments:?}: {err}{out}");
        format!("{out}{err}")
    }

    async fn refused(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments).await;
        assert!(!output.status.success(), "kubectl {arguments:?} should have been refused");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

fn has(text: &str, part: &str) {
    assert!(text.contains(part), "{part:?} is missing in:\n{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn kinds_are_discovered_and_explained() {
    let site = Site::start().await;
    let kinds = site.ok(&["api-resources"]).await;
    has(&kinds, "widgets                     wd           example.com/v1");
    has(&site.ok(&["explain", "widget.spec.size"]).await, "How big it is.");
    has(&site.ok(&["get", "ns"]).await, "rlark-system   Active");
    has(&site.ok(&["version"]).await, "Server Version: v1.34.0");
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_are_applied_shown_changed_and_deleted() {
    let site = Site::start().await;
    let a = site.file("a.yaml", &widget("a", 3));
    has(&site.ok(&["apply", "-f", &a]).await, "created");
    has(&site.ok(&["apply", "-f", &a]).await, "unchanged");
    site.file("a.yaml", &widget("a", 4));
    has(&site.ok(&["apply", "-f", &a]).await, "configured");
    has(&site.ok(&["get", "wd"]).await, "a      4");
    has(&site.ok(&["get", "wd", "-o", "wide"]).await, "none");
    has(&site.ok(&["get", "wd", "a", "-o", "yaml"]).await, "generation: 2");
    has(&site.ok(&["get", "wd", "a", "-o", "json"]).await, "\"size\": 4");
    has(&site.ok(&["get", "wd", "-l", "app=x"]).await, "a      4");
    has(&site.ok(&["get", "wd", "-l", "app!=x"]).await, "No resources found");
    has(&site.ok(&["get", "wd", "--field-selector", "metadata.name=a"]).await, "a      4");
    has(&site.ok(&["describe", "wd", "a"]).await, "Size:  4");
    site.ok(&["patch", "wd", "a", "--type=merge", "-p", r#"{"spec":{"note":"hi"}}"#]).await;
    let replace = r#"[{"op":"replace","path":"/spec/size","value":9}]"#;
    site.ok(&["patch", "wd", "a", "--type=json", "-p", replace]).await;
    site.ok(&["label", "wd", "a", "q=1"]).await;
    site.ok(&["annotate", "wd", "a", "z=1"]).await;
    site.ok(&["scale", "wd", "a", "--replicas=3"]).await;
    let editor = site.file("editor.sh", "#!/bin/sh\nsed -i 's/size: 9/size: 10/' \"$1\"\n");
    assert!(Command::new("chmod").args(["+x", &editor]).status().unwrap().success());
    has(&site.ok(&["edit", "wd", "a"]).await, "edited");
    let spec = site.ok(&["get", "wd", "a", "-o", "jsonpath={.spec}"]).await;
    assert_eq!(spec, r#"{"note":"hi","replicas":3,"size":10}"#);
    site.ok(&["delete", "wd", "a"]).await;
    has(&site.refused(&["get", "wd", "a"]).await, "widgets.example.com \"a\" not found");
    site.ok(&["delete", "crd", "widgets.example.com"]).await;
    // Its routes go when the definition's end is seen, as with any server.
    let mut said = String::new();
    for _ in 0..100 {
        let output = site.run(&["get", "wd"]).await;
        said = String::from_utf8_lossy(&output.stderr).into_owned();
        if !output.status.success() {
            break;
        }
    }
    has(&said, "could not find the requested resource");
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_objects_are_refused_in_kubes_words() {
    let site = Site::start().await;
    let unknown = widget("a", 3).replace("size: 3", "size: 3, foo: 1");
    let unknown = site.file("unknown.yaml", &unknown);
    let message = site.refused(&["apply", "--validate=strict", "-f", &unknown]).await;
    has(&message, "strict decoding error: unknown field \"spec.foo\"");
    let warned = site.ok(&["apply", "--validate=warn", "-f", &unknown]).await;
    has(&warned, "Warning: unknown field \"spec.foo\"");
    let small = site.file("small.yaml", &widget("b", 0));
    let message = site.refused(&["apply", "-f", &small]).await;
    has(&message, "spec.size in body should be greater than or equal to 1");
    let message = site.refused(&["-n", "nope", "apply", "-f", &small]).await;
    has(&message, "namespaces \"nope\" not found");
    let patch = site.refused(&["patch", "wd", "a", "-p", "{}"]).await;
    has(&patch, "application/strategic-merge-patch+json is not supported");
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_and_watches_see_changes() {
    let site = Site::start().await;
    site.ok(&["apply", "-f", &site.file("a.yaml", &widget("a", 3))]).await;
    let change = async {
        let ready = r#"{"status":{"phase":"Ready"}}"#;
        site.ok(&["patch", "wd", "a", "--subresource=status", "--type=merge", "-p", ready]).await
    };
    let wait = site.ok(&["wait", "--for=jsonpath={.status.phase}=Ready", "wd/a", "--timeout=20s"]);
    let (_, waited) = tokio::join!(change, wait);
    has(&waited, "condition met");
    let watch = ["get", "wd", "-w", "--output-watch-events", "--request-timeout=2s"];
    let shown = site.run(&watch).await;
    has(&String::from_utf8_lossy(&shown.stdout), "ADDED");
}

#[tokio::test(flavor = "multi_thread")]
async fn built_in_kinds_take_protobuf_and_strategic_patches() {
    let site = Site::start().await;
    site.ok(&["create", "namespace", "n1"]).await;
    site.ok(&["-n", "n1", "create", "configmap", "z", "--from-literal=a=b"]).await;
    site.ok(&["-n", "n1", "patch", "cm", "z", "-p", r#"{"data":{"b":"c"}}"#]).await;
    let data = site.ok(&["-n", "n1", "get", "cm", "z", "-o", "jsonpath={.data}"]).await;
    assert_eq!(data, r#"{"a":"b","b":"c"}"#);
    site.ok(&["-n", "n1", "create", "secret", "generic", "s", "--from-literal=a=b"]).await;
    has(&site.ok(&["-n", "n1", "get", "secret", "s", "-o", "yaml"]).await, "a: Yg==");
    has(&site.ok(&["auth", "can-i", "get", "cm"]).await, "yes");
    has(&site.ok(&["auth", "whoami"]).await, "system:masters");
    site.ok(&["delete", "ns", "n1"]).await;
    has(&site.refused(&["get", "ns", "n1"]).await, "not found");
    has(&site.refused(&["-n", "n1", "get", "cm", "z"]).await, "not found");
}

#[tokio::test(flavor = "multi_thread")]
async fn server_side_apply_tells_who_owns_what() {
    let site = Site::start().await;
    let a = site.file("a.yaml", &widget("a", 3));
    site.ok(&["apply", "--server-side", "-f", &a]).await;
    site.ok(&["patch", "wd", "a", "--type=merge", "-p", r#"{"spec":{"size":7}}"#]).await;
    let message = site.refused(&["apply", "--server-side", "-f", &a]).await;
    has(&message, "conflict with \"kubectl-patch\"");
    site.ok(&["apply", "--server-side", "--force-conflicts", "-f", &a]).await;
    has(&site.ok(&["get", "wd"]).await, "a      3");
}
