//! W3C Trace Context: a request's place in the trace that it belongs to.

use http::header::{HeaderMap, HeaderName, HeaderValue};

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// A request's place in its trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Trace {
    pub(crate) id: u128,
    /// The waypoint's own span.
    pub(crate) span: u64,
    /// The client's span, if the client named one.
    pub(crate) parent: Option<u64>,
    /// Whether the span is told to a collector.
    pub(crate) told: bool,
}

/// Continues the client's trace, or begins one (W3C Trace Context §3.2). `share` is the part of new traces whose spans are
/// told, `None` if no spans are told. What the client wrote is left as it is where the waypoint tells no span: a program's
/// parent is to be a span that somebody knows.
pub(crate) fn follow(headers: &mut HeaderMap, share: Option<f64>) -> Trace {
    let mut all = headers.get_all(TRACEPARENT).iter();
    // Of several, none says where the request belongs.
    let came = all.next().filter(|_| all.next().is_none()).and_then(|value| parse(value.as_bytes()));
    let span = rand::random::<u64>() | 1;
    if let Some((id, parent, flags)) = came {
        let told = share.is_some() && flags & SAMPLED != 0;
        if told {
            write(headers, id, span, flags);
        }
        return Trace { id, span, parent: Some(parent), told };
    }
    // It belongs to a trace that can't be read.
    headers.remove(TRACESTATE);
    let id = rand::random::<u128>() | 1;
    let told = share.is_some_and(|share| rand::random::<f64>() < share);
    write(headers, id, span, if told { SAMPLED } else { 0 });
    Trace { id, span, parent: None, told }
}

/// The flag `sampled`.
const SAMPLED: u8 = 1;

const LENGTH: usize = 55;

fn write(headers: &mut HeaderMap, id: u128, span: u64, flags: u8) {
    let mut text = *b"00-00000000000000000000000000000000-0000000000000000-00";
    let _: [u8; LENGTH] = text;
    hex(&mut text[3..35], &id.to_be_bytes());
    hex(&mut text[36..52], &span.to_be_bytes());
    hex(&mut text[53..], &[flags]);
    if let Ok(value) = HeaderValue::from_bytes(&text) {
        headers.insert(TRACEPARENT, value);
    }
}

fn hex(to: &mut [u8], bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for (pair, byte) in to.chunks_exact_mut(2).zip(bytes) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
}

/// Trace id, parent id and flags.
fn parse(value: &[u8]) -> Option<(u128, u64, u8)> {
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
    let parent = u64::from_str_radix(parent, 16).ok().filter(|id| *id != 0)?;
    Some((trace, parent, u8::from_str_radix(flags, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOUND: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn came(with: &'static str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(TRACEPARENT, HeaderValue::from_static(with));
        headers.insert(TRACESTATE, HeaderValue::from_static("a=b"));
        headers
    }

    #[test]
    fn a_trace_goes_on_under_the_span_that_is_told() {
        let mut headers = came(SOUND);
        let untold = follow(&mut headers, None);
        assert_eq!(
            (untold.id, untold.parent),
            (0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c, Some(0xb7ad_6b71_6920_3331))
        );
        assert!(!untold.told && headers[TRACEPARENT] == SOUND && headers.contains_key(TRACESTATE));
        // Whether a trace is told was decided where it began.
        let told = follow(&mut headers, Some(0.0));
        let now = headers[TRACEPARENT].to_str().expect("text");
        assert_eq!(now, format!("00-0af7651916cd43dd8448eb211c80319c-{:016x}-01", told.span));
        assert!(told.told && headers.contains_key(TRACESTATE));
        let mut headers = came("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00");
        assert!(!follow(&mut headers, Some(1.0)).told);
    }

    #[test]
    fn one_is_begun_where_there_is_none() {
        for (share, told) in [(None, false), (Some(0.0), false), (Some(1.0), true)] {
            let mut headers = HeaderMap::new();
            let trace = follow(&mut headers, share);
            let flags = u8::from(told);
            assert_eq!(parse(headers[TRACEPARENT].as_bytes()), Some((trace.id, trace.span, flags)), "{share:?}");
            assert_eq!((trace.told, trace.parent), (told, None));
        }
    }

    #[test]
    fn several_begin_anew() {
        let mut headers = came(SOUND);
        headers.append(TRACEPARENT, HeaderValue::from_static(SOUND));
        assert_eq!(follow(&mut headers, None).parent, None);
        assert!(headers.get_all(TRACEPARENT).iter().count() == 1 && headers[TRACEPARENT] != SOUND);
    }

    #[test]
    fn a_bad_one_begins_anew() {
        for bad in [
            "",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
        ] {
            let mut headers = came(bad);
            follow(&mut headers, None);
            assert!(!headers.contains_key(TRACESTATE), "{bad}");
            assert!(parse(headers[TRACEPARENT].as_bytes()).is_some(), "{bad}");
        }
    }
}
