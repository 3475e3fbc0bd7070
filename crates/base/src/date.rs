//! Calendar dates of UTC, proleptic Gregorian.

/// Seconds of a day.
const DAY: u64 = 86_400;

/// A second of UTC. Ordered as time is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Date {
    /// Year, from 1970.
    pub year: u64,
    /// Month, 1 to 12.
    pub month: u64,
    /// Day, from 1.
    pub day: u64,
    /// Hour, 0 to 23.
    pub hour: u64,
    /// Minute, 0 to 59.
    pub minute: u64,
    /// Second, 0 to 59: leap seconds are not counted.
    pub second: u64,
}

impl Date {
    /// From seconds since 1970.
    pub fn of(seconds: u64) -> Date {
        let (days, rest) = (seconds / DAY, seconds % DAY);
        // Eras of 400 years that begin on 1 March, so that the day that may be missing is a year's last.
        let z = days + 719_468;
        let (era, doe) = (z / 146_097, z % 146_097);
        let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
        let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
        let mp = (5 * doy + 2) / 153;
        let month = if mp < 10 { mp + 3 } else { mp - 9 };
        Date {
            year: yoe + era * 400 + u64::from(month <= 2),
            month,
            day: doy - (153 * mp + 2) / 5 + 1,
            hour: rest / 3600,
            minute: rest / 60 % 60,
            second: rest % 60,
        }
    }

    /// Seconds since 1970; `None` when there is no such date, or it is before 1970 or after the year 9999.
    pub fn seconds(&self) -> Option<u64> {
        let y = self.year;
        if !(1970..=9999).contains(&y) || !(1..=12).contains(&self.month) || self.day == 0 {
            return None;
        }
        let y = y - u64::from(self.month <= 2);
        let mp = (self.month + 9) % 12;
        let (era, yoe) = (y / 400, y % 400);
        // A day of more than two digits would reach into later months; the comparison below refuses it.
        let doy = (153 * mp + 2) / 5 + self.day.min(99) - 1;
        let doe = yoe * 365 + yoe / 4 - yoe / 100 + doy;
        let days = (era * 146_097 + doe).checked_sub(719_468)?;
        let clock = [self.hour, self.minute, self.second].map(|n| n.min(99));
        let seconds = days * DAY + clock[0] * 3600 + clock[1] * 60 + clock[2];
        (Date::of(seconds) == *self).then_some(seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_dates() {
        let text = |s: u64| {
            let d = Date::of(s);
            format!("{}-{}-{} {}:{}:{}", d.year, d.month, d.day, d.hour, d.minute, d.second)
        };
        assert_eq!(text(0), "1970-1-1 0:0:0");
        assert_eq!(text(951_782_399), "2000-2-28 23:59:59");
        assert_eq!(text(951_868_800), "2000-3-1 0:0:0");
        assert_eq!(text(1_795_321_280), "2026-11-22 4:21:20");
    }

    #[test]
    fn there_and_back_and_nothing_else() {
        for n in 0..20_000 {
            let s = n * 9_999_991 % 253_402_300_800;
            assert_eq!(Date::of(s).seconds(), Some(s));
        }
        let d = |month, day, hour| Date { year: 2026, month, day, hour, minute: 0, second: 0 };
        for bad in [d(0, 1, 0), d(13, 1, 0), d(2, 29, 0), d(4, 31, 0), d(1, 0, 0), d(1, 1, 24)] {
            assert_eq!(bad.seconds(), None, "{bad:?}");
        }
        assert_eq!(Date { year: 1969, ..d(1, 1, 0) }.seconds(), None);
        assert_eq!(Date { second: 60, ..d(1, 1, 0) }.seconds(), None);
    }
}
