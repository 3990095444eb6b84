//! Files by OpenSSH (sftp) and by rsync.

use anyhow::{Result, ensure};
use test_apps::{
    packages::Kind,
    report,
    sites::{Site, Sites, between_sites},
};
use test_kit::command::{cmd, output, stdout};

use crate::LIMIT;

const SSH: &str = "2222";
const RSYNC: &str = "8730";
const LARGE: &str = "100000000";

#[test]
fn files_cross_by_sftp_and_rsync() -> Result<()> {
    between_sites(&[("server", Site::Cloud), ("client", Site::Edge)], |s| {
        // A large file and many small ones.
        let script = "mkdir /tmp/from && cd /tmp/from && head -c \"$0\" /dev/urandom >large && for i in $(seq 500); do head -c $((i * 37)) large >small-$i; done";
        run(s, "client", &["sh", "-c", script, LARGE])?;
        run(s, "server", &["mkdir", "/tmp/tree"])?;
        let wanted = run(s, "client", &["sh", "-c", SUMS, "/tmp/from"])?;
        ensure!(wanted.lines().count() == 501, "{wanted}");
        let ssh = by_sftp(s)?;
        let rsync = by_rsync(s)?;
        let got = run(s, "server", &["sh", "-c", SUMS, "/tmp/tree"])?;
        ensure!(got == wanted, "rsync wrote other files than it read");
        report(
            "files",
            &format!(
                "100 MB by sftp there and back {ssh:.2} s, with 500 small files by rsync {rsync:.2} s"
            ),
        );
        Ok(())
    })
}

const SUMS: &str = "cd \"$0\" && sha256sum *";

fn run(s: &Sites, pod: &str, words: &[&str]) -> Result<String> {
    stdout(&mut s.command(pod, Kind::Debian, words.iter().copied())?)
}

fn by_sftp(s: &Sites) -> Result<f64> {
    let program = |name: &str| s.packages.program(name);
    let (ssh, sftp, sshd) = (program("ssh")?, program("sftp")?, program("sshd")?);
    let keygen = program("ssh-keygen")?;
    let key = s.product.lab.dir().join("user");
    let quiet = ["-q", "-t", "ed25519", "-N", "", "-f"];
    let mut c = cmd(&keygen, quiet);
    output(c.arg(&key).envs(s.packages.environment(Kind::Debian)))?;
    let public = s.product.lab.share(&key.with_extension("pub"))?.display().to_string();
    let key = s.product.lab.share(&key)?.display().to_string();
    let at_server = |words: &[&str]| s.unprivileged("server", words);
    output(&mut at_server(&[&[&*keygen], &quiet[..], &["/tmp/hostkey"]].concat())?)?;
    output(&mut at_server(&["cp", &public, "/tmp/authorized_keys"])?)?;
    let config = s.probe("sshd_config")?;
    let mut server = s.start("sshd", at_server(&[&*sshd, "-D", "-e", "-f", &config])?)?;
    let host = s.host("server");
    s.reachable("client", &host, SSH, &mut server)?;
    // Nobody has seen the host's key before: it is of this run.
    let script = "printf 'put /tmp/from/large /tmp/there\\nget /tmp/there /tmp/back\\n' | \"$0\" -S \"$1\" -b - -P \"$2\" -i \"$3\" -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null \"$4\"";
    let to = format!("daemon@{host}");
    let c = s.command("client", Kind::Debian, ["sh", "-c", script, &sftp, &ssh, SSH, &key, &to])?;
    let mut client = s.start("sftp", c)?;
    client.finish(LIMIT)?;
    let took = client.seconds();
    run(s, "client", &["cmp", "/tmp/from/large", "/tmp/back"])?;
    server.running()?;
    Ok(took)
}

fn by_rsync(s: &Sites) -> Result<f64> {
    let rsync = s.packages.program("rsync")?;
    let config = format!("--config={}", s.probe("rsyncd.conf")?);
    let port = format!("--port={RSYNC}");
    let words = [&*rsync, "--daemon", "--no-detach", "--log-file=/dev/stderr", &port, &config];
    let mut server = s.start("rsyncd", s.command("server", Kind::Debian, words)?)?;
    let host = s.host("server");
    s.reachable("client", &host, RSYNC, &mut server)?;
    let to = format!("rsync://{host}:{RSYNC}/tree/");
    let words = [&*rsync, "--archive", "/tmp/from/", &to];
    let mut client = s.start("rsync", s.command("client", Kind::Debian, words)?)?;
    client.finish(LIMIT)?;
    let took = client.seconds();
    server.running()?;
    Ok(took)
}
