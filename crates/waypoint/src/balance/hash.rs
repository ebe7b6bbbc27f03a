//! What of a request may decide about its endpoint, as a number.

use std::net::IpAddr;

use http::header::COOKIE;
use http::{HeaderMap, Uri};
use leno_model::http::HashOf;
use leno_policy::balance::{mix, of_bytes};

/// The number of what decides; `None` if the request does not have it.
pub(crate) fn of(what: &HashOf, uri: &Uri, headers: &HeaderMap, client: IpAddr) -> Option<u64> {
    match what {
        HashOf::SourceIp => Some(of_address(client)),
        HashOf::Header(name) => {
            let mut values = headers.get_all(&**name).iter();
            let first = values.next()?.as_bytes();
            Some(values.fold(of_bytes(first), |all, value| mix(all ^ of_bytes(value.as_bytes()))))
        }
        HashOf::Cookie(name) => cookie(headers, name).map(|value| of_bytes(value.as_bytes())),
        HashOf::Query(name) => {
            let mut parameters = uri.query()?.split('&').filter_map(|one| one.split_once('='));
            parameters.find(|(own, _)| *own == &**name).map(|(_, value)| of_bytes(value.as_bytes()))
        }
    }
}

/// The number of a client's address.
pub(crate) fn of_address(address: IpAddr) -> u64 {
    match address {
        IpAddr::V4(address) => of_bytes(&address.octets()),
        IpAddr::V6(address) => of_bytes(&address.octets()),
    }
}

/// The value of a cookie (RFC 6265 §4.2.1).
pub(crate) fn cookie<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let lines = headers.get_all(COOKIE).iter().filter_map(|line| line.to_str().ok());
    let mut cookies = lines.flat_map(|line| line.split(';')).filter_map(|one| one.trim().split_once('='));
    cookies.find(|(own, _)| *own == name).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_request_has_decides() {
        let mut headers = HeaderMap::new();
        headers.append("x-user", "ann".parse().unwrap());
        headers.append(COOKIE, "a=1; who=ann".parse().unwrap());
        headers.append(COOKIE, "b=2".parse().unwrap());
        let (uri, client) = (Uri::from_static("/p?q=ann&r"), "10.0.0.1".parse().unwrap());
        let number = |what: HashOf| of(&what, &uri, &headers, client);
        let ann = number(HashOf::Header("x-user".into()));
        assert!(ann.is_some());
        assert_eq!([number(HashOf::Cookie("who".into())), number(HashOf::Query("q".into()))], [ann, ann]);
        assert!(number(HashOf::Cookie("b".into())) != ann && number(HashOf::Cookie("b".into())).is_some());
        for missing in [HashOf::Header("x".into()), HashOf::Cookie("c".into()), HashOf::Query("r".into())] {
            assert_eq!(number(missing), None);
        }
        assert_eq!(number(HashOf::SourceIp), Some(of_address(client)));
    }
}
