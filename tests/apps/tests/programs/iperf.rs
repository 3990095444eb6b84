//! iperf3: TCP in both directions, many flows, both directions at once, and UDP.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use test_apps::{
    packages::Kind,
    report,
    sites::{Site, Sites, between_sites},
};

use crate::LIMIT;

const PORT: &str = "5201";
const SECONDS: &str = "4";

#[test]
fn iperf3_measures_every_direction_without_an_error() -> Result<()> {
    between_sites(&[("server", Site::Cloud), ("client", Site::Edge)], |s| {
        let iperf = s.packages.program("iperf3")?;
        let words = [&*iperf, "--server", "--forceflush", "--port", PORT];
        let mut server = s.start("iperf3", s.command("server", Kind::Debian, words)?)?;
        server.says("Server listening", LIMIT)?;
        s.reachable("client", &s.host("server"), PORT, &mut server)?;
        let up = tcp(&client(s, &iperf, &[])?, &["sum_received"])?;
        let down = tcp(&client(s, &iperf, &["--reverse"])?, &["sum_received"])?;
        let eight = tcp(&client(s, &iperf, &["--parallel", "8"])?, &["sum_received"])?;
        let eight_down = ["--parallel", "8", "--reverse"];
        let eight_down = tcp(&client(s, &iperf, &eight_down)?, &["sum_received"])?;
        let both = client(s, &iperf, &["--bidir"])?;
        let both = tcp(&both, &["sum_received", "sum_received_bidir_reverse"])?;
        let words = ["Gbit/s up", "down", "up on 8 flows", "down on 8 flows", "up while", "down"];
        let figures = [up, down, eight, eight_down, both].concat();
        let figures = figures.iter().zip(words).map(|(f, w)| format!("{:.2} {w}", f / 1e9));
        report("iperf3", &figures.collect::<Vec<_>>().join(", "));
        for direction in [&[][..], &["--reverse"]] {
            // At the rate that iperf3 chooses, and at one that a video has.
            datagrams(&client(s, &iperf, &[&["--udp"], direction].concat())?, 1e6)?;
            let video = [&["--udp", "--bitrate", "50M"], direction].concat();
            datagrams(&client(s, &iperf, &video)?, 50e6)?;
        }
        server.running()
    })
}

fn client(s: &Sites, iperf: &str, options: &[&str]) -> Result<Value> {
    let host = s.host("server");
    let words = [iperf, "--client", &host, "--port", PORT, "--time", SECONDS, "--json"];
    let c = s.command("client", Kind::Debian, words.into_iter().chain(options.iter().copied()))?;
    let said = s.start("iperf3-client", c)?.finish(LIMIT);
    let said = said.with_context(|| format!("iperf3 {}", options.join(" ")))?;
    let answer: Value = serde_json::from_str(&said).with_context(|| said.clone())?;
    ensure!(answer.get("error").is_none(), "iperf3 {}: {said}", options.join(" "));
    Ok(answer)
}

/// Bits per second of these sums; a flow that stalls has next to none.
fn tcp(answer: &Value, sums: &[&str]) -> Result<Vec<f64>> {
    let rate = |sum: &&str| {
        let rate = number(answer, &format!("/end/{sum}/bits_per_second"))?;
        ensure!(rate > 50e6, "{sum}: {rate} bit/s");
        Ok(rate)
    };
    let streams = answer.pointer("/end/streams").and_then(Value::as_array).context("streams")?;
    for stream in streams {
        let bytes = number(stream, "/receiver/bytes")?;
        ensure!(bytes > 0.0, "a flow carried nothing: {stream}");
    }
    sums.iter().map(rate).collect()
}

fn datagrams(answer: &Value, wanted: f64) -> Result<()> {
    let sent = number(answer, "/end/sum/packets")?;
    let (lost, jitter) =
        (number(answer, "/end/sum/lost_packets")?, number(answer, "/end/sum/jitter_ms")?);
    let rate = number(answer, "/end/sum/bits_per_second")?;
    let size = number(answer, "/start/test_start/blksize")?;
    let reverse = number(answer, "/start/test_start/reverse")? > 0.0;
    report(
        "iperf3",
        &format!(
            "UDP {}: {:.1} Mbit/s in datagrams of {size}, {lost} of {sent} lost, jitter {jitter:.2} ms",
            if reverse { "down" } else { "up" },
            rate / 1e6
        ),
    );
    ensure!(rate > wanted * 0.8, "{rate} bit/s instead of {wanted}");
    // Not a promise of UDP, but a video would show more.
    ensure!(sent > 0.0 && lost <= sent * 0.1, "{lost} of {sent} datagrams were lost");
    Ok(())
}

fn number(v: &Value, pointer: &str) -> Result<f64> {
    v.pointer(pointer).and_then(Value::as_f64).with_context(|| format!("no {pointer} in {v}"))
}
