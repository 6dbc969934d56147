//! Large numbers as people write and read them: `300B`, `8.4e22`, `1.5 GiB`.

use std::fmt;
use std::str::FromStr;

/// A number above 0, written out, with an exponent, or with one of the letters k, M, G (or B), T, P and E behind it.
#[derive(Clone, Copy, Debug)]
pub struct Quantity(pub f64);

/// Letters and what they stand for.
const LETTERS: [(char, f64); 8] =
    [('k', 1e3), ('K', 1e3), ('M', 1e6), ('G', 1e9), ('B', 1e9), ('T', 1e12), ('P', 1e15), ('E', 1e18)];

impl FromStr for Quantity {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let lettered = LETTERS.iter().find_map(|(letter, factor)| Some((text.strip_suffix(*letter)?, *factor)));
        let (digits, factor) = lettered.unwrap_or((text, 1.0));
        let is_number = digits.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c));
        match digits.trim_end().replace('_', "").parse::<f64>() {
            Ok(number) if is_number && (number * factor).is_finite() && number > 0.0 => Ok(Self(number * factor)),
            Ok(_) if is_number => Err("must be a number above 0".into()),
            _ => Err("is not a number such as 300B, 2e12 or 1000000".into()),
        }
    }
}

/// `count` with its thousands apart.
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let from_end = |at: usize| digits.len() - at;
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && from_end(at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `value` in steps of a thousand, with `unit`.
pub fn scaled(value: f64, unit: impl fmt::Display) -> String {
    const PREFIXES: [&str; 8] = ["", "k", "M", "G", "T", "P", "E", "Z"];
    if value == 0.0 {
        return format!("0 {unit}");
    }
    let step =
        (0..PREFIXES.len() - 1).find(|step| value < 1000f64.powi(*step as i32 + 1)).unwrap_or(PREFIXES.len() - 1);
    format!("{} {}{unit}", three_digits(value / 1000f64.powi(step as i32)), PREFIXES[step])
}

/// `bytes` in steps of 1024.
pub fn bytes(bytes: u64) -> String {
    const PREFIXES: [&str; 6] = ["", "Ki", "Mi", "Gi", "Ti", "Pi"];
    let step = (0..PREFIXES.len() - 1).find(|step| bytes >> (10 * step) < 1024).unwrap_or(PREFIXES.len() - 1);
    let value = bytes as f64 / (1u64 << (10 * step)) as f64;
    if step == 0 { format!("{bytes} B") } else { format!("{} {}B", three_digits(value), PREFIXES[step]) }
}

/// `seconds` with the unit that suits them.
pub fn seconds(seconds: f64) -> String {
    let (factor, unit) = match seconds {
        ..1e-3 => (1e6, "µs"),
        ..1.0 => (1e3, "ms"),
        _ => (1.0, "s"),
    };
    format!("{} {unit}", three_digits(seconds * factor))
}

/// At least three digits.
fn three_digits(value: f64) -> String {
    match value {
        ..10.0 => format!("{value:.2}"),
        ..100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read() {
        for (text, value) in [
            ("300B", 3e11),
            ("2e12", 2e12),
            ("1.5T", 1.5e12),
            ("400G", 4e11),
            ("7", 7.0),
            ("10 k", 1e4),
            ("1_000", 1e3),
            ("2E", 2e18),
        ] {
            let read: Quantity = text.parse().unwrap_or_else(|problem| panic!("{text}: {problem}"));
            assert_eq!(read.0, value, "{text}");
        }
        for text in ["", "B", "0", "-3", "NaN", "inf", "1e400", "3Q", "1,5", "five", "0T"] {
            assert!(text.parse::<Quantity>().is_err(), "{text}");
        }
    }

    #[test]
    fn quantities_are_written() {
        assert_eq!([0, 999, 1000, 201_326_592].map(grouped), ["0", "999", "1,000", "201,326,592"]);
        assert_eq!(scaled(824_633_720_832.0, "FLOP"), "825 GFLOP");
        assert_eq!([8.4e22, 0.0].map(|value| scaled(value, "FLOP")), ["84.0 ZFLOP", "0 FLOP"]);
        assert_eq!([0, 1023, 1024, 3 << 29].map(bytes), ["0 B", "1023 B", "1.00 KiB", "1.50 GiB"]);
        assert_eq!([2e-6, 0.0123, 5.0].map(seconds), ["2.00 µs", "12.3 ms", "5.00 s"]);
    }
}
