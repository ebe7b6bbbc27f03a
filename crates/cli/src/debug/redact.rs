//! What never gets into an archive that people send around: private keys, tokens, and variables that sound like one.
//!
//! Nothing that is collected should have any of these. This is the second wall: a program may have logged one, and a manifest may
//! carry one in a variable.

use std::borrow::Cow;

pub(super) const REMOVED: &str = "[removed]";

/// Ends of the names of variables and headers whose values are removed from objects.
const SECRET_NAMES: [&str; 8] =
    ["TOKEN", "PASSWORD", "SECRET", "KEY", "CREDENTIALS", "PASSPHRASE", "AUTHORIZATION", "COOKIE"];

/// Whether a variable of this name may hold a secret.
pub(super) fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    SECRET_NAMES.iter().any(|end| name.ends_with(end))
}

/// YAML without the values of keys that may hold secrets.
pub(super) fn without_values(yaml: &str) -> String {
    let mut out = String::new();
    for line in yaml.split_inclusive('\n') {
        match line.split_once(':') {
            Some((key, value)) if !value.trim().is_empty() && is_secret(key.trim_matches([' ', '-', '"', '\''])) => {
                out.extend([key, ": ", REMOVED, "\n"]);
            }
            _ => out.push_str(line),
        }
    }
    out
}

/// The text without private keys and tokens.
pub(super) fn redacted(text: &str) -> Cow<'_, str> {
    let mut out = String::new();
    let mut rest = text;
    while let Some((start, end)) = next_secret(rest) {
        out.push_str(&rest[..start]);
        out.push_str(REMOVED);
        rest = &rest[end..];
    }
    if out.is_empty() && rest.len() == text.len() {
        return Cow::Borrowed(text);
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// The bounds of the first secret.
fn next_secret(text: &str) -> Option<(usize, usize)> {
    [private_key(text), encoded_pem(text), token(text)].into_iter().flatten().min()
}

/// `-----BEGIN … PRIVATE KEY-----` up to its end; without one, to the end of the text.
fn private_key(text: &str) -> Option<(usize, usize)> {
    const MARK: &str = "PRIVATE KEY-----";
    let mark = text.find(MARK)?;
    let before = &text[..mark];
    // An end without a beginning: the beginning is in another line of a log.
    let start = before.rfind("-----BEGIN").or_else(|| before.rfind("-----END")).unwrap_or(mark);
    if text[start..].starts_with("-----END") {
        return Some((0, mark + MARK.len()));
    }
    let body = mark + MARK.len();
    let end = text[body..].find(MARK).map_or(text.len(), |end| body + end + MARK.len());
    Some((start, end))
}

/// PEM in base64, as a Secret holds it. What kind of PEM it is can't be seen.
fn encoded_pem(text: &str) -> Option<(usize, usize)> {
    let start = text.find("LS0tLS1CRUdJTi")?;
    let end = word_end(text, start, |byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte));
    Some((start, end))
}

/// A JSON web token: `eyJ….eyJ….…`.
fn token(text: &str) -> Option<(usize, usize)> {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    let mut from = 0;
    while let Some(at) = text[from..].find("eyJ") {
        let start = from + at;
        let head = word_end(text, start, is_part);
        if text[head..].starts_with(".eyJ") {
            let body = word_end(text, head + 1, is_part);
            let end = if text[body..].starts_with('.') { word_end(text, body + 1, is_part) } else { body };
            return Some((start, end));
        }
        from = head;
    }
    None
}

fn word_end(text: &str, start: usize, is_part: impl Fn(u8) -> bool) -> usize {
    text.bytes().skip(start).position(|byte| !is_part(byte)).map_or(text.len(), |length| start + length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_tokens_are_removed_and_all_else_stays() {
        let cases = [
            ("a -----BEGIN PRIVATE KEY-----\nMIG\n-----END PRIVATE KEY-----\nb", "a [removed]\nb"),
            ("\"-----BEGIN EC PRIVATE KEY-----\\nMIG\\n-----END EC PRIVATE KEY-----\\n\", c", "\"[removed]\\n\", c"),
            ("x -----BEGIN RSA PRIVATE KEY-----\ncut off", "x [removed]"),
            ("MIG\n-----END PRIVATE KEY-----\nb", "[removed]\nb"),
            ("tls.key: LS0tLS1CRUdJTiBQUklWQVRF==\nb", "tls.key: [removed]\nb"),
            ("Bearer eyJhbGci.eyJpc3Mi.c2ln_-x, b eyJ.", "Bearer [removed], b eyJ."),
            (
                "1 -----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----\nx\n-----END PRIVATE KEY-----2",
                "1 -----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----\n[removed]2",
            ),
            ("nothing; eyJ alone", "nothing; eyJ alone"),
            ("", ""),
        ];
        for (text, left) in cases {
            assert_eq!(redacted(text), left, "{text}");
        }
    }

    #[test]
    fn variables_are_judged_by_their_names() {
        assert!(is_secret("AUTH_TOKEN") && is_secret("db_password") && is_secret("API_KEY"));
        assert!(!is_secret("TRUST_DOMAIN") && !is_secret("POD_NAME") && !is_secret("SECRET_TTL"));
    }
}
