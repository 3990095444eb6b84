//! `rlark events`: what happens on this machine's node, one line each, until interrupted.

use std::{io::Write as _, path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Result, bail};
use clap::{Args as ClapArgs, ValueEnum};
use control_api::{
    attach::SOCKET,
    events::{self, CarrierChange, Event, Refused, Refuser, What},
    session::Flow,
};
use http_body_util::BodyExt as _;

use crate::{node, units};

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// Socket of this machine's rlark-node; only root may read it.
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    socket: PathBuf,
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Format::Text)]
    output: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    /// One JSON object a line, as the node tells it.
    Json,
}

pub(crate) async fn run(args: Args) -> Result<ExitCode> {
    let mut answer = node::get(&args.socket, events::PATH).await?;
    let mut rest = Vec::new();
    while let Some(frame) = answer.body.frame().await {
        let Ok(bytes) = frame?.into_data() else { continue };
        rest.extend(bytes);
        let Some(end) = rest.iter().rposition(|b| *b == b'\n') else { continue };
        let later = rest.split_off(end + 1);
        let lines = std::mem::replace(&mut rest, later);
        if let Err(e) = write(&lines, args.output) {
            // Whoever reads us has read enough.
            return match e.downcast_ref::<std::io::Error>().map(std::io::Error::kind) {
                Some(std::io::ErrorKind::BrokenPipe) => Ok(ExitCode::SUCCESS),
                _ => Err(e),
            };
        }
    }
    bail!("rlark-node ended the stream: it stops")
}

fn write(lines: &[u8], format: Format) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if format == Format::Json {
        out.write_all(lines)?;
    } else {
        for line in lines.split(|b| *b == b'\n').filter(|l| !l.is_empty()) {
            let text = match serde_json::from_slice::<Event>(line) {
                Ok(event) => text(&event),
                // A newer node may tell what we do not know.
                Err(_) => String::from_utf8_lossy(line).into_owned(),
            };
            writeln!(out, "{text}")?;
        }
    }
    Ok(out.flush()?)
}

/// `12:34:56.789 closed   udp b 10.0.0.2:5 -> a 10.0.0.1:7000 …`; the time is UTC.
fn text(event: &Event) -> String {
    let (verb, rest) = match &event.what {
        What::Listening { node } => ("listening", format!("to node {node}")),
        What::Opened(f) => ("opened", format!("{} by {}", ends(f), way(f))),
        What::Closed(f) => ("closed", format!("{} {}", ends(f), sum(f))),
        What::Refused(r) => ("refused", refusal(r)),
        What::CarrierUp(c) => ("carrier", format!("{} is up", carrier(c))),
        What::CarrierDown(c) => ("carrier", format!("{} is gone: {}", carrier(c), c.why)),
        What::Lost { events } => ("lost", format!("{events} events were not told")),
    };
    format!("{} {verb:<9} {rest}", time(event.at_ms))
}

fn time(ms: u64) -> String {
    let (s, ms) = (ms / 1000 % 86_400, ms % 1000);
    format!("{:02}:{:02}:{:02}.{ms:03}", s / 3600, s / 60 % 60, s % 60)
}

fn ends(f: &Flow) -> String {
    format!("{} {} {} -> {} {}", f.protocol.as_str(), f.from_pod, f.from, f.to_pod, f.to)
}

fn way(f: &Flow) -> &str {
    if f.carrier == "-" { "the direct way" } else { &f.carrier }
}

fn sum(f: &Flow) -> String {
    let age = Duration::from_millis(f.age_ms);
    let age = if age < Duration::from_secs(10) {
        format!("{}.{:03}s", age.as_secs(), age.subsec_millis())
    } else {
        units::age(age)
    };
    let mut sum =
        format!("after {age}, {} out, {} in", units::bytes(f.bytes_out), units::bytes(f.bytes_in));
    if !f.reason.is_empty() {
        sum.push_str(&format!(" ({})", f.reason));
    }
    sum
}

fn refusal(r: &Refused) -> String {
    let from = match r.from.port() {
        0 => r.from.ip().to_string(),
        _ => r.from.to_string(),
    };
    let ends = format!("{} {} {from} -> {} {}", r.protocol.as_str(), r.from_pod, r.to_pod, r.to);
    let by = match r.by {
        Refuser::Kernel => "kernel",
        Refuser::Node => "node",
        Refuser::Peer => "peer",
    };
    let mut text = format!("{ends} by the {by}: {}", r.reason);
    if let Some(errno) = r.errno {
        text.push_str(&format!(" ({})", name_of(errno)));
    }
    if let Some(pid) = r.pid {
        text.push_str(&format!(", asked by process {pid}"));
    }
    text
}

fn name_of(errno: u32) -> String {
    match errno {
        1 => "EPERM".to_owned(),
        13 => "EACCES".to_owned(),
        99 => "EADDRNOTAVAIL".to_owned(),
        111 => "ECONNREFUSED".to_owned(),
        113 => "EHOSTUNREACH".to_owned(),
        other => format!("errno {other}"),
    }
}

fn carrier(c: &CarrierChange) -> String {
    format!("{} of Domain {}", c.carrier, c.domain)
}

#[cfg(test)]
mod tests {
    use control_api::session::Protocol;

    use super::*;

    #[test]
    fn a_refusal_reads_as_a_sentence() {
        let what = What::Refused(Refused {
            domain: "d".parse().unwrap(),
            protocol: Protocol::Tcp,
            from_pod: "b".into(),
            from: "10.0.0.2:0".parse().unwrap(),
            to_pod: "-".into(),
            to: "10.0.0.9:80".parse().unwrap(),
            reason: "unknown_vip".into(),
            errno: Some(113),
            by: Refuser::Kernel,
            pid: Some(42),
        });
        let at_ms = 45_296_007;
        let want = "12:34:56.007 refused   tcp b 10.0.0.2 -> - 10.0.0.9:80 by the kernel: unknown_vip \
                    (EHOSTUNREACH), asked by process 42";
        assert_eq!(text(&Event { at_ms, what }), want);
    }
}
