//! Small types that manifests are made of.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ipnet::IpNet;
use serde::de::{Deserializer, Error as _, Visitor};

use super::decode::{Context, Field, Integer, MapKey};

/// A port number: 1 to 65535.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct PortNumber(pub u16);

impl PortNumber {
    const RANGE: Integer = Integer { what: "a port number", min: 1, max: 65535 };
}

impl fmt::Display for PortNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<'de> Field<'de> for PortNumber {
    fn decode<D: Deserializer<'de>>(from: D, _: &mut Context) -> Result<Self, D::Error> {
        let value = from.deserialize_any(Self::RANGE)?;
        u16::try_from(value).map(Self).map_err(D::Error::custom)
    }
}

impl MapKey for PortNumber {
    fn parse(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(0) | Err(_) => Err(format!("{text:?} is not a port number (1 to 65535)")),
            Ok(port) => Ok(Self(port)),
        }
    }
}

/// A port, as a number or as the name of a container's port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum IntOrString {
    /// By number.
    Int(u16),
    /// By name.
    String(String),
}

impl Default for IntOrString {
    fn default() -> Self {
        Self::Int(0)
    }
}

impl fmt::Display for IntOrString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(number) => number.fmt(f),
            Self::String(name) => name.fmt(f),
        }
    }
}

impl<'de> Field<'de> for IntOrString {
    fn decode<D: Deserializer<'de>>(from: D, cx: &mut Context) -> Result<Self, D::Error> {
        struct Either;
        impl Visitor<'_> for Either {
            type Value = IntOrString;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a port number from 1 to 65535 or the name of a port")
            }
            fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<IntOrString, E> {
                let number = PortNumber::RANGE.visit_u64::<E>(value)?;
                u16::try_from(number).map(IntOrString::Int).map_err(E::custom)
            }
            fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<IntOrString, E> {
                let number = PortNumber::RANGE.visit_i64::<E>(value)?;
                u16::try_from(number).map(IntOrString::Int).map_err(E::custom)
            }
            fn visit_str<E>(self, text: &str) -> Result<IntOrString, E> {
                Ok(IntOrString::String(text.to_owned()))
            }
        }
        let value = from.deserialize_any(Either)?;
        if let Self::String(name) = &value {
            super::validate::port_name(name).map_err(|why| D::Error::custom(format!("{}: {why}", cx.path())))?;
        }
        Ok(value)
    }
}

/// A point in time with nanoseconds, as in RFC 3339.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Timestamp(pub SystemTime);

impl FromStr for Timestamp {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse_rfc3339(text)
            .map(Self)
            .ok_or_else(|| format!("{text:?} is not a time such as 2026-01-31T12:00:00Z (RFC 3339)"))
    }
}

/// Parses RFC 3339 §5.6 for the years that the system clock can express. A leap second counts as the next second.
fn parse_rfc3339(text: &str) -> Option<SystemTime> {
    let number = |from: usize, to: usize| -> Option<u64> {
        let digits = text.get(from..to)?;
        digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())?
    };
    let bytes = text.as_bytes();
    let separators = [(4, b"-" as &[u8]), (7, b"-"), (10, b"Tt "), (13, b":"), (16, b":")];
    if !separators.iter().all(|(at, any)| bytes.get(*at).is_some_and(|b| any.contains(b))) {
        return None;
    }
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let lengths = [31, if leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let length = *lengths.get(usize::try_from(month).ok()?.checked_sub(1)?)?;
    if day == 0 || day > length || hour > 23 || minute > 59 || second > 60 || year < 1970 {
        return None;
    }
    let mut rest = text.get(19..)?;
    let mut nanoseconds = 0;
    if let Some(fraction) = rest.strip_prefix('.') {
        let end = fraction.bytes().position(|b| !b.is_ascii_digit()).unwrap_or(fraction.len());
        let digits = fraction.get(..end.min(9)).filter(|digits| !digits.is_empty())?;
        nanoseconds = format!("{digits:0<9}").parse().ok()?;
        rest = fraction.get(end..)?;
    }
    let offset_minutes: i64 = match rest.as_bytes() {
        b"Z" | b"z" => 0,
        [sign @ (b'+' | b'-'), _, _, b':', _, _] => {
            let at = text.len() - 5;
            let minutes = i64::try_from(number(at, at + 2)? * 60 + number(at + 3, at + 5)?).ok()?;
            if *sign == b'-' { -minutes } else { minutes }
        }
        _ => return None,
    };
    let leaps_before = |y: u64| (y - 1) / 4 - (y - 1) / 100 + (y - 1) / 400;
    let days_of_years = (year - 1970) * 365 + leaps_before(year) - leaps_before(1970);
    let days_of_months: u64 = lengths.iter().take(usize::try_from(month).ok()? - 1).sum();
    let days = days_of_years + days_of_months + day - 1;
    let local = i64::try_from(((days * 24 + hour) * 60 + minute) * 60 + second).ok()?;
    let utc = u64::try_from(local - offset_minutes * 60).ok()?;
    Some(UNIX_EPOCH + Duration::new(utc, nanoseconds))
}

impl<'de> Field<'de> for Timestamp {
    fn decode<D: Deserializer<'de>>(from: D, cx: &mut Context) -> Result<Self, D::Error> {
        parsed(from, cx)
    }
}

impl<'de> Field<'de> for IpAddr {
    fn decode<D: Deserializer<'de>>(from: D, cx: &mut Context) -> Result<Self, D::Error> {
        let text = String::decode(from, cx)?;
        text.parse().map_err(|_| D::Error::custom(format!("{}: {text:?} is not an IP address", cx.path())))
    }
}

/// An address block. A bare address is a block of one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct IpBlock(pub IpNet);

impl FromStr for IpBlock {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let net = text.parse::<IpNet>().map(|net| net.trunc());
        net.or_else(|_| text.parse::<IpAddr>().map(IpNet::from))
            .map(Self)
            .map_err(|_| format!("{text:?} is neither an IP address nor a CIDR block such as 10.0.0.0/8"))
    }
}

impl<'de> Field<'de> for IpBlock {
    fn decode<D: Deserializer<'de>>(from: D, cx: &mut Context) -> Result<Self, D::Error> {
        parsed(from, cx)
    }
}

fn parsed<'de, T: FromStr<Err = String>, D: Deserializer<'de>>(from: D, cx: &mut Context) -> Result<T, D::Error> {
    let text = String::decode(from, cx)?;
    text.parse().map_err(|why| D::Error::custom(format!("{}: {why}", cx.path())))
}
