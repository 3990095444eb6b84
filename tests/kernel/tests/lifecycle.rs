//! Attaching beside others, leaving nothing behind, and pins that stay.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    os::fd::AsFd as _,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use datapath_loader::{
    CgroupRoot, Config, Datapath, GuardConfig, Hook, LoadError, Need, mount_bpffs, probe,
};
use rustix::io::Errno;
use test_kernel::{Lab, UNKNOWN, attached, errno, require_root};

const NO_ROUTE: Option<i32> = Some(Errno::HOSTUNREACH.raw_os_error());

/// The kernel's numbers of the programs and maps that this process holds, directly or through links.
fn held() -> Result<BTreeSet<(&'static str, u32)>> {
    let mut held = BTreeSet::new();
    for entry in std::fs::read_dir("/proc/self/fdinfo")? {
        // The descriptor of the directory itself is gone by now.
        let Ok(text) = std::fs::read_to_string(entry?.path()) else { continue };
        for line in text.lines() {
            let Some((key, value)) = line.split_once(':') else { continue };
            let kind = match key {
                "prog_id" => "prog",
                "map_id" => "map",
                _ => continue,
            };
            held.insert((kind, value.trim().parse()?));
        }
    }
    Ok(held)
}

fn exists((kind, id): (&str, u32)) -> Result<bool> {
    Ok(Command::new("bpftool")
        .args([kind, "show", "id", &id.to_string()])
        .output()?
        .status
        .success())
}

#[test]
fn this_kernel_has_all_that_is_needed() -> Result<()> {
    require_root()?;
    let found = probe();
    for need in [Need::All, Need::Hooks] {
        assert_eq!(found.missing(need), None);
    }
    assert!(found.cgroup.is_some());
    Ok(())
}

/// Set in the second process of the next test.
const UNMOUNTED: &str = "CGROUP2_IS_NOT_MOUNTED";

/// As on a machine that mounts cgroup v1 alone. In a process of its own: which mounts there are is asked of the process.
#[test]
fn hooks_need_no_mounted_cgroup2() -> Result<()> {
    require_root()?;
    if std::env::var_os(UNMOUNTED).is_some() {
        return hooks_go_to_a_mount_of_their_own();
    }
    let script = "for m in $(awk '/ - cgroup2 /{print $5}' /proc/self/mountinfo | sort -r); do umount -l $m; done; \
                  exec \"$0\" --exact hooks_need_no_mounted_cgroup2";
    let mut inside = Command::new("unshare");
    inside.args(["--mount", "sh", "-c", script]).arg(std::env::current_exe()?);
    let output = inside.env(UNMOUNTED, "1").output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success() && said.contains("1 passed"), "{said}");
    Ok(())
}

fn hooks_go_to_a_mount_of_their_own() -> Result<()> {
    let found = probe();
    assert_eq!(found.missing(Need::Hooks), None);
    let root = found.cgroup.context("a hierarchy")?;
    ensure!(matches!(root, CgroupRoot::Detached(_)), "{root:?}");
    let inside = root.path().strip_prefix("/proc/self")?.to_owned();
    let path = Path::new("/proc").join(std::process::id().to_string()).join(inside);
    let before = attached(&path)?;
    let loaded = Datapath::load(Config { cgroup: Some(root.path()), pins: None })?;
    assert_eq!(attached(&path)?, before + Hook::CGROUP.len());
    drop(loaded);
    assert_eq!(attached(&path)?, before);
    Ok(())
}

#[test]
fn others_programs_stay_attached_and_ours_go() -> Result<()> {
    let mut lab = Lab::new()?;
    let hooks = Hook::CGROUP.len();
    let cgroup = lab.cgroup.path().to_owned();
    assert_eq!(attached(&cgroup)?, hooks);
    let other = Datapath::load(Config { cgroup: Some(cgroup.clone()), pins: None })?;
    assert_eq!(attached(&cgroup)?, 2 * hooks);
    assert_eq!(errno(&lab.a.connect(format!("{UNKNOWN}:80"))), NO_ROUTE, "both are asked");
    drop(other);
    assert_eq!(attached(&cgroup)?, hooks);
    assert_eq!(errno(&lab.a.connect(format!("{UNKNOWN}:80"))), NO_ROUTE);
    lab.datapath = None;
    assert_eq!(attached(&cgroup)?, 0);
    Ok(())
}

#[test]
fn dropping_everything_leaves_no_program_and_no_map() -> Result<()> {
    let mut lab = Lab::new()?;
    let held = held()?;
    assert!(held.len() > Hook::CGROUP.len() + 2, "hooks, guards and maps: {held:?}");
    for object in &held {
        assert!(exists(*object)?, "{object:?}");
    }
    lab.guards.clear();
    lab.datapath = None;
    // The kernel frees them after a grace period.
    let deadline = Instant::now() + Duration::from_secs(10);
    for object in held {
        while exists(object)? {
            assert!(Instant::now() < deadline, "{object:?} is still there");
            std::thread::yield_now();
        }
    }
    Ok(())
}

#[test]
fn a_wrong_cgroup_is_named() -> Result<()> {
    require_root()?;
    let load = |cgroup: &str| Datapath::load(Config { cgroup: Some(cgroup.into()), pins: None });
    assert!(
        matches!(load("/proc"), Err(LoadError::NotCgroup2 { path }) if path == Path::new("/proc"))
    );
    assert!(matches!(load("/nonexistent"), Err(LoadError::OpenCgroup { .. })));
    Ok(())
}

#[test]
fn pinned_verdicts_outlive_the_process_state_and_are_adopted() -> Result<()> {
    require_root()?;
    let directory = tempfile::tempdir()?;
    let mount = mount_bpffs(directory.path())?;
    let pins = directory.path().join("rlark");
    let mut lab = Lab::with_pins(Some(&pins))?;
    let cgroup = lab.cgroup.path().to_owned();
    let _listener = lab.b.listen("0.0.0.0:9000")?;
    let to = SocketAddr::new(lab.b.vip, 9000);
    lab.guards.clear();
    lab.datapath = None;
    assert_eq!(attached(&cgroup)?, Hook::CGROUP.len());
    assert_eq!(errno(&lab.a.connect(format!("{UNKNOWN}:80"))), NO_ROUTE);
    assert_eq!(lab.a.connect(to)?.peer_addr()?, to);

    let adopted =
        Datapath::load(Config { cgroup: Some(cgroup.clone()), pins: Some(pins.clone()) })?;
    assert_eq!(attached(&cgroup)?, Hook::CGROUP.len(), "replaced, not added");
    assert_eq!(adopted.pods()?.len(), 2);
    assert_eq!(lab.a.connect(to)?.peer_addr()?, to);
    adopted.unpin(true)?;
    drop(adopted);
    assert_eq!(attached(&cgroup)?, 0);
    assert_eq!(pins.read_dir()?.count(), 0);
    drop(mount);
    assert!(!pins.exists());
    Ok(())
}

#[test]
fn a_pinned_guard_keeps_its_slot_and_goes_with_its_namespace() -> Result<()> {
    require_root()?;
    let directory = tempfile::tempdir()?;
    let _mount = mount_bpffs(directory.path())?;
    let pins = directory.path().join("rlark");
    std::fs::create_dir_all(pins.join("v0"))?;
    let mut lab = Lab::with_pins(Some(&pins))?;
    lab.guards.clear();
    lab.datapath = None;
    let config = Config { cgroup: Some(lab.cgroup.path().to_owned()), pins: Some(pins.clone()) };
    let adopted = Datapath::load(config)?;
    let guard = |pod: &test_kernel::Pod| {
        let config = GuardConfig { netns: pod.cookie, pod: pod.entry };
        adopted.attach_guard(pod.netns.as_fd(), config)
    };
    // Pod b's guard comes first this time; pod a's old one still lands in the first slot.
    let b = guard(&lab.b)?;
    let a = guard(&lab.a)?;
    assert!(a.slot() < b.slot(), "as they were: {:?} {:?}", a.slot(), b.slot());
    assert_eq!(adopted.pinned_guards()?, 2);
    drop((a, b));
    lab.b.netns = datapath_net::netns::Netns::anonymous()?;
    eventually_gone(&adopted, 1)?;
    assert!(!pins.join("v0").exists(), "another layout");
    adopted.unpin(true)?;
    Ok(())
}

/// The kernel takes a namespace down some time after its last user has gone.
fn eventually_gone(datapath: &Datapath, left: usize) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        datapath.sweep_pins()?;
        if datapath.pinned_guards()? == left {
            return Ok(());
        }
        ensure!(Instant::now() < end, "{} guards", datapath.pinned_guards()?);
        std::thread::yield_now();
    }
}

#[test]
fn pins_need_a_bpf_file_system() -> Result<()> {
    require_root()?;
    let found = probe();
    let cgroup = found.cgroup.context("a cgroup v2 mount")?.path();
    let directory = tempfile::tempdir()?;
    let loaded =
        Datapath::load(Config { cgroup: Some(cgroup), pins: Some(directory.path().to_owned()) });
    assert!(matches!(loaded, Err(LoadError::NotBpffs { .. })));
    Ok(())
}
