//! The raw runtime on a real kernel: root, own namespaces, own cgroups. Each test is a machine of
//! its own (network and mount namespace), so they run side by side and leave nothing.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::let_underscore_must_use,
    reason = "tests"
)]

#[path = "raw/host.rs"]
mod host;
#[path = "raw/machine.rs"]
mod machine;

use std::{fs, os::unix::fs::PermissionsExt as _, time::Duration};

use agent_workload::{
    lifecycle::Outcome,
    logs::reader::LogOptions,
    raw::{
        Stage,
        error::{PodError, SetupError},
    },
    spec::RestartPolicy,
};
use machine::{Machine, failed, on_a_machine, spec, v4};

#[test]
fn a_task_sees_its_environment_name_hosts_address_and_namespaces() {
    on_a_machine(async |m: &Machine| {
        let script = "echo env=$GREETING; hostname; cat /etc/hosts; ip -4 -o address show eth0; \
                      echo pid=$$; ls /proc | grep -c '^[0-9]*$'; ls /tmp | wc -l; pwd; \
                      touch /usr/forbidden 2>/dev/null || echo read-only; touch here; \
                      ls /run/rlark; ls /sys/class/net; mount -t tmpfs x /mnt || echo no-mount";
        let mut spec = spec("a-0", script);
        spec.environment.push(("GREETING".into(), "hello".into()));
        let runtime = m.open().await;
        let created = runtime.create(spec.clone()).await.unwrap();
        assert!(!created.started);
        runtime.start(&spec.uid).await.unwrap();
        let ended = m.ended(&runtime, &spec.uid).await;
        let log = m.log(&runtime, &spec.uid, LogOptions::default()).await;
        assert_eq!(ended.outcome(), Some(&Outcome::Succeeded), "{log}");
        for wanted in [
            "env=hello\n",
            "a-0\n",
            &format!("{}\ta-0\n", v4(&created)),
            &format!("inet {}/24", v4(&created)),
            "/run/rlark/work\n",
            "read-only\n",
            "bin\nwork\n",
            "eth0\nlo\n",
            "no-mount\n",
        ] {
            assert!(log.contains(wanted), "{wanted:?} is missing in:\n{log}");
        }
        runtime.remove(&spec.uid).await.unwrap();
        runtime.close().await.unwrap();
    });
}

/// Lays a directory of the test's own over one of the machine, in the test's mount namespace alone.
fn overlay(m: &Machine, place: &str, files: &[&str]) {
    use std::os::unix::fs::symlink;
    let own = m.data.path().join(place.trim_start_matches('/').replace('/', "-"));
    fs::create_dir_all(&own).unwrap();
    for file in files {
        let path = own.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "SECRET").unwrap();
    }
    if place == "/home" {
        // A home whose keys are kept elsewhere.
        fs::create_dir_all(own.join("ann")).unwrap();
        symlink("/home/kept", own.join("ann/.ssh")).unwrap();
    }
    rustix::mount::mount_bind(&own, place).unwrap();
}

#[test]
fn a_task_sees_the_machine_but_not_its_secrets() {
    on_a_machine(async |m: &Machine| {
        overlay(
            m,
            "/root",
            &[
                ".ssh/id_ed25519",
                ".kube/config",
                ".aws/credentials",
                ".config/gh/hosts.yml",
                ".docker/config.json",
                "robot/venv/ok",
            ],
        );
        overlay(m, "/home", &["kept/id_rsa", "bob/.netrc", "bob/ros/ok"]);
        overlay(m, "/etc/ssh", &["ssh_host_ed25519_key", "ssh_host_ed25519_key.pub", "ssh_config"]);
        overlay(
            m,
            "/run",
            &[
                "docker.sock",
                "containerd/containerd.sock",
                "dbus/system_bus_socket",
                "udev/data/ok",
            ],
        );
        overlay(m, "/var/lib", &["kubelet/pki/key.pem", "robot/ok"]);
        let script = "show() { for f in \"$@\"; do [ -s $f ] && echo SEEN $f; done; }; \
                      show /root/.ssh/* /root/.kube/* /root/.aws/* /root/.config/*/* /root/.docker/* \
                      /home/ann/.ssh/* /home/kept/* /home/bob/.netrc /etc/shadow /etc/shadow- /etc/gshadow \
                      /etc/ssh/ssh_host_ed25519_key /run/docker.sock /run/containerd/* /run/dbus/* \
                      /var/lib/kubelet/*; \
                      for f in /root/robot/venv/ok /home/bob/ros/ok /run/udev/data/ok /var/lib/robot/ok \
                      /etc/ssh/ssh_host_ed25519_key.pub /etc/ssh/ssh_config /etc/passwd /usr/bin/env; do \
                      [ -s $f ] && echo kept $f; done; \
                      for f in $(find /dev -type b 2>/dev/null); do [ -b $f ] && echo DISK $f; done; \
                      mknod /tmp/disk b 8 0 2>/dev/null && echo MADE; mknod /dev/rl-disk b 8 0 2>/dev/null && echo MADE; \
                      echo terminals $(ls /dev/pts); [ -c /dev/null ] && [ -c /dev/urandom ] && echo devices";
        let spec = spec("a-0", script);
        let runtime = m.open().await;
        runtime.create(spec.clone()).await.unwrap();
        runtime.start(&spec.uid).await.unwrap();
        m.ended(&runtime, &spec.uid).await;
        let log = m.log(&runtime, &spec.uid, LogOptions::default()).await;
        for never in ["SEEN", "DISK", "MADE"] {
            assert!(!log.contains(never), "{never} in:\n{log}");
        }
        assert_eq!(log.matches("kept ").count(), 8, "{log}");
        assert!(log.contains("terminals ptmx\n") && log.contains("devices\n"), "{log}");
        runtime.remove(&spec.uid).await.unwrap();
        runtime.close().await.unwrap();
    });
}

#[test]
fn exit_codes_and_signals_decide_the_outcome() {
    on_a_machine(async |m: &Machine| {
        let runtime = m.open().await;
        for (name, script, code) in [("a-0", "exit 7", 7), ("b-0", "kill -SEGV $$", 139)] {
            let mut spec = spec(name, script);
            spec.restart = RestartPolicy::Never;
            runtime.create(spec.clone()).await.unwrap();
            runtime.start(&spec.uid).await.unwrap();
            let ended = m.ended(&runtime, &spec.uid).await;
            assert_eq!(failed(&ended).0, Some(code));
        }
    });
}

#[test]
fn a_failing_task_is_restarted_and_given_up_at_its_limit() {
    on_a_machine(async |m: &Machine| {
        let mut spec = spec("a-0", "echo attempt $(ls | wc -l); touch run.$$.$(date +%N); exit 3");
        spec.restart = RestartPolicy::OnFailure;
        spec.backoff_limit = Some(1);
        let runtime = m.open().await;
        runtime.create(spec.clone()).await.unwrap();
        runtime.start(&spec.uid).await.unwrap();
        let ended = m.ended(&runtime, &spec.uid).await;
        assert_eq!(ended.status.attempt, 2);
        let (code, message) = failed(&ended);
        assert_eq!(code, Some(3));
        assert_eq!(message, "exited with code 3; given up after 1 restarts");
        let previous = LogOptions { previous: true, ..LogOptions::default() };
        assert_eq!(m.log(&runtime, &spec.uid, previous).await, "attempt 0\n");
        assert_eq!(m.log(&runtime, &spec.uid, LogOptions::default()).await, "attempt 1\n");
    });
}

#[test]
fn what_cannot_be_found_is_named_and_never_hangs() {
    on_a_machine(async |m: &Machine| {
        let mut missing = spec("a-0", "");
        missing.entrypoint = vec!["no-such-program".into()];
        missing.restart = RestartPolicy::Always;
        let runtime = m.open().await;
        runtime.create(missing.clone()).await.unwrap();
        runtime.start(&missing.uid).await.unwrap();
        let ended = m.ended(&runtime, &missing.uid).await;
        let (code, message) = failed(&ended);
        assert_eq!(code, None);
        assert!(
            message.starts_with("entrypoint \"no-such-program\" not found in /usr/local/sbin:"),
            "{message}"
        );

        let mut nothing = spec("b-0", "");
        nothing.entrypoint = vec![];
        let error = runtime.create(nothing).await.unwrap_err();
        assert!(matches!(error, PodError::NothingToRun { .. }) && !error.is_transient());
        let mut artifact = spec("c-0", "");
        artifact.artifact = "/nowhere/tool".into();
        let error = runtime.create(artifact).await.unwrap_err();
        assert_eq!(error.to_string(), "cannot read artifact /nowhere/tool");
    });
}

#[test]
fn an_artifact_is_the_entrypoint_or_is_found_by_name() {
    on_a_machine(async |m: &Machine| {
        let tool = m.data.path().join("tool");
        fs::write(&tool, "#!/bin/sh\necho tool \"$@\"\n").unwrap();
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o644)).unwrap();
        let runtime = m.open().await;
        for (name, entrypoint, output) in [
            ("a-0", vec![], "tool\n"),
            ("b-0", vec!["tool".to_owned(), "x y".to_owned()], "tool x y\n"),
        ] {
            let mut spec = spec(name, "");
            spec.artifact = format!("file://{}", tool.display());
            spec.entrypoint = entrypoint;
            runtime.create(spec.clone()).await.unwrap();
            runtime.start(&spec.uid).await.unwrap();
            m.ended(&runtime, &spec.uid).await;
            assert_eq!(m.log(&runtime, &spec.uid, LogOptions::default()).await, output);
        }
    });
}

#[test]
fn a_stop_is_gentle_first_and_sure_in_the_end() {
    on_a_machine(async |m: &Machine| {
        let runtime = m.open().await;
        let mut gentle =
            spec("a-0", "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done");
        gentle.restart = RestartPolicy::Always;
        let mut stubborn = spec(
            "b-0",
            "trap '' TERM; (trap '' TERM; sleep 1000) & echo up; while :; do sleep 1; done",
        );
        stubborn.grace = Duration::from_millis(300);
        for spec in [&gentle, &stubborn] {
            runtime.create(spec.clone()).await.unwrap();
            runtime.start(&spec.uid).await.unwrap();
            m.logged(&runtime, &spec.uid, "up\n").await;
            runtime.stop(&spec.uid).await.unwrap();
            let view = runtime.view(&spec.uid).unwrap().unwrap();
            assert_eq!(view.outcome(), Some(&Outcome::Stopped));
            assert_eq!(m.processes(), 0, "an answer only when the tree is gone");
        }
        let log = m.log(&runtime, &gentle.uid, LogOptions::default()).await;
        assert_eq!(log, "up\nbye\n");
    });
}

#[test]
fn two_pods_talk_over_the_bridge() {
    on_a_machine(async |m: &Machine| {
        let runtime = m.open().await;
        let server = spec("server-0", SERVER);
        let view = runtime.create(server.clone()).await.unwrap();
        runtime.start(&server.uid).await.unwrap();
        m.logged(&runtime, &server.uid, "listening\n").await;
        let mut client = spec("client-0", CLIENT);
        client.environment.push(("SERVER".into(), v4(&view).to_string()));
        let own = v4(&runtime.create(client.clone()).await.unwrap());
        runtime.start(&client.uid).await.unwrap();
        let ended = m.ended(&runtime, &client.uid).await;
        let log = m.log(&runtime, &client.uid, LogOptions::default()).await;
        assert_eq!(ended.outcome(), Some(&Outcome::Succeeded), "{log}");
        assert_eq!(log, format!("hello {own}\n"));
    });
}

fn ip(words: &str) -> String {
    let out = std::process::Command::new("ip").args(words.split(' ')).output().unwrap();
    assert!(out.status.success(), "ip {words}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn a_pod_with_an_earlier_ones_address_is_where_the_neighbours_look() {
    on_a_machine(async |m: &Machine| {
        let runtime = m.open().await;
        let first = runtime.create(spec("a-0", "true")).await.unwrap();
        let mac = |address: std::net::Ipv4Addr| {
            let [a, b, c, d] = address.octets();
            format!("02:72:{a:02x}:{b:02x}:{c:02x}:{d:02x}")
        };
        assert!(ip("link show rlark0").contains(&mac([10, 244, 0, 1].into())), "the bridge's own");
        let next = std::net::Ipv4Addr::from_bits(v4(&first).to_bits() + 1);
        // As a pod of an older agent left it.
        ip(&format!("neigh replace {next} lladdr 02:00:00:00:00:99 dev rlark0 nud stale"));
        let second = runtime.create(spec("b-0", "true")).await.unwrap();
        assert_eq!(v4(&second), next);
        let known = ip(&format!("neigh show {next} dev rlark0"));
        assert!(known.contains(&mac(next)), "{known}");
    });
}

const SERVER: &str = "exec perl -MIO::Socket::INET -e '$|=1; $s=IO::Socket::INET->new(Listen=>1,\
                      LocalPort=>7000,ReuseAddr=>1) or die; print \"listening\\n\"; $c=$s->accept; \
                      print $c \"hello \".$c->peerhost.\"\\n\"; close $c'";
const CLIENT: &str = "exec perl -MIO::Socket::INET -e '$c=IO::Socket::INET->new(PeerAddr=>\
                      $ENV{SERVER},PeerPort=>7000,Timeout=>5) or die \"no: $!\"; print <$c>'";

#[test]
fn pods_outlive_the_agent_and_are_taken_over() {
    on_a_machine(async |m: &Machine| {
        let spec = spec("a-0", "echo up; while [ ! -e stop ]; do sleep 0.05; done; exit 5");
        let first = m.open().await;
        first.create(spec.clone()).await.unwrap();
        first.start(&spec.uid).await.unwrap();
        let before = m.logged(&first, &spec.uid, "up\n").await;
        drop(first);

        let second = m.open().await;
        let found = second.list().unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found.first().unwrap().addresses, before.addresses);
        assert_eq!(found.first().unwrap().status.stage, Stage::Running);
        fs::write(m.work(&spec.uid).join("stop"), "").unwrap();
        let mut never = found.first().unwrap().clone();
        never.spec.restart = RestartPolicy::Never;
        let ended = m.ended(&second, &spec.uid).await;
        assert_eq!(failed(&ended).0, Some(5));
        second.remove(&spec.uid).await.unwrap();
        second.close().await.unwrap();
    });
}

#[test]
fn an_end_that_nobody_watched_is_known_afterwards() {
    on_a_machine(async |m: &Machine| {
        let spec = spec("a-0", "while [ ! -e stop ]; do sleep 0.05; done");
        let first = m.open().await;
        first.create(spec.clone()).await.unwrap();
        first.start(&spec.uid).await.unwrap();
        m.until(&first, &spec.uid, |v| v.status.stage == Stage::Running).await;
        drop(first);
        fs::write(m.work(&spec.uid).join("stop"), "").unwrap();
        let second = m.open().await;
        assert_eq!(m.ended(&second, &spec.uid).await.outcome(), Some(&Outcome::Succeeded));
    });
}

#[test]
fn a_killed_supervisor_takes_its_pod_along_and_the_policy_decides() {
    on_a_machine(async |m: &Machine| {
        let runtime = m.open().await;
        let mut once = spec("a-0", "echo up; sleep 1000");
        once.restart = RestartPolicy::Never;
        let mut again = spec("b-0", "echo up; sleep 1000");
        again.restart = RestartPolicy::OnFailure;
        for spec in [&once, &again] {
            runtime.create(spec.clone()).await.unwrap();
            runtime.start(&spec.uid).await.unwrap();
            m.logged(&runtime, &spec.uid, "up\n").await;
            m.kill_supervisor(&spec.uid);
        }
        let ended = m.ended(&runtime, &once.uid).await;
        assert_eq!(
            failed(&ended),
            (Some(137), "the pod's supervisor was lost; ended by signal 9".to_owned())
        );
        m.until(&runtime, &again.uid, |v| {
            v.status.attempt == 2 && v.status.stage == Stage::Running
        })
        .await;
        runtime.remove(&again.uid).await.unwrap();
    });
}

#[test]
fn nothing_is_left_behind() {
    on_a_machine(async |m: &Machine| {
        let before = m.traces();
        let runtime = m.open().await;
        let mut uids = vec![];
        for name in ["a-0", "b-0"] {
            let spec = spec(name, "mkdir -p x; sleep 1000 & sleep 1000");
            runtime.create(spec.clone()).await.unwrap();
            runtime.start(&spec.uid).await.unwrap();
            uids.push(spec.uid);
        }
        assert_ne!(m.traces(), before);
        for uid in uids {
            runtime.remove(&uid).await.unwrap();
            runtime.remove(&uid).await.unwrap();
        }
        runtime.close().await.unwrap();
        assert_eq!(m.traces(), before);
        assert_eq!(m.processes(), 0);
    });
}

#[test]
fn half_made_pods_of_a_predecessor_are_removed() {
    on_a_machine(async |m: &Machine| {
        let first = m.open().await;
        let spec = spec("a-0", "sleep 1");
        first.create(spec.clone()).await.unwrap();
        drop(first);
        let second = m.open().await;
        assert_eq!(second.list().unwrap(), vec![]);
        second.close().await.unwrap();
        assert_eq!(m.interfaces(), vec!["lo"]);
    });
}

#[test]
fn a_follower_gets_everything_until_the_end() {
    on_a_machine(async |m: &Machine| {
        let runtime = m.open().await;
        let spec = spec("a-0", "for i in 1 2 3; do echo $i; sleep 0.1; done; echo end >&2");
        runtime.create(spec.clone()).await.unwrap();
        runtime.start(&spec.uid).await.unwrap();
        let follow = LogOptions { follow: true, ..LogOptions::default() };
        assert_eq!(m.log(&runtime, &spec.uid, follow).await, "1\n2\n3\nend\n");
    });
}

#[test]
fn a_second_agent_and_a_path_outside_cgroup_v2_are_refused() {
    on_a_machine(async |m: &Machine| {
        let _first = m.open().await;
        let error = m.try_open().await.unwrap_err();
        assert!(matches!(error, SetupError::InUse { .. }), "{error}");
        let mut config = m.config();
        config.data_dir = m.data.path().join("other");
        config.cgroup = Some("/tmp".into());
        let error = agent_workload::raw::RawRuntime::open(config).await.unwrap_err();
        assert_eq!(error.to_string(), "/tmp is not inside a cgroup v2 hierarchy");
    });
}
