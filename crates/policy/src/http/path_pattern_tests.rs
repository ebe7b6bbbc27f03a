use proptest::prelude::*;

use super::*;

fn pattern(text: &str) -> PathPattern {
    PathPattern::new(&text.into()).unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn patterns_match_as_istio_has_it() {
    let table: &[(&str, &[&str], &[&str])] = &[
        ("*", &["/", "/a/b"], &[]),
        ("/a", &["/a"], &["/a/", "/A", "/ab", "/"]),
        ("/a*", &["/a", "/a/b", "/abc"], &["/b", "/"]),
        ("/a/*", &["/a/", "/a/b/c"], &["/a", "/ab"]),
        ("*/x", &["/x", "/a/x"], &["/ax", "/x/"]),
        ("*.php", &["/i.php", "/a/b.php"], &["/i.php/x"]),
        ("/a/{*}", &["/a/b"], &["/a", "/a/", "/a/b/c", "/a/b/"]),
        ("/a/{*}/c", &["/a/b/c"], &["/a/c", "/a/b/b/c", "/a/b/cd"]),
        ("/{*}/b/{*}", &["/a/b/c"], &["/a/b/", "/a/c/b", "/a/b"]),
        ("/a/{**}", &["/a/", "/a/b", "/a/b/c"], &["/a", "/ab"]),
        ("/{**}", &["/", "/a/b"], &[]),
        ("/a/{**}/z", &["/a/b/z", "/a/b/c/z"], &["/a/z", "/a/b/zz", "/a/b/z/"]),
        ("/{*}/{**}/z", &["/a/b/z"], &["/a/z", "/z"]),
        // What a user writes decoded, or encoded without need, has the form of requests.
        ("/a b", &["/a%20b"], &["/a b"]),
        ("/%61dmin*", &["/admin/x"], &["/%61dmin"]),
        ("/a//b", &["/a/b"], &[]),
        ("/a/./*", &["/a/b"], &["/a"]),
        ("*%2ephp", &["/i.php"], &[]),
        ("/ü/{*}", &[], &["/u/x"]),
    ];
    for (text, matching, others) in table {
        let Ok(pattern) = PathPattern::new(&(*text).into()) else {
            assert!(matching.is_empty(), "{text}");
            continue;
        };
        for path in *matching {
            assert!(pattern.matches(path), "{text} has to match {path}");
        }
        for path in *others {
            assert!(!pattern.matches(path), "{text} must not match {path}");
        }
    }
}

#[test]
fn what_can_match_no_request_is_refused() {
    for text in [
        "admin",
        "/a;b",
        "/a\\b",
        "/a%2fb",
        "/a?b",
        "/%zz*",
        "/a%2*",
        "*a*",
        "*/../x",
        "/..",
        "/{x}",
        "/a{*}",
        "/{**}/{*}",
        "/{**}/a/{**}",
        "/{*}/*",
        "{*}",
        "/{*}/",
        "/{*}/..",
        "/{*}//x",
        "*;x",
        "/a;*",
    ] {
        assert!(PathPattern::new(&text.into()).is_err(), "{text}");
    }
}

fn segments() -> impl Strategy<Value = Vec<&'static str>> {
    prop::collection::vec(prop::sample::select(vec!["a", "b", "ab"]), 0..5)
}

fn template() -> impl Strategy<Value = String> {
    let piece = || prop::sample::select(vec!["a", "b", "ab", "{*}"]);
    let head = prop::collection::vec(piece(), 1..4);
    let tail = prop::option::of(prop::collection::vec(prop::sample::select(vec!["a", "b", "ab"]), 0..3));
    (head, tail).prop_map(|(head, tail)| {
        let mut all = head;
        if let Some(tail) = tail {
            all.push("{**}");
            all.extend(tail);
        }
        format!("/{}", all.join("/"))
    })
}

proptest! {
    /// The plainest reading of a template is a regular expression.
    #[test]
    fn templates_are_what_their_expressions_say(template in template(), path in segments(), slash: bool) {
        prop_assume!(template.contains('{'));
        let text = template.replace("{**}", ".*").replace("{*}", "[^/]+");
        let expression = regex::Regex::new(&format!("^{text}$")).unwrap();
        let path = format!("/{}{}", path.join("/"), if slash && !path.is_empty() { "/" } else { "" });
        prop_assert_eq!(pattern(&template).matches(&path), expression.is_match(&path), "{} {}", template, path);
    }

    /// A prefix or suffix in its one form matches what the whole path in its one form says.
    #[test]
    fn a_prefix_is_a_prefix(path in segments(), cut in 1usize..8) {
        let path = format!("/{}", path.join("/"));
        let cut = cut.min(path.len());
        let prefix = format!("{}*", &path[..cut]);
        let suffix = format!("*{}", &path[cut..]);
        prop_assert!(pattern(&prefix).matches(&path));
        prop_assert!(pattern(&suffix).matches(&path));
    }
}
