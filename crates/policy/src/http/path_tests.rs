use proptest::prelude::*;

use super::*;

fn form(path: &str) -> Result<String, PathError> {
    normalise(path.as_bytes()).map(Cow::into_owned)
}

#[test]
fn paths_have_one_form_or_are_refused() {
    use PathError::*;
    let table: &[(&str, Result<&str, PathError>)] = &[
        ("/", Ok("/")),
        ("/a", Ok("/a")),
        ("/a/", Ok("/a/")),
        ("//a", Ok("/a")),
        ("//", Ok("/")),
        ("/a//b///c", Ok("/a/b/c")),
        ("/a//", Ok("/a/")),
        ("/./a", Ok("/a")),
        ("/.", Ok("/")),
        ("/a/.", Ok("/a/")),
        ("/a/./b", Ok("/a/b")),
        ("/a/../b", Ok("/b")),
        ("/a/b/..", Ok("/a/")),
        ("/a/b/../", Ok("/a/")),
        ("/a/..", Ok("/")),
        ("/..", Err(AboveRoot)),
        ("/../a", Err(AboveRoot)),
        ("/a/../../b", Err(AboveRoot)),
        ("/a//../b", Ok("/b")),
        ("/%2e%2e/a", Err(AboveRoot)),
        ("/a/%2e%2E/b", Ok("/b")),
        ("/a/.%2e/b", Ok("/b")),
        ("/a/%2e/b", Ok("/a/b")),
        ("/...", Ok("/...")),
        ("/a.", Ok("/a.")),
        ("/.a", Ok("/.a")),
        ("/a/..b", Ok("/a/..b")),
        ("/a%2fb", Err(EncodedSlash)),
        ("/a%2Fb", Err(EncodedSlash)),
        ("/a%5cb", Err(EncodedSlash)),
        ("/a\\b", Err(Backslash)),
        ("/a/..\\b", Err(Backslash)),
        ("/a;x=1", Err(Parameter)),
        ("/a/..;/b", Err(Parameter)),
        ("/a;", Err(Parameter)),
        ("/a%3bx", Ok("/a%3Bx")),
        ("/a%00", Err(EncodedControl)),
        ("/a%0d%0ab", Err(EncodedControl)),
        ("/a%7f", Err(EncodedControl)),
        ("/a%c2%80", Err(EncodedControl)),
        ("/%c0%ae%c0%ae/a", Err(NotUtf8)),
        ("/%c0%af", Err(NotUtf8)),
        ("/a%ff", Err(NotUtf8)),
        ("/a%c3", Err(NotUtf8)),
        ("/a%c3/%a4", Err(NotUtf8)),
        ("/%c3%a4", Ok("/%C3%A4")),
        ("/ä", Err(Byte)),
        ("/a b", Err(Byte)),
        ("/a%20b", Ok("/a%20b")),
        ("/a#b", Err(Byte)),
        ("/a%23b", Ok("/a%23b")),
        ("/a%3fb=1", Ok("/a%3Fb=1")),
        ("/a%", Err(Escape)),
        ("/a%2", Err(Escape)),
        ("/a%zz", Err(Escape)),
        ("/a%u002e", Err(Escape)),
        ("/%252e%252e/a", Err(EncodedTwice)),
        ("/a%252fb", Err(EncodedTwice)),
        ("/a%255cb", Err(EncodedTwice)),
        ("/a%25252e", Err(EncodedTwice)),
        ("/a%2500", Err(EncodedTwice)),
        ("/a%253bx", Err(EncodedTwice)),
        ("/100%25", Ok("/100%25")),
        ("/100%25/a", Ok("/100%25/a")),
        ("/100%2520", Ok("/100%2520")),
        ("/%61dmin", Ok("/admin")),
        ("/%41dmin", Ok("/Admin")),
        ("/a%40b%3ac%2bd", Ok("/a@b:c+d")),
        ("/a{b}|c", Ok("/a%7Bb%7D%7Cc")),
        ("/a%7bb", Ok("/a%7Bb")),
        ("/A/b", Ok("/A/b")),
        ("", Err(NoSlash)),
        ("a", Err(NoSlash)),
        ("*", Err(NoSlash)),
        ("http://host/a", Err(NoSlash)),
        ("/a\u{0}b", Err(Byte)),
        ("/a\tb", Err(Byte)),
    ];
    for (path, expected) in table {
        assert_eq!(form(path), expected.map(str::to_owned), "{path}");
    }
    assert!(table.len() >= 40);
}

#[test]
fn only_an_asterisk_alone_is_no_path() {
    for (path, is_one) in [("*", true), ("", false), ("**", false), ("/*", false), ("/", false)] {
        assert_eq!(is_asterisk(path.as_bytes()), is_one, "{path}");
    }
}

#[test]
fn a_refusal_says_what_is_wrong() {
    assert_eq!(
        PathError::EncodedSlash.to_string(),
        "the request's path has an encoded slash or backslash (%2f or %5c); programs read such paths in different ways, \
         so it is refused"
    );
}

#[test]
fn what_is_in_this_form_is_borrowed() {
    for (path, borrowed) in [("/", true), ("/a/b.c/~", true), ("/a//b", false), ("/a/.b", false), ("/%61", false)] {
        let form = normalise(path.as_bytes()).expect("a path");
        assert_eq!(matches!(form, Cow::Borrowed(_)), borrowed, "{path}");
    }
}

#[test]
fn each_reason_has_its_label_and_none_goes_by_itself() {
    use PathError::*;
    for (error, label) in [
        (NoSlash, "path_no_slash"),
        (Byte, "path_byte"),
        (Escape, "path_escape"),
        (EncodedSlash, "path_encoded_slash"),
        (Backslash, "path_backslash"),
        (EncodedControl, "path_encoded_control"),
        (NotUtf8, "path_not_utf8"),
        (EncodedTwice, "path_encoded_twice"),
        (Parameter, "path_parameter"),
        (AboveRoot, "path_above_root"),
    ] {
        assert_eq!(error.label(), label);
        assert!(!error.is_retryable(), "{label}");
    }
}

/// What a program reads that decodes once.
fn decoded_once(path: &str) -> Vec<u8> {
    let bytes = path.as_bytes();
    let mut out = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] == b'%'
            && let Some(value) = bytes.get(at + 1..at + 3)
            && let Ok(value) = u8::from_str_radix(std::str::from_utf8(value).unwrap_or("x"), 16)
        {
            out.push(value);
            at += 3;
        } else {
            out.push(bytes[at]);
            at += 1;
        }
    }
    out
}

fn awkward() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "a",
        "B",
        "/",
        ".",
        "..",
        "%2e",
        "%2F",
        "%5C",
        "\\",
        ";",
        "%3b",
        "%25",
        "%00",
        "%c3%a4",
        "%c0%af",
        "%",
        "%41",
        "+",
        "%2b",
        "{",
        "%7B",
        "%20",
        "~",
        "%7e",
        "*",
        "%e2%82%ac",
        "|",
    ]);
    prop::collection::vec(piece, 0..10).prop_map(|pieces| format!("/{}", pieces.concat()))
}

proptest! {
    #[test]
    fn the_form_is_final(path in awkward()) {
        if let Ok(once) = form(&path) {
            prop_assert_eq!(form(&once), Ok(once.clone()));
        }
    }

    /// However a program reads what it is sent, it reads no way upwards, no second separator and nothing hidden.
    #[test]
    fn every_reading_is_the_same(path in awkward()) {
        if let Ok(once) = form(&path) {
            prop_assert!(once.starts_with('/'));
            prop_assert!(!once.contains("//") && !once.contains(';') && !once.contains('\\'));
            prop_assert!(once.split('/').all(|segment| segment != "." && segment != ".."));
            let read = decoded_once(&once);
            prop_assert_eq!(read.iter().filter(|b| **b == b'/').count(), once.matches('/').count());
            prop_assert!(!read.contains(&b'\\') && !read.contains(&0));
            let text = String::from_utf8(read);
            prop_assert!(text.is_ok());
            // Nor does one that decodes a second time.
            let again = decoded_once(&text.unwrap_or_default());
            prop_assert!(!again.contains(&b'\\') && !again.contains(&0));
            prop_assert_eq!(again.iter().filter(|b| **b == b'/').count(), once.matches('/').count());
        }
    }

    /// Two ways of writing the same characters have the same form.
    #[test]
    fn encoding_makes_no_difference(path in "/[a-zA-Z0-9._~!$&'()*+,=:@-]{1,12}") {
        let encoded = path.bytes().skip(1).fold("/".to_owned(), |text, byte| format!("{text}%{byte:02x}"));
        prop_assert_eq!(form(&encoded), form(&path));
    }
}
