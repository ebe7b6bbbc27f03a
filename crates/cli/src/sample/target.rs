//! The target of the client's requests, and a connection to it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, header};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::catalogue::EMOJI;
use super::generated::ResultsRequest;
use super::generated::voting_service_client::VotingServiceClient;
use super::upstream::{causes, endpoint};

/// A request that takes longer has failed.
const TIMEOUT: Duration = Duration::from_secs(5);

/// `http://HOST:PORT` for web, `grpc://HOST:PORT` for voting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    Web(String),
    Voting(String),
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (scheme, host) = text.split_once("://").ok_or_else(|| bad(text))?;
        let host = host.trim_end_matches('/');
        if !host.rsplit_once(':').is_some_and(|(name, port)| !name.is_empty() && port.parse::<u16>().is_ok()) {
            return Err(bad(text));
        }
        match scheme {
            "http" => Ok(Self::Web(host.to_owned())),
            "grpc" => Ok(Self::Voting(host.to_owned())),
            _ => Err(bad(text)),
        }
    }
}

fn bad(text: &str) -> String {
    format!("{text:?} is not a target; write http://HOST:PORT for web or grpc://HOST:PORT for voting")
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Web(host) => write!(f, "http://{host}"),
            Self::Voting(host) => write!(f, "grpc://{host}"),
        }
    }
}

/// One connection, used for one request at a time.
pub(super) enum Connection {
    Web { host: String, sender: SendRequest<Empty<Bytes>> },
    Voting(VotingServiceClient<tonic::transport::Channel>),
}

impl Connection {
    pub(super) async fn open(target: &Target) -> Result<Self, String> {
        limited("connecting", async {
            match target {
                Target::Web(host) => {
                    let stream =
                        TcpStream::connect(host).await.map_err(|error| format!("connecting to {host}: {error}"))?;
                    stream.set_nodelay(true).ok();
                    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
                        .await
                        .map_err(|error| format!("connecting to {host}: {error}"))?;
                    // It ends with `sender`. Errors are reported to the request.
                    tokio::spawn(connection);
                    Ok(Self::Web { host: host.clone(), sender })
                }
                Target::Voting(host) => {
                    let endpoint = endpoint(host).map_err(|error| format!("{error:#}"))?;
                    let channel = endpoint.connect().await.map_err(|error| causes(&error))?;
                    Ok(Self::Voting(VotingServiceClient::new(channel)))
                }
            }
        })
        .await
    }

    /// Whether a request can be sent without the peer having hung up meanwhile, as far as is known.
    pub(super) fn is_open(&self) -> bool {
        match self {
            Self::Web { sender, .. } => sender.is_ready(),
            // A channel finds out with the next request, and connects anew by itself.
            Self::Voting(_) => true,
        }
    }

    /// The `number`-th request; which page it asks for follows from the number.
    pub(super) async fn request(&mut self, number: u64, canary: &str) -> Result<(), String> {
        limited("waiting for an answer", async {
            match self {
                Self::Web { host, sender } => {
                    let request = Request::get(page(number))
                        .header(header::HOST, &*host)
                        .header("x-canary", canary)
                        .body(Empty::new())
                        .map_err(|error| error.to_string())?;
                    sender.ready().await.map_err(|error| causes(&error))?;
                    let response = sender.send_request(request).await.map_err(|error| causes(&error))?;
                    let status = response.status();
                    let body = response.into_body().collect().await.map_err(|error| causes(&error))?.to_bytes();
                    if status.is_success() {
                        Ok(())
                    } else {
                        Err(format!("{status}: {}", String::from_utf8_lossy(&body).trim_end()))
                    }
                }
                Self::Voting(client) => {
                    let request = ResultsRequest { canary: canary.to_owned() };
                    client.results(request).await.map(drop).map_err(|status| causes(&status))
                }
            }
        })
        .await
    }
}

/// Mostly votes, as people do; every fourth request reads.
fn page(number: u64) -> String {
    match number % 8 {
        0 => "/api/list".to_owned(),
        4 => "/api/leaderboard".to_owned(),
        _ => {
            let choice = usize::try_from(number % EMOJI.len() as u64).unwrap_or_default();
            format!("/api/vote?choice=:{}:", EMOJI[choice].0)
        }
    }
}

async fn limited<T>(doing: &str, work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    tokio::time::timeout(TIMEOUT, work)
        .await
        .unwrap_or_else(|_| Err(format!("{doing} took more than {} s", TIMEOUT.as_secs())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets() {
        for good in ["http://web-svc.emojivoto:80", "grpc://[::1]:8080"] {
            assert_eq!(good.parse::<Target>().map(|target| target.to_string()), Ok(good.to_owned()));
        }
        for bad in ["web-svc:80", "http://web-svc", "http://:80", "https://web-svc:80", "grpc://a:99999"] {
            assert!(bad.parse::<Target>().is_err(), "{bad}");
        }
    }
}
