//! What the other commands need on a machine: Debian packages and a kubectl that is new enough.

use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use test_kit::{
    command::{cmd, on_path, output, stdout},
    go,
};

/// (program, Debian package) pairs; a package is missing when its program is.
const PROGRAMS: [(&str, &str); 14] = [
    ("cc", "gcc"),
    ("cmake", "cmake"),
    ("make", "make"),
    ("ip", "iproute2"),
    ("nft", "nftables"),
    ("nsenter", "util-linux"),
    ("setpriv", "util-linux"),
    ("sysctl", "procps"),
    ("git", "git"),
    ("curl", "curl"),
    ("bpftool", "bpftool"),
    // What people try a network with; the tests do.
    ("nc", "netcat-openbsd"),
    ("socat", "socat"),
    ("/usr/bin/python3", "python3"),
];

/// `kubectl wait --for=jsonpath` and `apply --validate=strict` came with this minor version.
const KUBECTL_MINOR: u32 = 25;
/// As in `xtask/kubectl/go.mod`, whose modules are numbered v0.34.1.
const KUBECTL_VERSION: &str = "v1.34.1";

pub(crate) fn run() -> Result<()> {
    let done = ensure_tests()?;
    println!("{}", if done.is_empty() { "nothing was missing".to_owned() } else { done });
    Ok(())
}

/// As [`ensure_all`], and what only tests need.
pub(crate) fn ensure_tests() -> Result<String> {
    let mut done = Vec::new();
    if !on_path("go") {
        install(&["golang-go"])?;
        done.push("installed golang-go".to_owned());
    }
    go::require()?;
    done.push(ensure_all()?);
    done.retain(|line| !line.is_empty());
    Ok(done.join("\n"))
}

/// Installs what is missing; says what it did.
pub(crate) fn ensure_all() -> Result<String> {
    let mut missing: Vec<&str> =
        PROGRAMS.iter().filter(|(p, _)| !on_path(p)).map(|(_, d)| *d).collect();
    let kubectl = kubectl_minor();
    let builds = go::require().is_ok();
    if kubectl.is_none() && !builds {
        missing.push("kubernetes-client");
    }
    missing.dedup();
    if !missing.is_empty() {
        install(&missing)?;
    }
    let mut done: Vec<String> = missing.iter().map(|m| format!("installed {m}")).collect();
    if kubectl.is_none_or(|m| m < KUBECTL_MINOR) && builds {
        done.push(build_kubectl()?);
    }
    Ok(done.join("\n"))
}

/// What building the BPF object needs: a compiler with `core` for the BPF target, and its linker.
const EBPF: [&str; 9] = [
    "rustc-web",
    "libstd-rust-web-dev-bpf",
    "llvm-22",
    "llvm-22-dev",
    "libpolly-22-dev",
    "libzstd-dev",
    "libxml2-dev",
    "zlib1g-dev",
    "libffi-dev",
];
const BPF_LINKER: &str = "0.13.0";

/// Installs the BPF tools where they are missing.
pub(crate) fn ensure_ebpf() -> Result<()> {
    let there = |p: &str| {
        stdout(&mut cmd("dpkg-query", ["-W", "-f", "${Status}", p]))
            .is_ok_and(|s| s.ends_with(" installed"))
    };
    let missing: Vec<&str> = EBPF.into_iter().filter(|p| !there(p)).collect();
    if !missing.is_empty() {
        install(&missing)?;
    }
    if on_path("bpf-linker") || crate::ebpf::cargo_home()?.join("bin/bpf-linker").is_file() {
        return Ok(());
    }
    eprintln!("  building bpf-linker {BPF_LINKER}, about a minute");
    let mut c = cmd("cargo", ["install", "bpf-linker", "--version", BPF_LINKER, "--locked"]);
    c.args(["--no-default-features", "--features", "llvm-22"]);
    output(c.env("LLVM_PREFIX", "/usr/lib/llvm-22")).map(drop)
}

/// Installs what [`crate::vm`] needs.
pub(crate) fn ensure_vm() -> Result<()> {
    let all = [
        ("qemu-system-x86_64", "qemu-system-x86"),
        ("busybox", "busybox-static"),
        ("cpio", "cpio"),
        ("xz", "xz-utils"),
    ];
    let missing: Vec<&str> = all.iter().filter(|(p, _)| !on_path(p)).map(|(_, d)| *d).collect();
    if missing.is_empty() { Ok(()) } else { install(&missing) }
}

fn install(packages: &[&str]) -> Result<()> {
    let line = format!("apt-get update && apt-get install -y {}", packages.join(" "));
    let debian = on_path("apt-get");
    let root = std::env::var("USER").is_ok_and(|u| u == "root") || is_root();
    if !(debian && root) {
        bail!("missing: {}. On Debian, as root, run:\n  {line}", packages.join(", "));
    }
    eprintln!("  installing {}", packages.join(" "));
    output(&mut cmd("apt-get", ["update", "-qq"]))?;
    let mut c = cmd("apt-get", ["install", "-y", "-qq", "--no-install-recommends"]);
    output(c.args(packages).env("DEBIAN_FRONTEND", "noninteractive")).map(drop)
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// The client's minor version, if there is a kubectl.
fn kubectl_minor() -> Option<u32> {
    let text = stdout(&mut cmd("kubectl", ["version", "--client", "-o", "json"])).ok()?;
    let v: serde_json::Value = serde_json::from_str(&text).ok()?;
    let minor = v["clientVersion"]["minor"].as_str()?;
    minor.trim_end_matches(|c: char| !c.is_ascii_digit()).parse().ok()
}

/// Compiles kubectl from `xtask/kubectl` into the build directory's `tools`, which [`kubectl`]
/// prefers.
fn build_kubectl() -> Result<String> {
    let to = crate::root().join("target/tools/kubectl");
    if to.is_file() {
        return Ok(String::new());
    }
    eprintln!("  building kubectl {KUBECTL_VERSION} from its Go modules, some minutes");
    let flags = format!(
        "-s -w -X k8s.io/component-base/version.gitVersion={KUBECTL_VERSION} \
         -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=34"
    );
    let mut c = Command::new("go");
    c.args(["build", "-ldflags", &flags, "-o"]).arg(&to).arg(".");
    output(c.current_dir(crate::root().join("xtask/kubectl"))).context("kubectl")?;
    ensure!(to.is_file(), "go built no {}", to.display());
    Ok("built kubectl".to_owned())
}

/// The kubectl to use.
pub(crate) fn kubectl() -> std::path::PathBuf {
    let ours = crate::root().join("target/tools/kubectl");
    if ours.is_file() { ours } else { "kubectl".into() }
}
