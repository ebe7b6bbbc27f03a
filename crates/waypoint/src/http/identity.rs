//! Who calls, told to the program; and the ids by which a request is found again.

use std::fmt::Write;

use http::header::{HeaderMap, HeaderName, HeaderValue};
use leno_model::Identity;

const CLIENT_CERT: HeaderName = HeaderName::from_static("x-forwarded-client-cert");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

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

/// Continues the client's trace, or begins one (W3C Trace Context §3.2). Returns the trace's id.
pub(crate) fn trace(headers: &mut HeaderMap) -> u128 {
    let came = headers.get(TRACEPARENT).and_then(|value| parse(value.as_bytes()));
    if came.is_none() {
        // It belongs to a trace that can't be read.
        headers.remove(TRACESTATE);
    }
    let (trace, flags) = came.unwrap_or_else(|| (rand::random::<u128>() | 1, 0));
    let mut text = String::with_capacity(55);
    let _ = write!(text, "00-{trace:032x}-{:016x}-{flags:02x}", rand::random::<u64>() | 1);
    if let Ok(value) = HeaderValue::from_str(&text) {
        headers.insert(TRACEPARENT, value);
    }
    trace
}

/// Trace id and flags.
fn parse(value: &[u8]) -> Option<(u128, u8)> {
    let text = std::str::from_utf8(value).ok()?;
    let is_hex = |text: &str| text.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'a'..=b'f'));
    let mut parts = text.splitn(5, '-');
    let (version, trace, parent, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let later = parts.next().is_some();
    let sound = (version.len(), trace.len(), parent.len(), flags.len()) == (2, 32, 16, 2)
        && [version, trace, parent, flags].into_iter().all(is_hex)
        && version != "ff"
        && !(later && version == "00");
    let trace = u128::from_str_radix(trace, 16).ok().filter(|id| sound && *id != 0)?;
    u64::from_str_radix(parent, 16).ok().filter(|id| *id != 0)?;
    Some((trace, u8::from_str_radix(flags, 16).ok()?))
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
    fn a_trace_goes_on_and_a_bad_one_begins_anew() {
        let sound = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let mut headers = HeaderMap::new();
        headers.insert(TRACEPARENT, HeaderValue::from_static(sound));
        headers.insert(TRACESTATE, HeaderValue::from_static("a=b"));
        assert_eq!(trace(&mut headers), 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c);
        let now = headers[TRACEPARENT].to_str().expect("text").to_owned();
        assert!(
            now.starts_with("00-0af7651916cd43dd8448eb211c80319c-") && now.ends_with("-01") && now != sound,
            "{now}"
        );
        assert!(headers.contains_key(TRACESTATE));
        for bad in [
            "",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
        ] {
            headers.insert(TRACEPARENT, HeaderValue::from_static(bad));
            headers.insert(TRACESTATE, HeaderValue::from_static("a=b"));
            trace(&mut headers);
            assert!(!headers.contains_key(TRACESTATE), "{bad}");
            assert!(parse(headers[TRACEPARENT].as_bytes()).is_some(), "{bad}");
        }
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
