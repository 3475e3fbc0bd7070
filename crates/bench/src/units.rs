//! Numbers for people.

/// A size in bytes in fio's short form: `512`, `4k`, `1m`.
pub fn size(bytes: u64) -> String {
    for (shift, letter) in [(40, 't'), (30, 'g'), (20, 'm'), (10, 'k')] {
        if bytes >= 1 << shift && bytes.is_multiple_of(1 << shift) {
            return format!("{}{letter}", bytes >> shift);
        }
    }
    bytes.to_string()
}

/// A number with three or more significant digits and a decimal prefix: `144k`, `1.20M`.
pub fn si(n: f64) -> String {
    let (v, unit) = match n.abs() {
        a if a >= 1e9 => (n / 1e9, "G"),
        a if a >= 1e6 => (n / 1e6, "M"),
        a if a >= 1e4 => (n / 1e3, "k"),
        _ => (n, ""),
    };
    format!("{}{unit}", three(v))
}

/// A number with about three significant digits.
pub fn three(v: f64) -> String {
    match v.abs() {
        a if a >= 100.0 || v == 0.0 => format!("{v:.0}"),
        a if a >= 10.0 => format!("{v:.1}"),
        _ => format!("{v:.2}"),
    }
}

/// Nanoseconds with a fitting unit: `830 ns`, `9.41 us`, `12.0 ms`.
pub fn nanos(ns: f64) -> String {
    match ns {
        n if n >= 1e9 => format!("{} s", three(n / 1e9)),
        n if n >= 1e6 => format!("{} ms", three(n / 1e6)),
        n if n >= 1e3 => format!("{} us", three(n / 1e3)),
        n => format!("{} ns", three(n)),
    }
}

/// Bytes per second in binary and decimal units: `1234 MiB/s (1294 MB/s)`.
pub fn bandwidth(bytes_per_second: f64) -> String {
    let mib = bytes_per_second / f64::from(1 << 20);
    format!("{} MiB/s ({} MB/s)", three(mib), three(bytes_per_second / 1e6))
}

/// A point in time, given as seconds since 1970, as `2025-03-17 10:20:30 UTC`.
pub fn date(unix: u64) -> String {
    let days = (unix / 86_400) as i64;
    // Days to a civil date, counted from 1 March of the year 0 (proleptic Gregorian calendar).
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = doy - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    let year = yoe + era * 400 + i64::from(month <= 2);
    let s = unix % 86_400;
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC", s / 3600, s / 60 % 60, s % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!([size(512), size(4096), size(1 << 20), size(1000)], ["512", "4k", "1m", "1000"]);
        assert_eq!([si(9_999.0), si(144_000.0), si(1.2e6)], ["9999", "144k", "1.20M"]);
        assert_eq!([nanos(830.0), nanos(9_410.0), nanos(12e6)], ["830 ns", "9.41 us", "12.0 ms"]);
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(date(951_782_400), "2000-02-29 00:00:00 UTC");
        assert_eq!(date(1_426_587_630), "2015-03-17 10:20:30 UTC");
    }
}
