//! Numbers as people read them. Pure.

use std::time::Duration;

/// `17 B`, `1.5 KiB`, `64.0 MiB`.
pub(crate) fn bytes(n: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    // Tenths in integers: exact, and large counters do not lose precision.
    let (mut tenths, mut unit) = (n.saturating_mul(10) / 1024, UNITS[0]);
    for next in UNITS.into_iter().skip(1) {
        if tenths < 10_240 {
            break;
        }
        (tenths, unit) = (tenths / 1024, next);
    }
    format!("{}.{} {unit}", tenths / 10, tenths % 10)
}

/// `85 µs`, `20.1 ms`.
pub(crate) fn rtt(us: u64) -> String {
    if us < 1000 {
        return format!("{us} µs");
    }
    format!("{}.{} ms", us / 1000, us % 1000 / 100)
}

/// `0s`, `12s`, `3m5s`, `2h10m`, `4d3h`.
pub(crate) fn age(age: Duration) -> String {
    let s = age.as_secs();
    match s {
        0..60 => format!("{s}s"),
        60..3600 => format!("{}m{}s", s / 60, s % 60),
        3600..86_400 => format!("{}h{}m", s / 3600, s % 3600 / 60),
        _ => format!("{}d{}h", s / 86_400, s % 86_400 / 3600),
    }
}

/// Columns padded to their widest cell, two spaces between, no spaces at the end of a line.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = Vec::new();
    for row in rows {
        for (i, cell) in row.iter().enumerate() {
            let width = cell.chars().count();
            match widths.get_mut(i) {
                Some(w) => *w = width.max(*w),
                None => widths.push(width),
            }
        }
    }
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, &w)| format!("{cell:<w$}"));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_humane() {
        assert_eq!(bytes(17), "17 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(64 << 20), "64.0 MiB");
        assert_eq!(rtt(85), "85 µs");
        assert_eq!(rtt(20_140), "20.1 ms");
        assert_eq!(age(Duration::from_secs(185)), "3m5s");
    }

    #[test]
    fn columns_line_up() {
        let rows = [vec!["a".to_owned(), "b".to_owned()], vec!["long".to_owned(), String::new()]];
        assert_eq!(table(&rows), "a     b\nlong\n");
    }
}
