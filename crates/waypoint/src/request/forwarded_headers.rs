//! Who calls, told to the program; and the id by which a request is found again.

use http::header::{HeaderMap, HeaderName, HeaderValue};
use leno_model::Identity;

const CLIENT_CERT: HeaderName = HeaderName::from_static("x-forwarded-client-cert");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Removes what a client says of its own certificate, and with `own` says what it has proved.
pub(crate) fn client_cert(headers: &mut HeaderMap, client: &Identity, own: Option<&Identity>) {
    headers.remove(CLIENT_CERT);
    if let Some(own) = own
        && let Ok(value) = HeaderValue::from_str(&format!("By={own};URI={client}"))
    {
        headers.insert(CLIENT_CERT, value);
    }
}

/// The scheme that the client used, unless it says that it is a proxy itself.
pub(crate) fn forwarded_proto(headers: &mut HeaderMap) {
    if !headers.contains_key(FORWARDED_PROTO) {
        headers.insert(FORWARDED_PROTO, HeaderValue::from_static("http"));
    }
}

/// The request's id (a random UUID, RFC 9562 §5.4, if it has none).
pub(crate) fn request_id(headers: &mut HeaderMap) -> Option<HeaderValue> {
    if let Some(id) = headers.get(REQUEST_ID) {
        return Some(id.clone());
    }
    let bits = rand::random::<u128>() & !(0xf << 76) & !(0xc << 60) | (0x4 << 76) | (0x8 << 60);
    let hex = format!("{bits:032x}");
    let id = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-");
    let id = HeaderValue::from_str(&id).ok()?;
    headers.insert(REQUEST_ID, id.clone());
    Some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_cannot_say_who_it_is() {
        let identity = |text: &str| text.parse::<Identity>().expect("an identity");
        let (client, own) = (identity("spiffe://td/ns/a/sa/client"), identity("spiffe://td/ns/a/sa/waypoint"));
        let mut headers = HeaderMap::new();
        headers.append(CLIENT_CERT, HeaderValue::from_static("URI=spiffe://td/ns/a/sa/admin"));
        headers.append(CLIENT_CERT, HeaderValue::from_static("URI=spiffe://td/ns/a/sa/root"));
        client_cert(&mut headers, &client, None);
        assert!(headers.is_empty());
        headers.append(CLIENT_CERT, HeaderValue::from_static("URI=spiffe://td/ns/a/sa/admin"));
        client_cert(&mut headers, &client, Some(&own));
        let all = headers.get_all(CLIENT_CERT).iter().collect::<Vec<_>>();
        assert_eq!(all, ["By=spiffe://td/ns/a/sa/waypoint;URI=spiffe://td/ns/a/sa/client"]);
    }

    #[test]
    fn an_id_is_kept_or_made() {
        let mut headers = HeaderMap::new();
        let id = request_id(&mut headers).expect("an id");
        let text = id.to_str().expect("text");
        assert_eq!((text.len(), &text[14..15]), (36, "4"), "{text}");
        assert!(matches!(&text[19..20], "8" | "9" | "a" | "b"), "{text}");
        assert_eq!(request_id(&mut headers).expect("the same"), id);
    }
}
