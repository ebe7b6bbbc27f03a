//! Where are the keys of an issuer of tokens read, and what is wrong with them?

use leno_model::http::TokenKeys;
use leno_tls::jwk::KeySet;

use super::Options;

/// What is wrong with keys, each as the end of a sentence that begins with their rule's place.
pub(super) fn problems(options: &Options, keys: &TokenKeys) -> Vec<String> {
    const DENIED: &str = "its tokens are DENIED";
    match keys {
        TokenKeys::None => {
            vec![format!(": neither jwks nor jwksUri is given, and the issuer is not asked for it: {DENIED}")]
        }
        TokenKeys::At { uri, .. } if !["http://", "https://"].iter().any(|scheme| uri.starts_with(scheme)) => {
            vec![format!(".jwksUri {uri:?} is no http or https address: {DENIED}")]
        }
        TokenKeys::At { uri, .. } => {
            let host = in_the_clear(options, uri);
            let told = host.map(|host| {
                format!(
                    ".jwksUri: over plain http only a Service of the mesh is read, written as NAME.NAMESPACE, and {host:?} is \
                     none: {DENIED}; elsewhere it has to be https"
                )
            });
            told.into_iter().collect()
        }
        TokenKeys::Inline(text) => match KeySet::parse(text.as_bytes()) {
            Err(why) => vec![format!(".jwks: {why}: {DENIED}")],
            Ok(keys) => keys.skipped().iter().map(|why| format!(".jwks: a key is not used: {why}")).collect(),
        },
    }
}

/// The host of an address over plain HTTP, with what stands before and behind it.
fn plain_host(uri: &str) -> Option<(&str, &str, &str)> {
    let (scheme, rest) = uri.split_at_checked("http://".len()).filter(|(scheme, _)| *scheme == "http://")?;
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    // An IPv6 address has colons of its own, in brackets.
    let name = rest[..end].rfind(']').map_or(0, |at| at + 1);
    let end = rest[name..end].find(':').map_or(end, |at| name + at);
    Some((scheme, &rest[..end], &rest[end..]))
}

/// An address with the whole name of a Service, which may be written as in a pod: `NAME.NAMESPACE`, with or without `.svc`.
/// Waypoints know services by their whole names only.
pub(super) fn whole_address(options: &Options, uri: &str) -> String {
    if let Some((scheme, host, rest)) = plain_host(uri)
        && let [name, namespace] | [name, namespace, "svc"] = host.split('.').collect::<Vec<_>>()[..]
    {
        return format!("{scheme}{name}.{namespace}.svc.{}{rest}", options.cluster_domain);
    }
    uri.to_owned()
}

/// The host of a whole address where anybody on the way could forge keys.
fn in_the_clear<'a>(options: &Options, uri: &'a str) -> Option<&'a str> {
    let (_, host, _) = plain_host(uri)?;
    let of_services = host.strip_suffix(&*options.cluster_domain).is_some_and(|start| start.ends_with(".svc."));
    (!of_services).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_may_be_written_as_in_a_pod() {
        let options = Options::default();
        let whole = "http://issuer.shop.svc.cluster.local:81/keys?a=b.c";
        for short in ["issuer.shop", "issuer.shop.svc", "issuer.shop.svc.cluster.local"] {
            assert_eq!(whole_address(&options, &format!("http://{short}:81/keys?a=b.c")), whole, "{short}");
        }
        assert_eq!(whole_address(&options, "http://issuer.shop"), "http://issuer.shop.svc.cluster.local");
        for other in
            ["https://issuer.example/keys", "http://issuer/k", "http://a.b.c/k", "http://[fd00::1]/k", "http:", "x"]
        {
            assert_eq!(whole_address(&options, other), other);
        }
    }

    #[test]
    fn plain_http_is_for_services_of_the_mesh() {
        let told = |uri: &str| {
            let timeout = std::time::Duration::from_secs(5);
            problems(&Options::default(), &TokenKeys::At { uri: uri.into(), timeout })
        };
        for good in ["http://issuer.shop.svc.cluster.local/k", "https://issuer.example/k", "https://10.0.0.1/k"] {
            assert_eq!(told(good), Vec::<String>::new(), "{good}");
        }
        for bad in ["http://keys.issuer.example/k", "http://issuer/k", "http://10.0.0.1/k", "http://[fd00::1]:80/k"] {
            assert!(told(bad).concat().contains("over plain http only"), "{bad}");
        }
    }
}
