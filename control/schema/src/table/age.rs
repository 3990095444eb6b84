//! Durations as kubectl shows them.

/// kubectl's `HumanDuration` of a number of seconds.
pub fn human_duration(seconds: i64) -> String {
    if seconds < -1 {
        return "<invalid>".to_owned();
    }
    if seconds < 0 {
        return "0s".to_owned();
    }
    if seconds < 120 {
        return format!("{seconds}s");
    }
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let pair = |high: i64, h: &str, low: i64, l: &str| {
        if low == 0 { format!("{high}{h}") } else { format!("{high}{h}{low}{l}") }
    };
    if minutes < 10 {
        pair(minutes, "m", seconds % 60, "s")
    } else if minutes < 180 {
        format!("{minutes}m")
    } else if hours < 8 {
        pair(hours, "h", minutes % 60, "m")
    } else if hours < 48 {
        format!("{hours}h")
    } else if hours < 192 {
        pair(hours / 24, "d", hours % 24, "h")
    } else if hours < 24 * 365 * 2 {
        format!("{}d", hours / 24)
    } else if hours < 24 * 365 * 8 {
        pair(hours / 24 / 365, "y", hours / 24 % 365, "d")
    } else {
        format!("{}y", hours / 24 / 365)
    }
}

/// The age of an RFC 3339 instant at `now` (seconds since the epoch).
pub fn since(instant: &str, now: i64) -> String {
    match instant.parse::<jiff::Timestamp>() {
        Ok(then) => human_duration(now - then.as_second()),
        Err(_) => "<invalid>".to_owned(),
    }
}
