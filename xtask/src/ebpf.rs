//! Builds the data path's BPF object, and compares a build with the committed one.
//!
//! The object is part of the repository, so users and `cargo build` need none of this. It is a function of the sources
//! and the tool versions alone: paths are remapped, debug sections are stripped (type information stays), and
//! the shared layout is included by file, because a path dependency's directory would enter the symbols.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail, ensure};

use crate::{root, setup};

/// Relative to the repository's root.
const OBJECT: &str = "datapath-ebpf/loader/object/datapath.o";
const TARGET: &str = "bpfel-unknown-none";
const LLVM: &str = "/usr/lib/llvm-22";
/// Debian's compiler has a `core` for the BPF target; rustup's toolchains have none.
const RUSTC: &str = "/usr/bin/rustc";
const HOW_TO_INSTALL: &str = "see datapath-ebpf/README.md, or run `cargo xtask setup`";

/// Replaces the committed object.
pub(crate) fn rebuild() -> Result<()> {
    build(&root().join(OBJECT))
}

/// Builds the object and writes it to `out`.
fn build(out: &Path) -> Result<()> {
    setup::ensure_ebpf()?;
    let root = root();
    let prog = root.join("datapath-ebpf/prog");
    let target = root.join("target/ebpf");
    let rustc = env::var("RLARK_BPF_RUSTC").unwrap_or_else(|_| RUSTC.to_owned());
    ensure!(Path::new(&rustc).exists(), "no BPF compiler at {rustc}: {HOW_TO_INSTALL}");
    let objcopy = Path::new(LLVM).join("bin/llvm-objcopy");
    ensure!(objcopy.exists(), "no {}: {HOW_TO_INSTALL}", objcopy.display());

    let home = cargo_home()?;
    let path = env::var("PATH").unwrap_or_default();
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .current_dir(&prog)
        .args(["build", "--release", "--locked", "--target", TARGET])
        .env("RUSTC", &rustc)
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_TARGET_DIR", &target)
        .env("CARGO_ENCODED_RUSTFLAGS", flags(&root, &home).join("\u{1f}"))
        .env("PATH", format!("{}:{path}", home.join("bin").display()))
        .env_remove("RUSTFLAGS")
        .env_remove("RUSTC_WRAPPER")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("CARGO_BUILD_TARGET");
    run(&mut cargo).with_context(|| format!("cannot build the BPF programs: {HOW_TO_INSTALL}"))?;

    let built = target.join(TARGET).join("release/datapath");
    let stripped = target.join("datapath.o");
    run(Command::new(&objcopy).arg("--strip-debug").arg(&built).arg(&stripped))?;
    fs::copy(&stripped, out)
        .with_context(|| format!("cannot write the BPF object to {}", out.display()))?;
    Ok(())
}

/// Fails unless the committed object equals a rebuild, byte for byte.
pub(crate) fn check() -> Result<()> {
    let rebuilt = root().join("target/ebpf/check.o");
    fs::create_dir_all(root().join("target/ebpf"))?;
    build(&rebuilt)?;
    let committed = root().join(OBJECT);
    let (old, new) = (fs::read(&committed)?, fs::read(&rebuilt)?);
    if old == new {
        return Ok(());
    }
    bail!(
        "{OBJECT} ({} bytes) differs from its rebuild ({} bytes, {}): run `cargo xtask ebpf` and commit it",
        old.len(),
        new.len(),
        rebuilt.display()
    )
}

fn flags(root: &Path, home: &Path) -> Vec<String> {
    let remap = |from: &Path, to: &str| format!("--remap-path-prefix={}={to}", from.display());
    vec!["-Clink-arg=--btf".to_owned(), remap(root, "rlark"), remap(home, "cargo")]
}

pub(crate) fn cargo_home() -> Result<PathBuf> {
    if let Some(home) = env::var_os("CARGO_HOME") {
        return Ok(home.into());
    }
    let home = env::var_os("HOME").context("neither CARGO_HOME nor HOME is set")?;
    Ok(Path::new(&home).join(".cargo"))
}

fn run(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("cannot run {program}"))?;
    ensure!(status.success(), "{program} failed: {status}");
    Ok(())
}
