//! The front end.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use clap::Args;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use serde_json::json;
use tokio::net::TcpListener;
use tonic::{Code, Status};
use tower_service::Service;

use super::generated::emoji_service_client::EmojiServiceClient;
use super::generated::voting_service_client::VotingServiceClient;
use super::generated::{FindRequest, ListRequest, ResultsRequest, VoteRequest};
use super::serve::{Protocol, listen, serve};
use super::upstream::{Upstream, causes};

/// Settings of the front end.
#[derive(Debug, Args)]
pub(crate) struct WebArgs {
    /// Port to listen on.
    #[arg(long, env = "WEB_PORT", default_value_t = 8080)]
    port: u16,

    /// HOST:PORT of the emoji service.
    #[arg(long, env = "EMOJISVC_HOST", default_value = "emoji-svc.emojivoto:8080")]
    emoji: String,

    /// HOST:PORT of the voting service.
    #[arg(long, env = "VOTINGSVC_HOST", default_value = "voting-svc.emojivoto:8080")]
    voting: String,

    /// Text put into every request to the services and every response.
    #[arg(long, env = "CANARY", default_value = "")]
    canary: String,
}

struct Web {
    emoji: Upstream,
    voting: Upstream,
    canary: String,
}

/// The leaderboard's page, which fetches the votes by itself: nobody is asked to make it.
const BOARD: &str = "<!doctype html><meta charset=utf-8><title>Leaderboard</title><ol id=board></ol>
<script>
fetch('/api/leaderboard').then(answer => answer.json()).then(({leaderboard}) => {
  for (const {shortcode, votes} of leaderboard) {
    const line = document.createElement('li');
    line.textContent = `${shortcode}: ${votes}`;
    board.append(line);
  }
});
</script>
";

/// A page, and how to write it.
struct Page {
    content_type: &'static str,
    body: String,
}

impl Page {
    fn json(value: &serde_json::Value) -> Self {
        Self { content_type: "application/json", body: value.to_string() }
    }
}

impl Web {
    async fn respond(&self, request: &Request<Incoming>) -> Result<Page, Status> {
        if request.method() != Method::GET {
            return Err(Status::unimplemented("only GET is served"));
        }
        match request.uri().path() {
            "/" => self.index().await,
            "/leaderboard" => Ok(Page { content_type: "text/html; charset=utf-8", body: BOARD.to_owned() }),
            "/api/list" => self.list().await,
            "/api/vote" => self.vote(choice(request.uri().query().unwrap_or_default())).await,
            "/api/leaderboard" => self.leaderboard().await,
            "/healthz" => {
                // Ready only when both services answer: a client that waits for this loses no request
                // to the order in which pods come up.
                self.list().await?;
                self.leaderboard().await
            }
            path => Err(Status::not_found(format!("no page {path}"))),
        }
    }

    async fn index(&self) -> Result<Page, Status> {
        let request = ListRequest { canary: self.canary.clone() };
        let list = EmojiServiceClient::new(self.emoji.channel()).list(request).await?.into_inner();
        let mut body = String::from("<!doctype html><meta charset=utf-8><title>Emoji vote</title><ul>\n");
        for emoji in list.emoji {
            let (code, character) = (emoji.shortcode, emoji.unicode);
            // Writing to a String can't fail.
            let _ = writeln!(body, "<li><a href=\"/api/vote?choice=:{code}:\">{character} {code}</a>");
        }
        body.push_str("</ul><a href=\"/leaderboard\">Leaderboard</a>\n");
        Ok(Page { content_type: "text/html; charset=utf-8", body })
    }

    async fn list(&self) -> Result<Page, Status> {
        let request = ListRequest { canary: self.canary.clone() };
        let list = EmojiServiceClient::new(self.emoji.channel()).list(request).await?.into_inner();
        let emoji: Vec<_> =
            list.emoji.iter().map(|e| json!({ "shortcode": e.shortcode, "unicode": e.unicode })).collect();
        Ok(Page::json(&json!({ "emoji": emoji, "canary": self.canary })))
    }

    async fn vote(&self, shortcode: &str) -> Result<Page, Status> {
        let find = FindRequest { shortcode: shortcode.to_owned(), canary: self.canary.clone() };
        let found = EmojiServiceClient::new(self.emoji.channel()).find(find).await?.into_inner();
        let emoji = found.emoji.ok_or_else(|| Status::not_found(format!("no emoji :{shortcode}:")))?;
        let vote = VoteRequest { shortcode: emoji.shortcode.clone(), canary: self.canary.clone() };
        let voted = VotingServiceClient::new(self.voting.channel()).vote(vote).await?.into_inner();
        Ok(Page::json(&json!({ "shortcode": emoji.shortcode, "votes": voted.votes, "canary": self.canary })))
    }

    async fn leaderboard(&self) -> Result<Page, Status> {
        let request = ResultsRequest { canary: self.canary.clone() };
        let mut results = VotingServiceClient::new(self.voting.channel()).results(request).await?.into_inner().results;
        results.sort_by_key(|result| std::cmp::Reverse(result.votes));
        let board: Vec<_> = results.iter().map(|r| json!({ "shortcode": r.shortcode, "votes": r.votes })).collect();
        Ok(Page::json(&json!({ "leaderboard": board, "canary": self.canary })))
    }
}

/// The emoji voted for, with or without its colons.
fn choice(query: &str) -> &str {
    let value = query.split('&').find_map(|pair| pair.strip_prefix("choice=")).unwrap_or_default();
    let value = value.strip_prefix("%3A").unwrap_or(value).trim_start_matches(':');
    value.strip_suffix("%3A").unwrap_or(value).trim_end_matches(':')
}

fn response(answer: Result<Page, Status>) -> Response<Full<Bytes>> {
    let (status, page) = match answer {
        Ok(page) => (StatusCode::OK, page),
        Err(status) => {
            let code = match status.code() {
                Code::NotFound => StatusCode::NOT_FOUND,
                Code::InvalidArgument => StatusCode::BAD_REQUEST,
                Code::Unimplemented => StatusCode::METHOD_NOT_ALLOWED,
                Code::DeadlineExceeded | Code::Cancelled => StatusCode::GATEWAY_TIMEOUT,
                _ => StatusCode::BAD_GATEWAY,
            };
            (code, Page { content_type: "text/plain; charset=utf-8", body: format!("{}\n", causes(&status)) })
        }
    };
    let mut response = Response::new(Full::from(page.body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(page.content_type));
    response
}

#[derive(Clone)]
struct WebService(Arc<Web>);

impl Service<Request<Incoming>> for WebService {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let web = self.0.clone();
        Box::pin(async move { Ok(response(web.respond(&request).await)) })
    }
}

pub(super) async fn run(args: WebArgs) -> anyhow::Result<()> {
    serve_on(listen(args.port).await?, &args.emoji, &args.voting, args.canary).await
}

/// `emoji` and `voting` as HOST:PORT.
pub(super) async fn serve_on(listener: TcpListener, emoji: &str, voting: &str, canary: String) -> anyhow::Result<()> {
    let web = Web { emoji: Upstream::new(emoji)?, voting: Upstream::new(voting)?, canary };
    serve(listener, Protocol::Http1, WebService(Arc::new(web))).await
}

#[cfg(test)]
mod tests {
    use super::choice;

    #[test]
    fn colons_around_a_choice_are_optional() {
        for query in ["choice=:cat:", "choice=cat", "choice=%3Acat%3A", "a=b&choice=:cat:"] {
            assert_eq!(choice(query), "cat", "{query}");
        }
        assert_eq!(choice("choise=cat"), "");
    }
}
