//! `probe/load`: load whose bytes are known, and what became of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    path::PathBuf,
    process::{Child, Command},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, ensure};
use test_kit::{pod::RunningPod, product::Product, wait::eventually};

use crate::{PYTHON, probe_directory};

const PORT: &str = "7000";
const LIMIT: Duration = Duration::from_secs(30);

/// Seconds since 1970, as the load says them.
pub fn now() -> Result<f64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64())
}

/// One line of the load: `AT KIND N WORD VALUE`.
#[derive(Clone, Debug)]
pub struct Event {
    pub at: f64,
    /// Kind and number.
    pub flow: String,
    pub word: String,
    pub value: String,
}

impl Event {
    fn read(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let at = words.next()?.parse().ok()?;
        let flow = format!("{} {}", words.next()?, words.next()?.parse::<u32>().ok()?);
        let word = words.next()?.to_owned();
        Some(Self { at, flow, word, value: words.collect::<Vec<_>>().join(" ") })
    }

    fn moved(&self) -> bool {
        self.word == "AT" || self.word == "GAP"
    }

    /// The number that a `GAP` or the end of a `TRIED` says.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.value.rsplit(' ').next().and_then(|w| w.parse().ok()).unwrap_or(f64::NAN)
    }
}

/// The serving half, in a pod, until dropped.
#[derive(Debug)]
pub struct Server(Child);

impl Server {
    pub fn start(p: &Product, pod: &RunningPod) -> Result<Self> {
        let script = probe_directory(p, "load")?;
        let (child, log) = start(p, "serve", pod.command([PYTHON, &script, "serve", PORT]))?;
        let server = Self(child);
        said(&log, "serving")?;
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        end(&mut self.0);
    }
}

/// The running half, in another pod. Without [`Load::finish`] it is cut off when dropped.
#[derive(Debug)]
pub struct Load {
    child: Child,
    log: PathBuf,
    stop: PathBuf,
}

impl Load {
    /// `kinds` as `ping:2 stream`; `name` is for its files.
    pub fn start(
        p: &Product,
        name: &str,
        pod: &RunningPod,
        host: &str,
        kinds: &str,
    ) -> Result<Self> {
        let script = probe_directory(p, "load")?;
        let stop = PathBuf::from(&script).with_file_name(format!("stop-{name}"));
        let at = stop.display().to_string();
        let words = [PYTHON, &script, "run", host, PORT, &at].into_iter().chain(kinds.split(' '));
        let (child, log) = start(p, name, pod.command(words))?;
        let load = Self { child, log, stop };
        let mut flows = 0;
        for kind in kinds.split(' ').filter(|k| !k.starts_with("idle")) {
            flows += kind.split_once(':').map_or(Ok(1), |(_, n)| n.parse())?;
        }
        eventually("all flows to move", LIMIT, || {
            let events = load.events()?;
            let moved: BTreeSet<_> = events.iter().filter(|e| e.moved()).map(|e| &e.flow).collect();
            Ok((moved.len() == flows).then_some(()))
        })
        .with_context(|| load.text())?;
        Ok(load)
    }

    /// Everything it has said.
    #[must_use]
    pub fn text(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub fn events(&self) -> Result<Vec<Event>> {
        Ok(fs::read_to_string(&self.log)?.lines().filter_map(Event::read).collect())
    }

    /// Lets every flow say its last word; an error unless all that was sent came, each byte once.
    pub fn finish(self) -> Result<Vec<Event>> {
        let events = self.stop()?;
        let strange: Vec<_> =
            events.iter().filter(|e| e.word == "BROKEN" || e.word == "WRONG").collect();
        ensure!(strange.is_empty(), "{strange:#?}");
        Ok(events)
    }

    /// As [`Self::finish`], for flows that may have ended.
    pub fn stop(self) -> Result<Vec<Event>> {
        File::create(&self.stop)?;
        eventually("the load to finish", LIMIT, || {
            let all = self.text();
            ensure!(!all.contains("STUCK"), "flows are stuck:\n{all}");
            Ok(all.contains("finished").then_some(()))
        })?;
        self.events()
    }

    /// Waits until each flow of these kinds has moved after the time `since`; says how long after it
    /// the last one did.
    pub fn resumed(&self, kinds: &[&str], since: f64, limit: Duration) -> Result<f64> {
        let mine = |e: &Event| kinds.contains(&e.flow.split(' ').next().unwrap_or_default());
        eventually("flows to move again", limit, || {
            let events = self.events()?;
            let end = events.iter().find(|e| mine(e) && ["BROKEN", "WRONG"].contains(&&*e.word));
            ensure!(end.is_none(), "{end:?}");
            let flows: BTreeSet<_> = events.iter().filter(|e| mine(e)).map(|e| &e.flow).collect();
            let mut last: f64 = 0.0;
            for flow in flows {
                let mut after = events.iter().filter(|e| e.flow == *flow && e.at > since);
                let Some(next) = after.find(|e| e.moved()) else { return Ok(None) };
                last = last.max(next.at - since);
            }
            Ok(Some(last))
        })
        .with_context(|| self.text())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// How much all flows of a kind moved, as they last said.
#[must_use]
pub fn moved(events: &[Event], kind: &str) -> f64 {
    let said = events.iter().filter(|e| e.word == "AT" && e.flow.starts_with(kind));
    let last: BTreeMap<&str, f64> =
        said.filter_map(|e| Some((e.flow.as_str(), e.value.parse().ok()?))).collect();
    last.values().sum()
}

/// The longest pause of the given flows (all of a kind) between two times.
#[must_use]
pub fn longest_gap(events: &[Event], kind: &str, from: f64, to: f64) -> f64 {
    let gaps = events.iter().filter(|e| e.word == "GAP" && e.flow.starts_with(kind));
    gaps.filter(|e| e.at >= from && e.at <= to).map(Event::seconds).fold(0.0, f64::max)
}

fn start(p: &Product, name: &str, mut c: Command) -> Result<(Child, PathBuf)> {
    let log = p.lab.dir().join(format!("load-{name}.log"));
    let file = File::create(&log)?;
    let child = c.stdout(file.try_clone()?).stderr(file).spawn()?;
    Ok((child, log))
}

fn said(log: &PathBuf, word: &str) -> Result<()> {
    eventually(word, LIMIT, || Ok(fs::read_to_string(log)?.contains(word).then_some(())))
}

fn end(child: &mut Child) {
    // Its end, or that it has ended, is all that is wanted.
    let _ended_already = child.kill();
    let _reaped = child.wait();
}
