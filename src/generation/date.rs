//! Dates for chat templates, which write today's into their system message.

use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// From the first day of 1970, a Thursday.
const WEEKDAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

const SECONDS_PER_DAY: u64 = 86_400;

/// `format` with its `%` directives filled in, as by C's `strftime`, for a time in UTC. `None` where it has a directive
/// that is not known.
pub(super) fn strftime(format: &str, time: SystemTime) -> Option<String> {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (days, second) = (seconds / SECONDS_PER_DAY, seconds % SECONDS_PER_DAY);
    let (year, month, day) = date_of(days);
    let (month_name, weekday) = (MONTHS[month as usize - 1], WEEKDAYS[(days % 7) as usize]);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let hour_of_12 = (hour + 11) % 12 + 1;

    let mut text = String::new();
    let mut rest = format.chars();
    while let Some(next) = rest.next() {
        if next != '%' {
            text.push(next);
            continue;
        }
        let mut directive = rest.next()?;
        let is_padded = directive != '-';
        if !is_padded {
            directive = rest.next()?;
        }
        let number = |value: u64| if is_padded { format!("{value:02}") } else { value.to_string() };
        text += &match directive {
            'Y' => year.to_string(),
            'y' => number(year % 100),
            'm' => number(month),
            'd' => number(day),
            'B' => month_name.to_owned(),
            'b' => month_name[..3].to_owned(),
            'A' => weekday.to_owned(),
            'a' => weekday[..3].to_owned(),
            'H' => number(hour),
            'I' => number(hour_of_12),
            'M' => number(minute),
            'S' => number(second),
            'p' => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            '%' => "%".to_owned(),
            _ => return None,
        };
    }
    Some(text)
}

/// Year, month and day, by the method of
/// [Hinnant](https://howardhinnant.github.io/date_algorithms.html#civil_from_days): years begin in March, so that the
/// leap day is the last of its year.
fn date_of(days_since_1970: u64) -> (u64, u64, u64) {
    const DAYS_PER_ERA: u64 = 146_097;
    let days = days_since_1970 + 719_468;
    let (era, day_of_era) = (days / DAYS_PER_ERA, days % DAYS_PER_ERA);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Expected: Python's `datetime.fromtimestamp(seconds, UTC).strftime(format)`.
    #[test]
    fn dates_are_written_as_asked() {
        let at = |seconds, format: &str| strftime(format, UNIX_EPOCH + Duration::from_secs(seconds));
        for (seconds, text) in [
            (0, "Thursday Thu 01 January Jan 01 1970 70 00:00:00 12 AM 1"),
            (951_782_399, "Monday Mon 28 February Feb 02 2000 00 23:59:59 11 PM 28"),
            (951_782_400, "Tuesday Tue 29 February Feb 02 2000 00 00:00:00 12 AM 29"),
            (1_709_251_199, "Thursday Thu 29 February Feb 02 2024 24 23:59:59 11 PM 29"),
            (1_798_761_600, "Friday Fri 01 January Jan 01 2027 27 00:00:00 12 AM 1"),
            (4_107_542_400, "Monday Mon 01 March Mar 03 2100 00 00:00:00 12 AM 1"),
        ] {
            let found = at(seconds, "%A %a %d %B %b %m %Y %y %H:%M:%S %I %p %-d");
            assert_eq!(found.as_deref(), Some(text), "{seconds}");
        }
        assert_eq!(at(0, "100 %%"), Some("100 %".into()));
        assert_eq!(at(0, "%Q"), None);
        assert_eq!(at(0, "%"), None);
    }
}
