//! The sample applications: Emojivoto's shape (web → emoji, web → voting, and a client that votes for ever) and
//! Bookinfo's as small servers in this binary, so that a demonstration or a study needs nothing installed.
//!
//! The servers know nothing of a mesh. Every message carries its sender's canary, so that a packet capture shows
//! whether traffic was readable.

use std::process::ExitCode;

use clap::Subcommand;

mod bookinfo;
mod catalogue;
mod client;
mod emoji;
mod report;
mod serve;
mod target;
mod upstream;
mod voting;
mod web;

pub(crate) use report::{Interval, Latencies};

/// Generated from `proto/sample.proto` by `cargo xtask codegen`.
#[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all, clippy::unwrap_used)]
mod generated {
    include!("generated/mod.rs");
    pub(super) use leno::sample::v1::*;
}

/// The parts of the sample application.
#[derive(Debug, Subcommand)]
pub(crate) enum SampleCommand {
    /// HTTP/1.1 front end; calls emoji and voting over gRPC.
    Web(web::WebArgs),
    /// gRPC service that knows the emoji.
    Emoji(emoji::EmojiArgs),
    /// gRPC service that counts the votes.
    Voting(voting::VotingArgs),
    /// A part of Bookinfo: productpage, details, reviews or ratings.
    Bookinfo(bookinfo::BookinfoArgs),
    /// Steady load on one of the others; one JSON line of results per interval.
    Client(client::ClientArgs),
}

/// Runs one part until it is told to stop.
pub(crate) fn run(command: SampleCommand) -> anyhow::Result<ExitCode> {
    // One thread: a sample pod should cost less than the mesh it demonstrates.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match command {
            SampleCommand::Web(args) => web::run(args).await,
            SampleCommand::Emoji(args) => emoji::run(args).await,
            SampleCommand::Voting(args) => voting::run(args).await,
            SampleCommand::Bookinfo(args) => bookinfo::run(args).await,
            SampleCommand::Client(args) => client::run(args).await,
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::target::{Connection, Target};
    use super::{bookinfo, emoji, voting, web};

    async fn local() -> (TcpListener, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        (listener, address)
    }

    #[tokio::test]
    async fn a_vote_goes_through_all_three() {
        let (emoji_listener, emoji_host) = local().await;
        let (voting_listener, voting_host) = local().await;
        let (web_listener, web_host) = local().await;
        tokio::spawn(emoji::serve_on(emoji_listener, String::new()));
        tokio::spawn(voting::serve_on(voting_listener, String::new()));
        let voting_of_web = voting_host.clone();
        tokio::spawn(async move { web::serve_on(web_listener, &emoji_host, &voting_of_web, String::new()).await });

        let mut client = Connection::open(&Target::Web(web_host)).await.expect("connects to web");
        for number in 0..16 {
            client.request(number, "canary").await.expect("web answers");
        }
        let mut client = Connection::open(&Target::Voting(voting_host)).await.expect("connects to voting");
        client.request(0, "canary").await.expect("voting answers");
    }

    #[tokio::test]
    async fn a_book_needs_all_its_parts() {
        use bookinfo::Part;
        use http_body_util::BodyExt as _;

        let mut listeners = Vec::new();
        let mut hosts = Vec::new();
        for part in [Part::Productpage, Part::Details, Part::Reviews, Part::Ratings] {
            let (listener, host) = local().await;
            listeners.push((part, listener));
            hosts.push((part, host));
        }
        let page = hosts[0].1.clone();
        let mut served = Vec::new();
        for (part, listener) in listeners {
            let hosts = hosts.clone();
            let find = Box::new(move |wanted| {
                hosts.iter().find(|(part, _)| *part == wanted).map(|(_, host)| host.clone()).expect("is known")
            });
            served.push(tokio::spawn(bookinfo::serve_on(listener, part, find, std::time::Duration::ZERO)));
        }
        let ask = async || {
            let stream = tokio::net::TcpStream::connect(&page).await.expect("connects");
            let stream = hyper_util::rt::TokioIo::new(stream);
            let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.expect("speaks HTTP");
            tokio::spawn(connection);
            let request = http::Request::get("/productpage?u=normal").header("host", &page);
            let request = request.body(http_body_util::Empty::<bytes::Bytes>::new()).expect("is a request");
            let response = sender.send_request(request).await.expect("answers");
            let status = response.status().as_u16();
            let body = response.into_body().collect().await.expect("has a body").to_bytes();
            (status, String::from_utf8_lossy(&body).into_owned())
        };
        let (status, body) = ask().await;
        assert!(status == 200 && body.len() > 4000, "{status} {body}");
        for words in ["William Shakespeare", "Absolutely fun", "(5 stars)"] {
            assert!(body.contains(words), "{words}: {body}");
        }
        // ratings is two calls away.
        served[3].abort();
        assert!((&mut served[3]).await.is_err());
        let (status, body) = ask().await;
        assert!(status == 502 && body.contains(&hosts[3].1), "{status} {body}");
    }

    #[tokio::test]
    async fn a_dead_service_is_an_error_with_its_cause() {
        let (emoji_listener, emoji_host) = local().await;
        let (dead, dead_host) = local().await;
        drop(dead);
        let (web_listener, web_host) = local().await;
        tokio::spawn(emoji::serve_on(emoji_listener, String::new()));
        tokio::spawn(async move { web::serve_on(web_listener, &emoji_host, &dead_host, String::new()).await });

        let mut client = Connection::open(&Target::Web(web_host)).await.expect("connects to web");
        let error = client.request(1, "canary").await.expect_err("voting is dead");
        assert!(error.starts_with("502") && error.contains("onnection refused"), "{error}");
    }
}
