//! Where the programs are: a directory of unpacked Debian packages and a virtual environment of Python, both outside
//! the checkout and visible to pods.

use std::{env, fs, path::PathBuf};

use anyhow::{Context as _, Result, ensure};

use crate::fetch;

/// Where packages are kept from run to run; about 1.2 GB.
const CACHE: &str = "/var/cache/rlark-apps";
/// Chooses another directory. Pods must see it: not below `/tmp` or `/run/rlark*`.
const CACHE_VARIABLE: &str = "RLARK_APPS_CACHE";
/// Another interpreter for the tests of PyTorch, with its own `torch`: a virtual environment, for example.
const TORCH_VARIABLE: &str = "RLARK_APPS_TORCH_PYTHON";

pub(crate) const DEBIAN: &str = include_str!("../packages.txt");
pub(crate) const PYPI: &str = include_str!("../requirements.txt");

/// The machine's own interpreter, which every pod sees as well.
pub(crate) const PYTHON: &str = "/usr/bin/python3";

/// The fetched packages.
#[derive(Debug, Clone)]
pub struct Packages {
    dir: PathBuf,
}

impl Packages {
    /// The packages of this checkout's lists; what is missing is fetched first.
    pub fn open() -> Result<Self> {
        let all = Self { dir: directory() };
        fetch::ensure(&all, &all.dir)?;
        Ok(all)
    }

    pub(crate) fn is_complete(&self) -> bool {
        fs::read_to_string(self.stamp()).is_ok_and(|s| s == wanted())
    }

    pub(crate) fn stamp(&self) -> PathBuf {
        self.dir.join("complete")
    }

    pub(crate) fn debian(&self) -> PathBuf {
        self.dir.join("debian")
    }

    pub(crate) fn venv(&self) -> PathBuf {
        self.dir.join("python")
    }

    /// A program of a Debian package: an unpacked one, or the machine's where it has that package already.
    pub fn program(&self, name: &str) -> Result<String> {
        let mut dirs = Vec::new();
        for root in [self.debian(), PathBuf::from("/")] {
            dirs.extend(["usr/bin", "usr/sbin", "bin", "sbin"].map(|d| root.join(d)));
            // Debian keeps the programs of each PostgreSQL apart.
            let versions = fs::read_dir(root.join("usr/lib/postgresql")).into_iter().flatten();
            dirs.extend(versions.flatten().map(|v| v.path().join("bin")));
        }
        let found = dirs.iter().map(|d| d.join(name)).find(|p| p.is_file());
        let found = found.with_context(|| format!("no {name} in {}", self.dir.display()))?;
        Ok(found.display().to_string())
    }

    /// A file of a Debian package, by its path below `/`.
    #[must_use]
    pub fn file(&self, path: &str) -> PathBuf {
        self.debian().join(path)
    }

    /// A program of a Python package.
    pub fn python_program(&self, name: &str) -> Result<String> {
        let found = self.venv().join("bin").join(name);
        ensure!(found.is_file(), "no {}", found.display());
        Ok(found.display().to_string())
    }

    /// The interpreter that has PyTorch: the machine's, for which Debian's is made, unless another is chosen.
    #[must_use]
    pub fn torch_python(&self) -> (Kind, String) {
        let chosen = env::var(TORCH_VARIABLE);
        chosen.map_or_else(|_| (Kind::Debian, PYTHON.to_owned()), |python| (Kind::Python, python))
    }

    /// What a program of the packages finds its libraries and modules by, and what every program gets: the pod's own
    /// writable directory.
    #[must_use]
    pub fn environment(&self, kind: Kind) -> Vec<(&'static str, String)> {
        let mut all = vec![
            ("HOME", "/tmp".to_owned()),
            ("TMPDIR", "/tmp".to_owned()),
            ("LANG", "C.UTF-8".to_owned()),
            ("PYTHONUNBUFFERED", "1".to_owned()),
        ];
        let path = "/usr/sbin:/usr/bin:/sbin:/bin";
        let debian = self.debian();
        if kind == Kind::Python {
            all.push(("PATH", format!("{}:{path}", self.venv().join("bin").display())));
            return all;
        }
        let libraries = format!("{}-linux-gnu", env::consts::ARCH);
        // The last two are alternatives, which only an installed package is chosen from.
        let places = ["usr/lib".to_owned()].into_iter().chain(
            ["usr/lib/@", "lib/@", "usr/lib/@/blas", "usr/lib/@/lapack"]
                .map(|d| d.replace('@', &libraries)),
        );
        let places: Vec<_> = places.map(|d| debian.join(d).display().to_string()).collect();
        all.push(("LD_LIBRARY_PATH", places.join(":")));
        all.push((
            "PYTHONPATH",
            debian.join("usr/lib/python3/dist-packages").display().to_string(),
        ));
        let [bin, sbin] = ["usr/bin", "usr/sbin"].map(|d| debian.join(d).display().to_string());
        all.push(("PATH", format!("{bin}:{sbin}:{path}")));
        all
    }
}

/// Where a program comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An unpacked Debian package.
    Debian,
    /// The virtual environment.
    Python,
}

fn directory() -> PathBuf {
    env::var_os(CACHE_VARIABLE).map_or_else(|| CACHE.into(), PathBuf::from)
}

/// What a complete directory says of itself.
pub(crate) fn wanted() -> String {
    format!("{DEBIAN}\n{PYPI}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_python_package_is_pinned() {
        let lines = PYPI.lines().filter(|l| !l.starts_with('#'));
        let loose: Vec<&str> = lines.filter(|l| !l.contains("==")).collect();
        assert_eq!(loose, [] as [&str; 0]);
    }
}
