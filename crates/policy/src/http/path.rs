//! The one normaliser of paths, for routes, policies and what is forwarded.
//!
//! Programs read a path in different ways: some decode `%2f` to a slash and some don't, some merge `//`, some take
//! `;x` off a segment. Whoever compares a path in one of these ways can be passed by a request for a program that reads
//! it in another. So a path has one form here, which routes and policies compare and which the program is sent; and a
//! path that is still read in two ways in this form is refused.

use std::borrow::Cow;

/// Why a path is refused, with status 400.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[error("the request's path {}; programs read such paths in different ways, so it is refused", self.what())]
pub enum PathError {
    /// No slash at the beginning.
    NoSlash,
    /// A byte that no path may have.
    Byte,
    /// A `%` without two hexadecimal digits.
    Escape,
    /// An encoded slash or backslash.
    EncodedSlash,
    /// A backslash.
    Backslash,
    /// An encoded control character, such as NUL.
    EncodedControl,
    /// Encoded bytes that are no UTF-8, such as an overlong dot.
    NotUtf8,
    /// A dot, slash, backslash, percent sign or NUL, encoded twice.
    EncodedTwice,
    /// A parameter of a segment.
    Parameter,
    /// More steps upwards than downwards.
    AboveRoot,
}

impl PathError {
    /// What is wrong, as the end of a sentence about the path.
    pub(super) fn what(self) -> &'static str {
        match self {
            Self::NoSlash => "does not begin with a slash",
            Self::Byte => "has a control character, a space, a # or a byte that is not ASCII",
            Self::Escape => "has a % without two hexadecimal digits",
            Self::EncodedSlash => "has an encoded slash or backslash (%2f or %5c)",
            Self::Backslash => "has a backslash",
            Self::EncodedControl => "has an encoded control character",
            Self::NotUtf8 => "has encoded bytes that are not UTF-8",
            Self::EncodedTwice => "has a character that is encoded twice",
            Self::Parameter => "has a parameter of a segment (;)",
            Self::AboveRoot => "leads above its root (/..)",
        }
    }

    /// A short name for a metric's label.
    pub fn label(self) -> &'static str {
        match self {
            Self::NoSlash => "path_no_slash",
            Self::Byte => "path_byte",
            Self::Escape => "path_escape",
            Self::EncodedSlash => "path_encoded_slash",
            Self::Backslash => "path_backslash",
            Self::EncodedControl => "path_encoded_control",
            Self::NotUtf8 => "path_not_utf8",
            Self::EncodedTwice => "path_encoded_twice",
            Self::Parameter => "path_parameter",
            Self::AboveRoot => "path_above_root",
        }
    }

    /// Whether the same request may succeed later. It may not.
    pub fn is_retryable(self) -> bool {
        false
    }
}

/// How a byte may stand in a path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    /// As itself: RFC 3986's `pchar` without `;`, and the slash.
    Plain,
    /// Only encoded.
    Encoded,
    /// Not at all.
    Refused(PathError),
}

const fn class(byte: u8) -> Class {
    match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => Class::Plain,
        b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b'=' | b':' | b'@' => Class::Plain,
        b'"' | b'<' | b'>' | b'[' | b']' | b'^' | b'`' | b'{' | b'|' | b'}' => Class::Encoded,
        b';' => Class::Refused(PathError::Parameter),
        b'\\' => Class::Refused(PathError::Backslash),
        _ => Class::Refused(PathError::Byte),
    }
}

const CLASSES: [Class; 256] = {
    let mut table = [Class::Plain; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = class(byte as u8);
        byte += 1;
    }
    table
};

/// The form of a request's path that routes and policies compare and that the program is sent. The path is without its
/// query. Most paths have this form already and are borrowed.
///
/// - Encoded characters that may stand as themselves are decoded; all others are encoded, with capital digits.
/// - `/./` and `//` become `/`, and `/a/../` goes.
///
/// # Errors
/// If the path would still be read in different ways: see [`PathError`].
pub fn normalise(path: &[u8]) -> Result<Cow<'_, str>, PathError> {
    if path.first() != Some(&b'/') {
        return Err(PathError::NoSlash);
    }
    let plain = path.iter().enumerate().all(|(at, byte)| {
        CLASSES[usize::from(*byte)] == Class::Plain && (at == 0 || path[at - 1] != b'/' || !matches!(byte, b'/' | b'.'))
    });
    if plain && let Ok(text) = std::str::from_utf8(path) {
        return Ok(Cow::Borrowed(text));
    }
    let decoded = decoded(path)?;
    if hides(&decoded) {
        return Err(PathError::EncodedTwice);
    }
    without_dots(&decoded).map(Cow::Owned)
}

/// The path of an `OPTIONS *` request (RFC 9110, §7.1) is no path; a request with another method must not have it.
pub fn is_asterisk(path: &[u8]) -> bool {
    path == b"*"
}

/// With what may stand as itself decoded, and the rest encoded.
fn decoded(path: &[u8]) -> Result<String, PathError> {
    let mut text = String::with_capacity(path.len() + 8);
    let mut at = 0;
    // What was encoded and is not ASCII; it is a character only together with what follows.
    let mut pending: Vec<u8> = Vec::new();
    while let Some(&byte) = path.get(at) {
        if byte == b'%' {
            let value = escaped(path, at).ok_or(PathError::Escape)?;
            at += 3;
            if value >= 0x80 {
                pending.push(value);
                continue;
            }
            flush(&mut pending, &mut text)?;
            match value {
                b'/' | b'\\' => return Err(PathError::EncodedSlash),
                0..=0x1f | 0x7f => return Err(PathError::EncodedControl),
                _ if CLASSES[usize::from(value)] == Class::Plain => text.push(char::from(value)),
                _ => encode(value, &mut text),
            }
        } else {
            flush(&mut pending, &mut text)?;
            at += 1;
            match CLASSES[usize::from(byte)] {
                Class::Plain => text.push(char::from(byte)),
                Class::Encoded => encode(byte, &mut text),
                Class::Refused(error) => return Err(error),
            }
        }
    }
    flush(&mut pending, &mut text)?;
    Ok(text)
}

/// The byte that `%` at this place and two digits stand for.
fn escaped(path: &[u8], at: usize) -> Option<u8> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    let (high, low) = (digit(path.get(at + 1)?)?, digit(path.get(at + 2)?)?);
    u8::try_from(high * 16 + low).ok()
}

/// Whether a second decoding would bring forth what a path must not hide. An encoded percent sign is `%25` here.
fn hides(decoded: &str) -> bool {
    let bytes = decoded.as_bytes();
    decoded.match_indices("%25").any(|(at, _)| {
        // The two digits behind stand where they would if the percent sign stood as itself.
        matches!(escaped(bytes, at + 2), Some(0 | b'.' | b'/' | b'\\' | b'%' | b';'))
    })
}

fn encode(byte: u8, text: &mut String) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    text.push('%');
    text.push(char::from(DIGITS[usize::from(byte >> 4)]));
    text.push(char::from(DIGITS[usize::from(byte & 15)]));
}

fn flush(pending: &mut Vec<u8>, text: &mut String) -> Result<(), PathError> {
    if !pending.is_empty() {
        // U+0080 to U+009F are control characters, too.
        let characters = std::str::from_utf8(pending).map_err(|_| PathError::NotUtf8)?;
        if characters.chars().any(char::is_control) {
            return Err(PathError::EncodedControl);
        }
        pending.drain(..).for_each(|byte| encode(byte, text));
    }
    Ok(())
}

/// Without empty segments, `.` and `..` (RFC 3986, §5.2.4; but what would lead above the root is refused).
fn without_dots(path: &str) -> Result<String, PathError> {
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let last = segments.peek().is_none();
        match segment {
            ".." => {
                kept.pop().ok_or(PathError::AboveRoot)?;
            }
            "." | "" => {}
            _ => {
                kept.push(segment);
                continue;
            }
        }
        if last {
            kept.push("");
        }
    }
    Ok(kept.iter().fold(String::with_capacity(path.len()), |mut path, segment| {
        path.push('/');
        path.push_str(segment);
        path
    }))
}

#[cfg(test)]
#[path = "path_tests.rs"]
mod tests;
