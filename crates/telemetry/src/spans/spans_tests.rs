use std::time::UNIX_EPOCH;

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
async fn taken(stream: &mut TcpStream, status: &str) -> (String, Json) {
    let mut read = Vec::new();
    loop {
        let mut more = [0; 65536];
        let count = tokio::time::timeout(Duration::from_secs(20), stream.read(&mut more)).await.unwrap().unwrap();
        assert!(count > 0, "{}", String::from_utf8_lossy(&read));
        read.extend_from_slice(&more[..count]);
        let text = String::from_utf8_lossy(&read).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        if let Ok(body) = serde_json::from_str(body) {
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\n\r\n{{}}");
            stream.write_all(answer.as_bytes()).await.unwrap();
            return (head.to_owned(), body);
        }
    }
}

#[tokio::test]
async fn a_collector_gets_spans_over_one_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let collector = format!("http://127.0.0.1:{}", listener.local_addr().unwrap().port()).parse().unwrap();
    let dropped = Counter::default();
    let spans = Spans::new(dropped.clone());
    spans.tell(span(7));
    tokio::spawn(spans.clone().send(collector, "waypoint.shop".to_owned()));
    let (mut stream, _) = listener.accept().await.unwrap();
    let (head, body) = taken(&mut stream, "200 OK").await;
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
        let (_, body) = taken(&mut stream, "200 OK").await;
        count += body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap().len();
    }
    assert_eq!((count, dropped.get()), (BATCH + 1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_silent_collector_costs_spans_and_nothing_else() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let collector = format!("http://127.0.0.1:{}", listener.local_addr().unwrap().port()).parse().unwrap();
    let dropped = Counter::default();
    let spans = Spans::new(dropped.clone());
    // It accepts, and never answers.
    let silent = tokio::spawn(spans.clone().send(collector, "waypoint.shop".to_owned()));
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
    let collector: Collector = "http://otel.observe:4318/".parse().unwrap();
    assert_eq!(collector, Collector { host: "otel.observe".into(), port: 4318, path: "/v1/traces".into() });
    let collector: Collector = "http://[::1]/in/front".parse().unwrap();
    assert_eq!(collector, Collector { host: "::1".into(), port: 4318, path: "/in/front/v1/traces".into() });
    for wrong in ["otel:4318", "https://otel:4318", "", "grpc://otel"] {
        assert!(wrong.parse::<Collector>().unwrap_err().contains("write http://HOST:PORT"), "{wrong}");
    }
}
