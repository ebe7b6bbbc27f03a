//! What is told of requests: metrics, the list of open ones, traces.

use leno_model::AppProtocol;
use leno_telemetry::observe::Event;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::http1::mirror;
use crate::http2::{connect, echo, post};
use crate::support::{Mesh, raw, server, soon};

/// The value of the sample of `name` whose labels contain all of `parts`.
fn sample(page: &str, name: &str, parts: &[&str]) -> Option<f64> {
    let fits = |line: &&str| line.starts_with(&format!("{name}{{")) && parts.iter().all(|part| line.contains(part));
    page.lines().find(fits).map(|line| line.rsplit(' ').next().unwrap().parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_counted_by_both_ends_and_their_outcome() {
    let mesh = Mesh::new().await;
    mesh.service(AppProtocol::Http11, &[mirror().await]).await;
    let to = mesh.bridged().await;
    for body in ["", "hello"] {
        let length = body.len();
        let request =
            format!("POST /x HTTP/1.1\r\nhost: web\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}");
        assert!(raw(to, request.as_bytes()).await.starts_with("HTTP/1.1 200 "));
    }
    assert!(raw(to, b"GET * HTTP/1.1\r\nhost: web\r\nconnection: close\r\n\r\n").await.starts_with("HTTP/1.1 400 "));
    mesh.log.line(&["response_code=400"]).await;
    let page = mesh.metrics().await;
    let ok = [
        "reporter=\"waypoint\"",
        "source_principal=\"spiffe://cluster.local/ns/default/sa/client\"",
        "destination_service=\"web.default.svc.cluster.local\"",
        "destination_service_name=\"web\"",
        "destination_workload_namespace=\"default\"",
        "request_protocol=\"http\"",
        "response_code=\"200\"",
        "response_flags=\"-\"",
        "connection_security_policy=\"mutual_tls\"",
    ];
    assert_eq!(sample(&page, "istio_requests_total", &ok), Some(2.0), "{page}");
    assert_eq!(sample(&page, "istio_request_bytes_sum", &ok), Some(5.0));
    assert!(sample(&page, "istio_response_bytes_sum", &ok).is_some_and(|bytes| bytes > 100.0));
    assert_eq!(sample(&page, "istio_request_duration_milliseconds_count", &ok), Some(2.0));
    assert!(sample(&page, "istio_request_duration_milliseconds_sum", &ok).is_some_and(|ms| ms > 0.0));
    let refused = ["response_code=\"400\"", "response_flags=\"DPE\"", "destination_service_name=\"web\""];
    assert_eq!(sample(&page, "istio_requests_total", &refused), Some(1.0), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_is_counted_with_its_status_and_messages() {
    let mesh = Mesh::new().await;
    mesh.service(AppProtocol::Grpc, &[echo().await]).await;
    let mut sender = connect(mesh.bridged().await).await;
    let two_messages = "\0\0\0\0\x02hi\0\0\0\0\0";
    let response = soon("an answer", sender.send_request(post("/pkg.Service/Method", two_messages))).await.unwrap();
    soon("the body", http_body_util::BodyExt::collect(response.into_body())).await.unwrap();
    mesh.log.line(&["grpc_status=0"]).await;
    let page = mesh.metrics().await;
    let parts = ["request_protocol=\"grpc\"", "response_code=\"200\"", "grpc_response_status=\"0\""];
    assert_eq!(sample(&page, "istio_requests_total", &parts), Some(1.0), "{page}");
    for name in ["istio_request_messages_total", "istio_response_messages_total"] {
        assert_eq!(sample(&page, name, &["request_protocol=\"grpc\""]), Some(2.0), "{name}: {page}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_open_is_listed_and_what_ended_too() {
    let mesh = Mesh::new().await;
    let silent = server(|stream| async move {
        std::future::pending::<()>().await;
        drop(stream);
    });
    mesh.service(AppProtocol::Http11, &[silent.await]).await;
    let mut stream = TcpStream::connect(mesh.bridged().await).await.unwrap();
    stream.write_all(b"GET /waits?for=ever HTTP/1.1\r\nhost: web\r\n\r\n").await.unwrap();
    let open = |page: &str| {
        let events = page.lines().filter_map(|line| serde_json::from_str::<Event>(line).ok());
        events.into_iter().find_map(|event| match event {
            Event::Open(connection) if connection.destination.pod.is_some() => Some(connection),
            _ => None,
        })
    };
    let connection = soon("an open request", async {
        loop {
            if let Some(connection) = open(&mesh.connections().await) {
                return connection;
            }
        }
    })
    .await;
    let request = connection.request.unwrap();
    assert_eq!((request.method.as_str(), request.path.as_str(), request.status), ("GET", "/waits?for=ever", 0));
    assert_eq!(connection.source.identity.as_deref(), Some(crate::support::CLIENT));
    assert_eq!(connection.destination.pod.as_deref(), Some("web-0"));
    assert_eq!((connection.reporter.as_str(), connection.encrypted), ("waypoint", Some(true)));
    drop(stream);
    mesh.log.line(&["path=\"/waits?for=ever\"", "response_flags=\"DC\""]).await;
    // The line is written before what ended is kept.
    let ended = soon("what ended", async {
        loop {
            let page = mesh.connections().await;
            assert!(open(&page).is_none(), "{page}");
            if let Some(ended) = page.lines().find(|line| line.contains("\"event\":\"ended\"")) {
                return ended.to_owned();
            }
        }
    })
    .await;
    assert!(ended.contains(&format!("\"span\":\"{}\"", request.span)), "{ended}");
}

#[tokio::test(flavor = "multi_thread")]
async fn passed_bytes_are_listed_while_they_pass() {
    let mesh = Mesh::new().await;
    let greeting = server(|mut stream| async move {
        let _ = stream.write_all(b"220 welcome\r\n").await;
        std::future::pending::<()>().await;
    });
    mesh.service(AppProtocol::Tcp, &[greeting.await]).await;
    let mut stream = TcpStream::connect(mesh.bridged().await).await.unwrap();
    let mut greeting = [0; 13];
    soon("the greeting", tokio::io::AsyncReadExt::read_exact(&mut stream, &mut greeting)).await.unwrap();
    // The bytes are counted once they are written, which the reader may see first.
    let open = soon("the count", async {
        loop {
            let page = mesh.connections().await;
            let mut events = page.lines().filter_map(|line| serde_json::from_str::<Event>(line).ok());
            if let Some(Event::Open(open)) = events.find(|event| matches!(event, Event::Open(_)))
                && open.bytes_received > 0
            {
                return open;
            }
        }
    });
    let open = open.await;
    assert_eq!(
        (open.bytes_received, open.request.is_none(), open.destination.pod.as_deref()),
        (13, true, Some("web-0"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_span_is_told_under_which_the_program_goes_on() {
    let collector = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = format!("http://{}", collector.local_addr().unwrap()).parse().unwrap();
    let mesh = Mesh::with(|config| {
        config.waypoint.collector = Some(at);
        config.waypoint.collector_protocol = leno_telemetry::spans::Protocol::HttpJson;
    });
    let mesh = mesh.await;
    mesh.service(AppProtocol::Http11, &[mirror().await]).await;
    let request = "GET /x?secret=1 HTTP/1.1\r\nhost: web\r\nconnection: close\r\n\
        traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n\r\n";
    let answer = raw(mesh.bridged().await, request.as_bytes()).await;
    let (mut stream, _) = soon("the exporter", collector.accept()).await.unwrap();
    let mut told = String::new();
    while !told.contains("\"status") && !told.contains("endTimeUnixNano") {
        let mut read = [0; 4096];
        let count = soon("a span", tokio::io::AsyncReadExt::read(&mut stream, &mut read)).await.unwrap();
        told.push_str(std::str::from_utf8(&read[..count]).unwrap());
    }
    let field =
        |name: &str| told.split(&format!("\"{name}\":\"")).nth(1).unwrap().split('"').next().unwrap().to_owned();
    assert_eq!(
        (field("traceId"), field("parentSpanId")),
        ("0af7651916cd43dd8448eb211c80319c".into(), "b7ad6b7169203331".into())
    );
    let went_on = format!("traceparent=00-0af7651916cd43dd8448eb211c80319c-{}-01\n", field("spanId"));
    assert!(answer.contains(&went_on), "{went_on}: {answer}");
    assert!(!told.contains("secret"), "{told}");
}
