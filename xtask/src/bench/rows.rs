//! Everything measured, by path: what the charts show and what the ratios are made of.

use std::collections::BTreeMap;

use serde::Serialize;

/// One path under one condition.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    /// Of the line, such as `50 ms, 1000 Mbit/s, 0 % loss`; empty without one.
    pub(crate) line: String,
    pub(crate) path: String,
    /// The path without us that it is paired with; itself for such a path.
    pub(crate) raw: String,
    /// By what was measured; its unit ends the name.
    pub(crate) values: BTreeMap<String, f64>,
}

#[derive(Debug, Default)]
pub(super) struct Rows(Vec<Row>);

impl Rows {
    /// Gives a path its place, before anything of it is known.
    pub(super) fn open(&mut self, line: &str, (path, raw): (&str, &str)) -> usize {
        let found = self.0.iter().position(|r| r.line == line && r.path == path);
        found.unwrap_or_else(|| {
            let values = BTreeMap::new();
            self.0.push(Row { line: line.into(), path: path.into(), raw: raw.into(), values });
            self.0.len() - 1
        })
    }

    /// Adds a value to the row of its line and path.
    pub(super) fn put(&mut self, line: &str, path: (&str, &str), what: &str, value: f64) {
        let at = self.open(line, path);
        if let Some(row) = self.0.get_mut(at) {
            row.values.insert(what.to_owned(), value);
        }
    }

    pub(super) fn get(&self, line: &str, path: &str, what: &str) -> Option<f64> {
        let row = self.0.iter().find(|r| r.line == line && r.path == path)?;
        row.values.get(what).copied()
    }

    /// The rows of a line, in the order they were found.
    pub(super) fn of(&self, line: &str) -> impl Iterator<Item = &Row> {
        self.0.iter().filter(move |r| r.line == line)
    }

    /// Those of which something is known.
    pub(super) fn into_inner(self) -> Vec<Row> {
        self.0.into_iter().filter(|r| !r.values.is_empty()).collect()
    }

    /// The table of ratios: each value, and how many times its raw path's it is.
    pub(super) fn print(&self) {
        let known = self.0.iter().filter(|r| !r.values.is_empty());
        let mut lines: Vec<&str> = known.map(|r| r.line.as_str()).collect();
        lines.dedup();
        for line in lines {
            let named = if line.is_empty() { "no delay" } else { line };
            println!("\n{named}");
            println!("{:<26} {:<26} {:>12} {:>12} {:>8}", "path", "what", "value", "raw", "times");
            for row in self.of(line) {
                self.print_row(row);
            }
        }
    }

    fn print_row(&self, row: &Row) {
        for (what, value) in &row.values {
            let raw = self.get(&row.line, &row.raw, what).filter(|_| row.raw != row.path);
            let beside = raw.map_or(String::new(), |r| format!("{r:.3}"));
            let times = raw.map_or(String::new(), |r| format!("{:.2}", value / r));
            println!("{:<26} {what:<26} {value:>12.3} {beside:>12} {times:>8}", row.path);
        }
    }
}
