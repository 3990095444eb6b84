//! ROS 1: a master and a talker at the robot's site, a listener at the other. ROS announces each node by a name that
//! the others must resolve, and connects back.

use anyhow::{Context as _, Result};
use serde_json::Value;
use test_apps::{
    packages::Kind,
    program::Program,
    report,
    sites::{Site, Sites, between_sites},
};
use test_kit::product::results;

use crate::LIMIT;

const PORT: &str = "11311";
const PYTHON: &str = "/usr/bin/python3";

#[test]
fn a_ros_listener_hears_every_message_of_a_far_talker() -> Result<()> {
    let pods = [("master", Site::Edge), ("talker", Site::Edge), ("listener", Site::Cloud)];
    between_sites(&pods, |s| {
        let rosmaster = s.packages.program("rosmaster")?;
        let script = s.probe("ros_chat.py")?;
        let mut master = node(s, "master", &[PYTHON, &rosmaster, "--core", "-p", PORT])?;
        s.reachable("talker", &s.host("master"), PORT, &mut master)?;
        s.reachable("listener", &s.host("master"), PORT, &mut master)?;
        let mut talker = node(s, "talker", &[PYTHON, &script, "talk"])?;
        let said = node(s, "listener", &[PYTHON, &script, "listen", "2000"])?.finish(LIMIT)?;
        let all = results(&said)?;
        let result = all.first().context("no result")?;
        let figure = |name: &str| result.get(name).and_then(Value::as_f64).context("no figure");
        report(
            "ROS 1",
            &format!(
                "{} numbers in a row and {} messages of 4 MB heard at the other site in {:.1} s",
                figure("numbers")?,
                figure("images")?,
                figure("seconds")?
            ),
        );
        talker.running()?;
        master.running()
    })
}

fn node(s: &Sites, pod: &str, words: &[&str]) -> Result<Program> {
    let mut c = s.command(pod, Kind::Debian, words.iter().copied())?;
    c.env("ROS_MASTER_URI", format!("http://{}:{PORT}", s.host("master")));
    c.env("ROS_HOSTNAME", s.host(pod)).env("ROS_ETC_DIR", s.packages.file("etc/ros"));
    s.start(&format!("ros-{pod}"), c)
}
