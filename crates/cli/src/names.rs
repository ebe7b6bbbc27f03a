//! Names of Kubernetes objects, as users write them.

/// Longest name of a namespace: it is a label of DNS (RFC 1123).
const LONGEST: usize = 63;

/// Reads the name of a namespace.
///
/// # Errors
/// If no namespace can have it.
pub(crate) fn namespace(text: &str) -> Result<String, String> {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let ends = !text.starts_with('-') && !text.ends_with('-');
    if (1..=LONGEST).contains(&text.len()) && text.bytes().all(inner) && ends {
        return Ok(text.to_owned());
    }
    Err(format!(
        "a namespace's name has up to {LONGEST} lower-case letters, digits and dashes, and no dash at its ends"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_a_namespace_can_have() {
        for good in ["a", "leno-system", "7", &"x".repeat(63)] {
            assert_eq!(namespace(good).as_deref(), Ok(good));
        }
        for bad in ["", "A", "a b", "a/b", "-a", "a-", "a.b", "ü", &"x".repeat(64)] {
            assert!(namespace(bad).is_err(), "{bad}");
        }
    }
}
