//! The sample application: Emojivoto's shape (web → emoji, web → voting, and a client that votes
//! for ever) as small servers in this binary, so that a demonstration needs nothing installed.
//!
//! The servers know nothing of a mesh. Every message carries its sender's canary, so that a packet capture shows
//! whether traffic was readable.

use std::process::ExitCode;

use clap::Subcommand;

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
            SampleCommand::Client(args) => client::run(args).await,
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::target::{Connection, Target};
    use super::{emoji, voting, web};

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
