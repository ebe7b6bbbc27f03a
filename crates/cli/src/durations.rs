//! Lengths of time as people type them.

use std::time::Duration;

/// A number with a unit: `500ms`, `90s`, `5m`, `2h`, `1d`, or several in a row, `1h30m`. A number alone is seconds.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || format!("write a length of time as 500ms, 90s, 5m, 2h or 1d, not {text:?}");
    if let Ok(seconds) = text.parse() {
        return Ok(Duration::from_secs(seconds));
    }
    let mut rest = text;
    let mut total = Duration::ZERO;
    loop {
        let unit = rest.find(|c: char| !c.is_ascii_digit()).filter(|at| *at > 0).ok_or_else(wrong)?;
        let (number, behind) = rest.split_at(unit);
        let end = behind.find(|c: char| c.is_ascii_digit()).unwrap_or(behind.len());
        let (unit, behind) = behind.split_at(end);
        let milliseconds: u64 = match unit {
            "ms" => 1,
            "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(wrong()),
        };
        let number: u64 = number.parse().map_err(|_| wrong())?;
        let part = number.checked_mul(milliseconds).map(Duration::from_millis).ok_or_else(wrong)?;
        total = total.checked_add(part).ok_or_else(wrong)?;
        rest = behind;
        if rest.is_empty() {
            return Ok(total);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time() {
        for (text, seconds) in [("0", 0), ("90", 90), ("90s", 90), ("5m", 300), ("1h30m", 5400), ("2d", 172_800)] {
            assert_eq!(parse(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        assert_eq!(parse("1s500ms"), Ok(Duration::from_millis(1500)));
        for text in ["", "s", "5x", "-1", "1.5s", "5m soon", "99999999999999999999", "1h30"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
