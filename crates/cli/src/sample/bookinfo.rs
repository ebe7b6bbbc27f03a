//! Bookinfo's shape: productpage → details, productpage → reviews → ratings, all over HTTP/1.1.
//!
//! productpage can take processor time for each page on its only thread, as the original does, which is one Python process.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::{Args, ValueEnum};
use http::{Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tower_service::Service;

use super::serve::{Protocol, listen, serve};

/// A call that takes longer has failed.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The filler of a page, so that it is as long as the original's: about 5 KiB.
const PARAGRAPH: &str =
    "The comedy of a man who married twice at a distance and of the twins who kept taking one another's place. ";

/// The parts of Bookinfo.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// The page of a book; calls details and reviews
    Productpage,
    /// Facts about a book
    Details,
    /// What readers say; calls ratings
    Reviews,
    /// Stars
    Ratings,
}

/// Settings of a part.
#[derive(Debug, Args)]
pub(crate) struct BookinfoArgs {
    /// Which part it is.
    part: Part,

    /// Port to listen on, and of the other parts.
    #[arg(long, env = "BOOKINFO_PORT", default_value_t = 9080)]
    port: u16,

    /// Namespace of the other parts.
    #[arg(long, env = "BOOKINFO_NAMESPACE", default_value = "bookinfo")]
    namespace: String,

    /// Microseconds of processor time for each page of productpage, during which it does nothing else.
    #[arg(long, env = "BOOKINFO_WORK_MICROS", default_value_t = 0)]
    work_micros: u64,
}

/// How the other parts are found: HOST:PORT.
pub(super) type Find = Box<dyn Fn(Part) -> String + Send + Sync>;

struct Book {
    part: Part,
    find: Find,
    work: Duration,
    client: Client<HttpConnector, Empty<Bytes>>,
}

/// A status and why.
type Refusal = (StatusCode, String);

impl Book {
    async fn respond(&self, request: &Request<Incoming>) -> Result<(&'static str, String), Refusal> {
        if request.method() != Method::GET {
            return Err((StatusCode::METHOD_NOT_ALLOWED, "only GET is served".to_owned()));
        }
        let json = |value: Value| Ok(("application/json", value.to_string()));
        match (self.part, request.uri().path()) {
            (_, "/health") => json(json!({ "status": "healthy" })),
            (Part::Productpage, "/productpage") => self.page().await,
            (Part::Details, "/details/0") => json(json!({
                "id": 0, "author": "William Shakespeare", "year": 1595, "type": "paperback", "pages": 200,
                "publisher": "PublisherA", "language": "English", "ISBN-10": "1234567890", "ISBN-13": "123-1234567890",
            })),
            (Part::Reviews, "/reviews/0") => {
                let ratings = self.call(Part::Ratings, "/ratings/0").await?;
                let review = |number: usize, text: &str| {
                    json!({
                        "reviewer": format!("Reviewer{number}"), "text": text,
                        "rating": { "stars": ratings["ratings"][format!("Reviewer{number}")], "color": "black" },
                    })
                };
                json(json!({ "id": 0, "reviews": [
                    review(1, "An extremely entertaining play. The slapstick humour is refreshing!"),
                    review(2, "Absolutely fun and entertaining. The play lacks thematic depth, though."),
                ] }))
            }
            (Part::Ratings, "/ratings/0") => json(json!({ "id": 0, "ratings": { "Reviewer1": 5, "Reviewer2": 4 } })),
            (_, path) => Err((StatusCode::NOT_FOUND, format!("no page {path}"))),
        }
    }

    async fn page(&self) -> Result<(&'static str, String), Refusal> {
        // One after the other, as the original calls them.
        let details = self.call(Part::Details, "/details/0").await?;
        let reviews = self.call(Part::Reviews, "/reviews/0").await?;
        let begun = Instant::now();
        while begun.elapsed() < self.work {
            std::hint::spin_loop();
        }
        let said: String = reviews["reviews"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|review| {
                format!("<blockquote>{} ({} stars)</blockquote>\n", review["text"], review["rating"]["stars"])
            })
            .collect();
        let body = format!(
            "<!doctype html><meta charset=utf-8><title>The Comedy of Errors</title>\n<p>{}</p>\n<pre>{details}</pre>\n{said}",
            PARAGRAPH.repeat(40)
        );
        Ok(("text/html; charset=utf-8", body))
    }

    async fn call(&self, part: Part, path: &str) -> Result<Value, Refusal> {
        let host = (self.find)(part);
        let failed = |why: String| (StatusCode::BAD_GATEWAY, format!("{host}: {why}"));
        let uri: Uri = format!("http://{host}{path}").parse().map_err(|error| failed(format!("{error}")))?;
        let answering = async {
            let response = self.client.get(uri).await.map_err(|error| failed(super::upstream::causes(&error)))?;
            let status = response.status();
            let body = response.into_body().collect().await.map_err(|error| failed(error.to_string()))?.to_bytes();
            if !status.is_success() {
                return Err(failed(format!("{status}: {}", String::from_utf8_lossy(&body).trim_end())));
            }
            serde_json::from_slice(&body).map_err(|error| failed(error.to_string()))
        };
        tokio::time::timeout(TIMEOUT, answering).await.unwrap_or_else(|_| Err(failed("no answer in time".to_owned())))
    }
}

#[derive(Clone)]
struct BookService(Arc<Book>);

impl Service<Request<Incoming>> for BookService {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let book = self.0.clone();
        Box::pin(async move {
            let (status, kind, body) = match book.respond(&request).await {
                Ok((kind, body)) => (StatusCode::OK, kind, body),
                Err((status, why)) => (status, "text/plain; charset=utf-8", format!("{why}\n")),
            };
            let mut response = Response::new(Full::from(body));
            *response.status_mut() = status;
            response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
            Ok(response)
        })
    }
}

pub(super) async fn run(args: BookinfoArgs) -> anyhow::Result<()> {
    let (namespace, port) = (args.namespace, args.port);
    let find = Box::new(move |part: Part| {
        let name = match part {
            Part::Productpage => "productpage",
            Part::Details => "details",
            Part::Reviews => "reviews",
            Part::Ratings => "ratings",
        };
        format!("{name}.{namespace}:{port}")
    });
    serve_on(listen(port).await?, args.part, find, Duration::from_micros(args.work_micros)).await
}

pub(super) async fn serve_on(listener: TcpListener, part: Part, find: Find, work: Duration) -> anyhow::Result<()> {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client = Client::builder(TokioExecutor::new()).build(connector);
    serve(listener, Protocol::Http1, BookService(Arc::new(Book { part, find, work, client }))).await
}
