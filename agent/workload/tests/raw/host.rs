//! Pods on the machine's own network.

use std::{fs, os::unix::fs::MetadataExt as _, path::Path};

use agent_workload::{
    lifecycle::Outcome,
    logs::reader::LogOptions,
    raw::{PodView, RawRuntime, Stage, error::PodError},
    spec::{HostNetwork, PodSpec, RestartPolicy},
};
use rustix::mount::{UnmountFlags, unmount};

use crate::machine::{Machine, failed, on_a_machine, spec};

/// What a task may and may not do with sockets. Each word that it says is something that was granted.
const SOCKETS: &str = r#"use Socket; sub granted { print "granted $_[0]\n" if $_[1] }
granted "raw", socket(my $r, AF_INET, SOCK_RAW, 1);
granted "packet", socket(my $p, 17, SOCK_RAW, 0x0300);
socket(my $t, AF_INET, SOCK_STREAM, 0) or die;
granted "mark", setsockopt($t, SOL_SOCKET, 36, 7);
granted "transparent", setsockopt($t, 0, 19, 1);
granted "port", bind($t, pack_sockaddr_in(81, INADDR_LOOPBACK));"#;
const SETTINGS: &str = "try() { \"$@\" 2>/dev/null && echo changed $*; }; \
                        try ip link add x type dummy; try ip link set rlark0 down; try ip addr add 10.9.9.9/32 dev lo; \
                        try ip route add 10.9.0.0/16 dev lo; try ip rule add from 10.9.0.0/16 lookup 9; try nft add table ip x; \
                        try sh -c 'echo 1 >/proc/sys/net/ipv4/conf/all/log_martians'; \
                        try umount /sys; try mount -o remount,rw /proc/sys; \
                        try sh -c 'echo $$ >/sys/fs/cgroup/unified/cgroup.procs'";

fn on_host(spec: PodSpec) -> PodSpec {
    let machine = HostNetwork { name: "robot-1".into(), addresses: vec![[192, 168, 1, 10].into()] };
    PodSpec { host_network: Some(machine), ..spec }
}

/// Which namespace a path names.
fn namespace(path: &Path) -> (u64, u64) {
    fs::metadata(path).map(|m| (m.dev(), m.ino())).unwrap()
}

fn is_named(view: &PodView) -> bool {
    namespace(&view.netns) == namespace(Path::new("/proc/thread-self/ns/net"))
}

fn loopback_up() {
    crate::ip("link set lo up");
}

/// Runs it to its end; what it said.
async fn said(m: &Machine, runtime: &RawRuntime, spec: &PodSpec) -> String {
    runtime.create(spec.clone()).await.unwrap();
    runtime.start(&spec.uid).await.unwrap();
    let ended = m.ended(runtime, &spec.uid).await;
    let log = m.log(runtime, &spec.uid, LogOptions::default()).await;
    assert_eq!(ended.outcome(), Some(&Outcome::Succeeded), "{log}");
    log
}

#[test]
fn a_pod_on_the_machines_network_sees_it_and_cannot_change_it() {
    on_a_machine(async |m: &Machine| {
        loopback_up();
        let before = m.traces();
        let runtime = m.open().await;
        let script = format!(
            "ls /sys/class/net; cat /etc/hosts; hostname; cat /proc/self/cgroup; readlink /proc/self/ns/net; \
             ls /run/rlark; {SETTINGS}; perl -e '{SOCKETS}'; echo; echo within another user namespace; \
             unshare --user --map-root-user perl -e '{SOCKETS}'; true"
        );
        let host = on_host(spec("host-0", &script));
        let created = runtime.create(host.clone()).await.unwrap();
        assert_eq!(created.addresses, [] as [std::net::IpAddr; 0]);
        assert!(is_named(&created));
        assert!(created.cgroup.ends_with("uid-host-0/pod"), "{}", created.cgroup.display());
        let log = said(m, &runtime, &host).await;
        let own = fs::read_link("/proc/thread-self/ns/net").unwrap();
        for wanted in [
            "lo\nrlark0\n",
            "127.0.0.1\tlocalhost\n",
            "192.168.1.10\trobot-1 host-0\n",
            "\nhost-0\n",
            "/rlark/uid-host-0/pod\n",
            &format!("\n{}\n", own.display()),
            "bin\nwork\n",
            "granted port\n",
        ] {
            assert!(log.contains(wanted), "{wanted:?} is missing in:\n{log}");
        }
        for never in ["changed", "raw", "packet", "mark", "transparent"] {
            assert!(!log.contains(never), "{never} in:\n{log}");
        }
        // The same program with a network of its own may: it is not for want of trying.
        let log = said(m, &runtime, &spec("own-0", &format!("perl -e '{SOCKETS}'"))).await;
        for granted in ["raw", "packet", "mark", "transparent", "port"] {
            assert!(log.contains(&format!("granted {granted}\n")), "{granted} is not in:\n{log}");
        }
        for view in runtime.list().unwrap() {
            runtime.remove(&view.spec.uid).await.unwrap();
        }
        runtime.close().await.unwrap();
        assert_eq!(m.traces(), before);
        assert_eq!(m.processes(), 0);
    });
}

#[test]
fn two_pods_on_the_machines_network_share_it() {
    on_a_machine(async |m: &Machine| {
        loopback_up();
        let before = m.traces();
        let runtime = m.open().await;
        let server = on_host(spec("server-0", crate::SERVER));
        runtime.create(server.clone()).await.unwrap();
        runtime.start(&server.uid).await.unwrap();
        let view = m.logged(&runtime, &server.uid, "listening\n").await;
        let processes = fs::read_to_string(view.cgroup.join("cgroup.procs")).unwrap();
        assert_eq!(processes.lines().count(), 2, "the first process and the program: {processes}");
        let mut client = on_host(spec("client-0", crate::CLIENT));
        client.environment.push(("SERVER".into(), "127.0.0.1".into()));
        assert_eq!(said(m, &runtime, &client).await, "hello 127.0.0.1\n");
        // One goes, and takes nothing from the other.
        runtime.remove(&client.uid).await.unwrap();
        assert!(is_named(&runtime.view(&server.uid).unwrap().unwrap()));
        runtime.remove(&server.uid).await.unwrap();
        runtime.close().await.unwrap();
        assert_eq!(m.traces(), before);
    });
}

#[test]
fn where_it_is_not_allowed_none_is_made_and_one_that_runs_goes_on_but_is_not_started_again() {
    on_a_machine(async |m: &Machine| {
        let before = m.traces();
        let mut host = on_host(spec("host-0", "echo up; sleep 1000"));
        host.restart = RestartPolicy::OnFailure;
        let first = m.open().await;
        first.create(host.clone()).await.unwrap();
        first.start(&host.uid).await.unwrap();
        m.logged(&first, &host.uid, "up\n").await;
        drop(first);

        let mut config = m.config();
        config.allow_host_network = false;
        let second = RawRuntime::open(config).await.unwrap();
        let found = second.view(&host.uid).unwrap().unwrap();
        assert_eq!((found.status.stage, found.status.attempt), (Stage::Running, 1));
        assert!(is_named(&found));
        let error = second.create(on_host(spec("new-0", "true"))).await.unwrap_err();
        assert!(matches!(error, PodError::HostNetwork { .. }) && !error.is_transient(), "{error}");
        assert_eq!(second.list().unwrap().len(), 1, "nothing is left of what was refused");

        m.kill_supervisor(&host.uid);
        let (code, message) = failed(&m.ended(&second, &host.uid).await);
        assert_eq!(code, Some(137));
        let why = "the pod's supervisor was lost; given up, as the agent runs without --allow-host-network";
        assert_eq!(message, why);
        second.remove(&host.uid).await.unwrap();
        second.close().await.unwrap();
        assert_eq!(m.traces(), before);
        assert_eq!(m.processes(), 0);
    });
}

#[test]
fn after_the_machine_was_restarted_its_network_is_named_again() {
    on_a_machine(async |m: &Machine| {
        let mut host = on_host(spec("host-0", "echo up; sleep 1000"));
        host.restart = RestartPolicy::OnFailure;
        let first = m.open().await;
        let made = first.create(host.clone()).await.unwrap();
        first.start(&host.uid).await.unwrap();
        m.logged(&first, &host.uid, "up\n").await;
        drop(first);
        m.kill_supervisor(&host.uid);
        unmount(&made.netns, UnmountFlags::DETACH).unwrap();
        fs::remove_file(&made.netns).unwrap();

        let second = m.open().await;
        let again =
            |view: &PodView| view.status.attempt == 2 && view.status.stage == Stage::Running;
        assert!(is_named(&m.until(&second, &host.uid, again).await));
        second.remove(&host.uid).await.unwrap();
        second.close().await.unwrap();
    });
}
