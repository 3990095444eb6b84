//! This machine under another kernel: a virtual machine (without an accelerator, so it is slow) boots it on this machine's own
//! root, which it reads and does not change.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context as _, Result, ensure};
use test_kit::command::{cmd, output, stdout};

use crate::{root, setup};

const INIT: &str = include_str!("../vm/init.sh");
/// Of the programs that `init.sh` calls.
const APPLETS: [&str; 8] =
    ["sh", "chroot", "echo", "insmod", "mkdir", "modprobe", "mount", "poweroff"];
/// What the kernel needs to reach this machine's files; a kernel may have them built in.
const MODULES: [&str; 4] = ["virtio_pci", "9pnet_virtio", "9p", "overlay"];
const MEMORY_MIB: u32 = 6144;

/// A kernel and its modules.
#[derive(Debug)]
pub(crate) struct Kernel {
    image: PathBuf,
    /// `…/lib/modules/VERSION`.
    modules: PathBuf,
    pub(crate) version: String,
}

impl Kernel {
    /// The directory of an unpacked package, or the name of a Debian package, which is fetched.
    pub(crate) fn find(name: &str) -> Result<Self> {
        setup::ensure_vm()?;
        let given = Path::new(name);
        let dir = if given.is_dir() { fs::canonicalize(given)? } else { fetch(name)? };
        let images = fs::read_dir(dir.join("boot"))?.flatten().map(|e| e.path());
        let mut images = images.filter(|p| p.to_string_lossy().contains("/vmlinuz-"));
        let image = images.next().with_context(|| format!("no kernel in {}", dir.display()))?;
        let name = image.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let version = name.trim_start_matches("vmlinuz-").to_owned();
        let modules = dir.join("lib/modules").join(&version);
        if !modules.join("modules.dep").is_file() {
            output(cmd("busybox", ["depmod", "-b"]).arg(&dir).arg(&version))?;
        }
        Ok(Self { image, modules, version })
    }

    /// The files of some modules and of what they depend on, those first.
    fn files(&self, wanted: &[&str]) -> Result<Vec<String>> {
        let text = fs::read_to_string(self.modules.join("modules.dep"))?;
        let mut files: Vec<String> = Vec::new();
        for name in wanted {
            let is = |path: &str| {
                let file = Path::new(path).file_name().unwrap_or_default().to_string_lossy();
                file.split_once(".ko").is_some_and(|(stem, _)| stem == *name)
            };
            let mut lines = text.lines().filter_map(|line| line.split_once(':'));
            let Some((path, needs)) = lines.find(|(path, _)| is(path)) else { continue };
            for file in needs.split_whitespace().rev().chain([path]) {
                if !files.iter().any(|f| f == file) {
                    files.push(file.to_owned());
                }
            }
        }
        Ok(files)
    }

    /// Boots it and runs `job`, a shell script, as root of the whole machine; `line` gets what it says.
    pub(crate) fn run(&self, job: &str, mut line: impl FnMut(&str)) -> Result<()> {
        let dir = root().join("target/vm");
        fs::create_dir_all(&dir)?;
        let script = dir.join("job.sh");
        fs::write(&script, format!("echo {BEGIN}\n{job}\necho {END}\n"))?;
        let archive = self.archive(&dir, &script)?;
        let mut c = cmd("qemu-system-x86_64", ["-accel", "tcg,thread=multi", "-cpu", "max"]);
        c.args(["-smp", "2", "-m", &MEMORY_MIB.to_string(), "-nic", "none", "-nographic"]);
        c.arg("-no-reboot").arg("-kernel").arg(&self.image).arg("-initrd").arg(&archive);
        // On a busy host its timer may be late when the kernel tries it.
        c.args(["-append", "console=ttyS0 quiet panic=1 no_timer_check"]);
        let share = "local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap";
        let mut vm = c.args(["-virtfs", share]).stdout(Stdio::piped()).spawn()?;
        let mut said = BufReader::new(vm.stdout.take().context("the machine's console")?);
        let (mut began, mut ended, mut bytes) = (false, false, Vec::new());
        while said.read_until(b'\n', &mut bytes)? > 0 {
            let text = String::from_utf8_lossy(&bytes).trim_end().to_owned();
            bytes.clear();
            ended |= text == END;
            if began && !ended {
                line(&text);
            }
            began |= text.ends_with(BEGIN);
        }
        vm.wait()?;
        ensure!(ended, "{} ended before its work did", self.version);
        Ok(())
    }

    /// The first file system: a shell, the modules, [`INIT`].
    fn archive(&self, dir: &Path, job: &Path) -> Result<PathBuf> {
        let tree = dir.join("tree");
        if tree.exists() {
            fs::remove_dir_all(&tree)?;
        }
        for name in ["bin", "dev", "lower", "modules.d", "new", "proc", "sys", "upper"] {
            fs::create_dir_all(tree.join(name))?;
        }
        fs::copy("/bin/busybox", tree.join("bin/busybox"))?;
        for applet in APPLETS {
            std::os::unix::fs::symlink("busybox", tree.join("bin").join(applet))?;
        }
        let mut order = String::new();
        for file in self.files(&MODULES)? {
            let (from, file) = (self.modules.join(&file), Path::new(&file));
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let name = name.trim_end_matches(".xz");
            let to = tree.join("modules.d").join(name);
            if from.extension().is_some_and(|e| e == "xz") {
                fs::write(to, output(cmd("xz", ["-dc"]).arg(&from))?.stdout)?;
            } else {
                fs::copy(&from, to)?;
            }
            order += &format!("{name}\n");
        }
        fs::write(tree.join("modules"), order)?;
        let (modules, version) = (self.modules.display(), &self.version);
        let settings =
            format!("HOST_MODULES={modules}\nVERSION={version}\nJOB={}\n", job.display());
        fs::write(tree.join("settings"), settings)?;
        fs::write(tree.join("init"), INIT)?;
        fs::set_permissions(tree.join("init"), fs::Permissions::from_mode(0o755))?;
        let archive = dir.join("archive");
        let pack = "find . | cpio --quiet -o -H newc > \"$0\"";
        output(cmd("sh", ["-c", pack]).arg(&archive).current_dir(&tree))?;
        Ok(archive)
    }
}

const BEGIN: &str = "THE-JOB-BEGINS";
const END: &str = "THE-JOB-HAS-ENDED";

/// Unpacks a package, or what it stands for, below `target/kernels`.
fn fetch(name: &str) -> Result<PathBuf> {
    let dir = root().join("target/kernels").join(name);
    if dir.join("boot").is_dir() {
        return Ok(dir);
    }
    // A name like linux-image-amd64 stands for the newest of a line.
    let depends = stdout(&mut cmd("apt-cache", ["depends", name]))?;
    let mut stands_for = depends.lines().filter_map(|l| l.trim().strip_prefix("Depends: "));
    let package = stands_for.find(|p| p.starts_with("linux-image-")).unwrap_or(name).to_owned();
    fs::create_dir_all(&dir)?;
    output(cmd("apt-get", ["download", "-qq", &package]).current_dir(&dir))?;
    let mut files = fs::read_dir(&dir)?.flatten().map(|e| e.path());
    let deb = files.find(|p| p.extension().is_some_and(|e| e == "deb"));
    let deb = deb.with_context(|| format!("apt-get fetched no {package}"))?;
    output(cmd("dpkg", ["-x"]).arg(&deb).arg(&dir))?;
    fs::remove_file(deb)?;
    Ok(dir)
}
