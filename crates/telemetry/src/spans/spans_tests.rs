use std::time::UNIX_EPOCH;

use http::{HeaderMap, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value as Json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;

fn span(number: u64) -> Span {
    Span {
        trace: 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c,
        span: number,
        parent: Some(0xb7ad_6b71_6920_3331),
        began: UNIX_EPOCH + Duration::from_secs(1_700_000_000),
        took: Duration::from_micros(1500),
        name: "GET".to_owned(),
        attributes: vec![("http.response.status_code", Value::Number(503)), ("url.path", Value::Text("/x".to_owned()))],
        error: Some("no healthy endpoint".to_owned()),
    }
}

/// Reads one request and answers it.
async fn taken(stream: &mut TcpStream, answer: &[u8]) -> (String, Vec<u8>) {
    let mut read = Vec::new();
    loop {
        let mut more = [0; 65536];
        let count = soon(stream.read(&mut more)).await.unwrap();
        assert!(count > 0, "{}", String::from_utf8_lossy(&read));
        read.extend_from_slice(&more[..count]);
        let Some(end) = read.windows(4).position(|bytes| bytes == b"\r\n\r\n") else { continue };
        let head = String::from_utf8(read[..end].to_vec()).unwrap();
        let length = head.split_once("content-length: ").unwrap().1.lines().next().unwrap().parse::<usize>().unwrap();
        if read.len() == end + 4 + length {
            let status = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", answer.len());
            stream.write_all(&[status.as_bytes(), answer].concat()).await.unwrap();
            return (head, read[end + 4..].to_vec());
        }
    }
}

async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), what).await.expect("in time")
}

/// Spans that go to a listener; `dropped` counts.
async fn told(protocol: Protocol) -> (Spans, TcpListener, Counter) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let collector = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let dropped = Counter::default();
    let spans = Spans::new(dropped.clone());
    spans.tell(span(7));
    tokio::spawn(spans.clone().send(collector, protocol, "waypoint.shop".to_owned()));
    (spans, listener, dropped)
}

/// Returns when so many spans are counted as dropped.
async fn until(dropped: &Counter, count: u64) {
    soon(async {
        while dropped.get() < count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert_eq!(dropped.get(), count);
}

/// A number of variable length at the beginning, and what follows.
fn number(bytes: &[u8]) -> (u64, &[u8]) {
    let end = bytes.iter().position(|byte| byte & 0x80 == 0).unwrap();
    let number = bytes[..=end].iter().rev().fold(0, |number, byte| number << 7 | u64::from(byte & 0x7f));
    (number, &bytes[end + 1..])
}

/// What a message in protobuf has in a field, each time: its bytes as they are written. By the encoding's own rules, so that
/// fields with wrong numbers or of a wrong kind show.
fn fields(mut bytes: &[u8], wanted: u64) -> Vec<&[u8]> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let (key, rest) = number(bytes);
        let (length, rest) = match key & 7 {
            0 => (rest.len() - number(rest).1.len(), rest),
            1 => (8, rest),
            2 => (usize::try_from(number(rest).0).unwrap(), number(rest).1),
            other => panic!("no kind that OTLP uses: {other}"),
        };
        let (value, rest) = rest.split_at(length);
        if key >> 3 == wanted {
            found.push(value);
        }
        bytes = rest;
    }
    found
}

fn at<'a>(bytes: &'a [u8], path: &[u64]) -> &'a [u8] {
    path.iter().fold(bytes, |bytes, number| fields(bytes, *number).first().copied().unwrap_or_default())
}

/// Compares with the field numbers of opentelemetry/proto/trace/v1/trace.proto and its neighbours.
fn is_told(request: &[u8]) {
    let resource = at(request, &[1]);
    let service = at(resource, &[1, 1]);
    assert_eq!((at(service, &[1]), at(service, &[2, 1])), (&b"service.name"[..], &b"waypoint.shop"[..]));
    let spans = at(resource, &[2]);
    assert_eq!(at(spans, &[1, 1]), b"leno");
    let told = at(spans, &[2]);
    assert_eq!(at(told, &[1]), 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c_u128.to_be_bytes());
    assert_eq!(
        (at(told, &[2]), at(told, &[4])),
        (&[0, 0, 0, 0, 0, 0, 0, 7][..], &0xb7ad_6b71_6920_3331_u64.to_be_bytes()[..])
    );
    assert_eq!((at(told, &[5]), at(told, &[6])), (&b"GET"[..], &[2][..]));
    assert_eq!(at(told, &[7]), 1_700_000_000_000_000_000_u64.to_le_bytes());
    assert_eq!(at(told, &[8]), 1_700_000_000_001_500_000_u64.to_le_bytes());
    let attributes: Vec<_> =
        fields(told, 9).iter().map(|it| (at(it, &[1]), at(it, &[2, 1]), at(it, &[2, 3]))).collect();
    assert_eq!(attributes, [(&b"http.response.status_code"[..], &b""[..], &[0xf7, 3][..]), (b"url.path", b"/x", b"")]);
    assert_eq!((at(told, &[15, 2]), at(told, &[15, 3])), (&b"no healthy endpoint"[..], &[2][..]));
}

#[tokio::test]
async fn a_collector_gets_spans_in_protobuf() {
    let (spans, listener, dropped) = told(Protocol::default()).await;
    let (mut stream, _) = soon(listener.accept()).await.unwrap();
    let (head, body) = taken(&mut stream, b"").await;
    assert!(
        head.starts_with("POST /v1/traces HTTP/1.1\r\n") && head.contains("content-type: application/x-protobuf"),
        "{head}"
    );
    is_told(&body);
    // What it refuses of a message is not sent again.
    spans.tell(span(8));
    taken(&mut stream, b"\x0a\x07\x08\x01\x12\x03old").await;
    until(&dropped, 1).await;
    spans.tell(span(9));
    let (_, body) = taken(&mut stream, b"").await;
    let told = fields(at(&body, &[1, 2]), 2);
    assert_eq!(told.iter().map(|span| at(span, &[2])[7]).collect::<Vec<_>>(), [9]);
}

#[tokio::test]
async fn a_collector_gets_spans_by_grpc() {
    type Answered = (Option<&'static [u8]>, &'static str);
    const ANSWERS: [Answered; 4] = [
        (Some(b"\0\0\0\0\0"), "0"),
        (Some(b"\0\0\0\0\x09\x0a\x07\x08\x01\x12\x03old"), "0"),
        // An error has no body.
        (None, "8"),
        (Some(b"\0\0\0\0\0"), "0"),
    ];
    let (spans, listener, dropped) = told(Protocol::Grpc).await;
    let (heard, mut requests) = tokio::sync::mpsc::unbounded_channel();
    let answers = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let service = hyper::service::service_fn(move |request: http::Request<Incoming>| {
        let (heard, answers) = (heard.clone(), answers.clone());
        async move {
            let (head, body) = request.into_parts();
            heard.send((head, body.collect().await.unwrap().to_bytes())).unwrap();
            let (body, status) = ANSWERS[answers.fetch_add(1, std::sync::atomic::Ordering::Relaxed)];
            let response = Response::builder().header("content-type", "application/grpc");
            let status = http::HeaderValue::from_static(status);
            let Some(body) = body else {
                return response.header("grpc-status", status).body(Full::default().boxed());
            };
            let trailers = HeaderMap::from_iter([(http::HeaderName::from_static("grpc-status"), status)]);
            response.body(Full::new(Bytes::from_static(body)).with_trailers(async { Some(Ok(trailers)) }).boxed())
        }
    });
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let served = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(served.serve_connection(TokioIo::new(stream), service.clone()));
        }
    });
    let (head, body) = soon(requests.recv()).await.unwrap();
    assert_eq!(head.uri.path(), "/opentelemetry.proto.collector.trace.v1.TraceService/Export");
    assert_eq!(
        (&head.headers["content-type"], &head.headers["te"]),
        (&"application/grpc".parse().unwrap(), &"trailers".parse().unwrap())
    );
    let (frame, message) = body.split_at(5);
    assert_eq!(frame, [&[0][..], &u32::try_from(message.len()).unwrap().to_be_bytes()].concat());
    is_told(message);
    // It takes a part, then nothing, then all.
    for lost in [1, 2, 2] {
        spans.tell(span(8));
        soon(requests.recv()).await.unwrap();
        until(&dropped, lost).await;
    }
}

#[tokio::test]
async fn a_collector_gets_spans_over_one_connection() {
    let (spans, listener, dropped) = told(Protocol::HttpJson).await;
    let (mut stream, _) = listener.accept().await.unwrap();
    let (head, body) = taken(&mut stream, b"{}").await;
    let body: Json = serde_json::from_slice(&body).unwrap();
    assert!(
        head.starts_with("POST /v1/traces HTTP/1.1\r\n") && head.contains("content-type: application/json"),
        "{head}"
    );
    let resource = &body["resourceSpans"][0];
    assert_eq!(resource["resource"]["attributes"][0]["value"]["stringValue"], "waypoint.shop");
    let told = &resource["scopeSpans"][0]["spans"][0];
    for (name, value) in [
        ("traceId", "0af7651916cd43dd8448eb211c80319c"),
        ("spanId", "0000000000000007"),
        ("parentSpanId", "b7ad6b7169203331"),
        ("startTimeUnixNano", "1700000000000000000"),
        ("endTimeUnixNano", "1700000000001500000"),
    ] {
        assert_eq!(told[name], value, "{told}");
    }
    assert_eq!((&told["kind"], &told["status"]["code"]), (&2.into(), &2.into()), "{told}");
    assert_eq!(told["attributes"][0]["value"]["intValue"], "503", "{told}");
    // Many at once, on the same connection.
    for number in 0..BATCH as u64 + 1 {
        spans.tell(span(number));
    }
    let mut count = 0;
    while count < BATCH + 1 {
        let (_, body) = taken(&mut stream, b"{}").await;
        let body: Json = serde_json::from_slice(&body).unwrap();
        count += body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap().len();
    }
    assert_eq!((count, dropped.get()), (BATCH + 1, 0));
    for (number, answer) in
        [(1, &br#"{"partialSuccess":{"rejectedSpans":"1"}}"#[..]), (2, br#"{"partialSuccess":{"rejectedSpans":1}}"#)]
    {
        spans.tell(span(8));
        taken(&mut stream, answer).await;
        until(&dropped, number).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_collector_costs_spans_and_nothing_else() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let collector = format!("http://127.0.0.1:{}", listener.local_addr().unwrap().port()).parse().unwrap();
    let dropped = Counter::default();
    let spans = Spans::new(dropped.clone());
    // It accepts, and never answers.
    let silent = tokio::spawn(spans.clone().send(collector, Protocol::default(), "waypoint.shop".to_owned()));
    for number in 0..2 * CAPACITY as u64 {
        spans.tell(span(number));
    }
    assert_eq!(dropped.get(), CAPACITY as u64, "what found no place");
    while dropped.get() < (CAPACITY + BATCH) as u64 {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!(!silent.is_finished());
}

#[test]
fn a_collector_is_named_by_a_url() {
    for (text, protocol, authority, path) in [
        ("http://otel.observe:4318/", Protocol::HttpJson, "otel.observe:4318", "/v1/traces"),
        ("http://[::1]/in/front", Protocol::HttpProtobuf, "[::1]:4318", "/in/front/v1/traces"),
        ("http://otel", Protocol::Grpc, "otel:4317", "/opentelemetry.proto.collector.trace.v1.TraceService/Export"),
    ] {
        let collector: Collector = text.parse().unwrap();
        assert_eq!((collector.authority(protocol).as_str(), collector.path(protocol).as_str()), (authority, path));
    }
    let protocols = ["http/protobuf", "http/json", "grpc"].map(|text| text.parse::<Protocol>().unwrap());
    assert_eq!(protocols, [Protocol::HttpProtobuf, Protocol::HttpJson, Protocol::Grpc]);
    assert!("http".parse::<Protocol>().unwrap_err().contains("write http/protobuf, http/json or grpc"));
    for wrong in ["otel:4318", "https://otel:4318", "", "grpc://otel"] {
        assert!(wrong.parse::<Collector>().unwrap_err().contains("write http://HOST:PORT"), "{wrong}");
    }
}
