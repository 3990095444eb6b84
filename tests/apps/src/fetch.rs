//! Fetching the packages: Debian's by apt, unpacked into a directory, so that no daemon starts and nothing of the
//! machine changes; PyPI's by pip into a virtual environment.

use std::{
    fs::{self, File},
    path::Path,
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use test_kit::command::{cmd, on_path, output};

use crate::{
    packages::{DEBIAN, PYPI, PYTHON, Packages, wanted},
    report,
};

/// Fetches what is missing; nothing is asked of a registry when all is there.
pub(crate) fn ensure(packages: &Packages, dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    // Two checkouts may share the directory.
    let lock = File::create(dir.join("lock"))?;
    lock.lock().context("cannot lock the packages")?;
    if packages.is_complete() {
        return Ok(());
    }
    report("packages", &format!("fetching into {}, some minutes", dir.display()));
    let stamp = packages.stamp();
    if stamp.exists() {
        fs::remove_file(&stamp)?;
    }
    debian(&dir.join("debs"), &packages.debian())?;
    pypi(&packages.venv(), dir)?;
    fs::write(stamp, wanted())?;
    Ok(())
}

fn debian(debs: &Path, to: &Path) -> Result<()> {
    ensure!(on_path("apt-get"), "the tests of real programs need a Debian machine");
    for dir in [debs, to] {
        anew(dir)?;
    }
    fs::create_dir_all(debs.join("partial"))?;
    output(&mut cmd("apt-get", ["update", "-qq"]))?;
    let mut c = cmd("apt-get", ["install", "-y", "-qq", "--no-install-recommends"]);
    // Also those that the machine has; but of what these need, only what it lacks.
    c.args(["--reinstall", "--download-only", "-o"]);
    c.arg(format!("Dir::Cache::archives={}", debs.display()));
    c.args(DEBIAN.lines().filter(|l| !l.is_empty() && !l.starts_with('#')));
    output(c.env("DEBIAN_FRONTEND", "noninteractive"))?;
    let mut unpacked = 0;
    for deb in fs::read_dir(debs)?.flatten().map(|e| e.path()) {
        if deb.extension().is_some_and(|e| e == "deb") {
            output(Command::new("dpkg-deb").arg("-x").arg(&deb).arg(to))?;
            unpacked += 1;
        }
    }
    ensure!(unpacked > 0, "apt-get brought no package to {}", debs.display());
    fs::remove_dir_all(debs)?;
    Ok(())
}

fn pypi(venv: &Path, dir: &Path) -> Result<()> {
    if output(&mut cmd(PYTHON, ["-c", "import ensurepip"])).is_err() {
        let mut c = cmd("apt-get", ["install", "-y", "-qq", "--no-install-recommends"]);
        output(c.arg("python3-venv").env("DEBIAN_FRONTEND", "noninteractive"))?;
    }
    let mut c = cmd(PYTHON, ["-m", "venv", "--clear"]);
    output(c.arg(venv))?;
    let list = dir.join("requirements.txt");
    fs::write(&list, PYPI)?;
    let mut c = Command::new(venv.join("bin/python"));
    c.args(["-m", "pip", "install", "--quiet", "--no-cache-dir", "--only-binary=:all:", "-r"]);
    output(c.arg(&list)).map(drop)
}

fn anew(dir: &Path) -> Result<()> {
    if dir.exists() {
        fs::remove_dir_all(dir)?;
    }
    fs::create_dir_all(dir)?;
    Ok(())
}
