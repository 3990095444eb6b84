//! Charts as SVG: a group of bars for each thing measured, a bar for each path. Every group has a scale of its own
//! that begins at zero, and every bar says its number.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::{
    drawing::{DrawingArea, IntoDrawingArea as _},
    element::{Rectangle, Text},
    prelude::SVGBackend,
    style::{Color as _, FontFamily, FontStyle, IntoFont as _, RGBColor, ShapeStyle, TextStyle},
};

use super::{distance, rows::Rows};

const WIDTH: i32 = 860;
const LABELS: i32 = 220;
const NUMBERS: i32 = 180;
const BAR: i32 = 18;
const GROUP: i32 = 34;
const TITLE: i32 = 40;

/// A bar.
#[derive(Debug)]
struct Bar {
    path: String,
    value: f64,
    said: String,
}

/// Bars that are held against each other.
#[derive(Debug)]
struct Group {
    title: String,
    bars: Vec<Bar>,
}

pub(super) fn draw(dir: &Path, rows: &Rows) -> Result<()> {
    std::fs::create_dir_all(dir)?;
    let far = distance::FAR.name();
    for (file, title, groups) in [
        ("latency.svg", "Latency, no delay, μs (less is better)".to_owned(), latency(rows, "")),
        ("throughput.svg", "Throughput, Gbit/s (more is better)".into(), throughput(rows, "")),
        ("cost.svg", "Processor time, CPU-seconds per GiB (less is better)".into(), cost(rows)),
        ("distance.latency.svg", format!("Latency at {far}, μs"), latency(rows, &far)),
        ("distance.throughput.svg", "Over distance, Mbit/s".into(), lines(rows)),
    ] {
        let groups: Vec<Group> = groups.into_iter().filter(|g| !g.bars.is_empty()).collect();
        if !groups.is_empty() {
            let drawn = chart(&dir.join(file), &title, &groups);
            drawn.map_err(|e| anyhow!("{file}: {e}"))?;
        }
    }
    Ok(())
}

fn short(v: f64) -> String {
    match v {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

/// A group of one value of all rows of a line.
fn group(rows: &Rows, line: &str, title: &str, what: &str, tail: Option<&str>) -> Group {
    let bar = |r: &super::Row| {
        let value = r.values.get(what).copied().filter(|v| v.is_finite())?;
        let tail = tail.and_then(|t| r.values.get(t));
        let tail = tail.map_or(String::new(), |t| format!("  (p99 {})", short(*t)));
        Some(Bar { path: r.path.clone(), value, said: format!("{}{tail}", short(value)) })
    };
    Group { title: title.to_owned(), bars: rows.of(line).filter_map(bar).collect() }
}

fn latency(rows: &Rows, line: &str) -> Vec<Group> {
    let kinds = [
        ("connect()", "connect"),
        ("connect() and the first byte there and back", "first_byte"),
        ("a byte there and back on an open flow", "request_response"),
        ("a datagram there and back", "datagram"),
    ];
    let of = |(title, what): (&str, &str)| {
        let (p50, p99) = (format!("{what}.p50_us"), format!("{what}.p99_us"));
        group(rows, line, title, &p50, Some(&p99))
    };
    kinds.into_iter().map(of).collect()
}

fn throughput(rows: &Rows, line: &str) -> Vec<Group> {
    ["1 flow up", "1 flow down", "64 flows up", "64 flows down"]
        .into_iter()
        .map(|kind| group(rows, line, kind, &format!("{kind}, Gbit/s"), None))
        .collect()
}

/// For each path that needs processes of its own, what each of them takes.
fn cost(rows: &Rows) -> Vec<Group> {
    let of = |r: &super::Row| {
        let bar = |(what, value): (&String, &f64)| {
            let process = what.strip_prefix("CPU of ")?.strip_suffix(", s/GiB")?;
            Some(Bar { path: process.to_owned(), value: *value, said: short(*value) })
        };
        Group { title: r.path.clone(), bars: r.values.iter().filter_map(bar).collect() }
    };
    rows.of("").map(of).collect()
}

fn lines(rows: &Rows) -> Vec<Group> {
    let of = |s: distance::Setting| {
        let line = s.name();
        group(rows, &line, &line, "1 flow up, Mbit/s", None)
    };
    distance::settings().into_iter().map(of).collect()
}

fn colour(path: &str) -> RGBColor {
    match path {
        p if p.starts_with("raw") => RGBColor(140, 140, 140),
        p if p.starts_with("RLark direct") => RGBColor(0, 122, 94),
        p if p.starts_with("RLark") || p.starts_with("rlark") => RGBColor(0, 92, 170),
        _ => RGBColor(214, 126, 20),
    }
}

/// Without the font library: a reader's own sans-serif, and sizes that leave room for any.
fn font(size: i32, style: FontStyle) -> TextStyle<'static> {
    let f = (FontFamily::SansSerif, f64::from(size), style).into_font();
    f.color(&RGBColor(40, 40, 40))
}

fn chart(
    file: &Path,
    title: &str,
    groups: &[Group],
) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let bars: usize = groups.iter().map(|g| g.bars.len()).sum();
    let height = TITLE + GROUP * i32::try_from(groups.len())? + BAR * i32::try_from(bars)? + 10;
    let size = (u32::try_from(WIDTH)?, u32::try_from(height)?);
    let area = SVGBackend::new(file, size).into_drawing_area();
    area.fill(&RGBColor(255, 255, 255))?;
    area.draw(&Text::new(title.to_owned(), (12, 12), font(18, FontStyle::Bold)))?;
    let mut y = TITLE;
    for g in groups {
        area.draw(&Text::new(g.title.clone(), (12, y + 10), font(14, FontStyle::Bold)))?;
        y += GROUP;
        let most = g.bars.iter().map(|b| b.value).fold(f64::MIN_POSITIVE, f64::max);
        for b in &g.bars {
            one(&area, b, y, most)?;
            y += BAR;
        }
    }
    area.present()?;
    Ok(())
}

fn one(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    b: &Bar,
    y: i32,
    most: f64,
) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let room = f64::from(WIDTH - LABELS - NUMBERS);
    #[expect(clippy::cast_possible_truncation, reason = "a share of a few hundred pixels")]
    let long = (b.value / most * room).round().max(1.0) as i32;
    let style: ShapeStyle = colour(&b.path).filled();
    area.draw(&Text::new(b.path.clone(), (24, y + 3), font(12, FontStyle::Normal)))?;
    area.draw(&Rectangle::new([(LABELS, y + 2), (LABELS + long, y + BAR - 2)], style))?;
    let at = (LABELS + long + 6, y + 3);
    area.draw(&Text::new(b.said.clone(), at, font(12, FontStyle::Normal)))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_shows_every_path_with_its_number() {
        let mut rows = Rows::default();
        rows.put("", ("raw", "raw"), "connect.p50_us", 25.0);
        rows.put("", ("raw", "raw"), "connect.p99_us", 140.0);
        rows.put("", ("RLark direct", "raw"), "connect.p50_us", 27.5);
        let dir = std::env::temp_dir().join(format!("rlark-chart-{}", std::process::id()));
        draw(&dir, &rows).unwrap();
        let text = std::fs::read_to_string(dir.join("latency.svg")).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        for part in ["RLark direct", "27.5", "25.0  (p99 140)"] {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
        assert_eq!(text.matches("first byte").count(), 0, "a group without bars is not drawn");
    }
}
