//! The voting service.

use std::collections::BTreeMap;

use clap::Args;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tonic::{Request, Response, Status};

use super::generated::voting_service_server::{VotingService, VotingServiceServer};
use super::generated::{ResultsRequest, ResultsResponse, VoteRequest, VoteResponse, VotingResult};
use super::serve::{Protocol, listen, serve};

/// Longest shortcode counted, so that a stranger's votes can't grow the table without bound.
const SHORTCODE_MAX: usize = 64;
/// Most shortcodes counted.
const SHORTCODES_MAX: usize = 1024;

/// Settings of the voting service.
#[derive(Debug, Args)]
pub(crate) struct VotingArgs {
    /// Port to listen on.
    #[arg(long, env = "GRPC_PORT", default_value_t = 8080)]
    port: u16,

    /// Text put into every response.
    #[arg(long, env = "CANARY", default_value = "")]
    canary: String,
}

struct Poll {
    votes: Mutex<BTreeMap<String, u64>>,
    canary: String,
}

#[tonic::async_trait]
impl VotingService for Poll {
    async fn vote(&self, request: Request<VoteRequest>) -> Result<Response<VoteResponse>, Status> {
        let shortcode = request.into_inner().shortcode;
        let mut votes = self.votes.lock();
        let full = votes.len() >= SHORTCODES_MAX && !votes.contains_key(&shortcode);
        if shortcode.is_empty() || shortcode.len() > SHORTCODE_MAX || full {
            return Err(Status::invalid_argument("not an emoji one can vote for"));
        }
        let count = votes.entry(shortcode).or_default();
        *count += 1;
        Ok(Response::new(VoteResponse { votes: *count, canary: self.canary.clone() }))
    }

    async fn results(&self, _: Request<ResultsRequest>) -> Result<Response<ResultsResponse>, Status> {
        let votes = self.votes.lock();
        let results =
            votes.iter().map(|(shortcode, votes)| VotingResult { shortcode: shortcode.clone(), votes: *votes });
        Ok(Response::new(ResultsResponse { results: results.collect(), canary: self.canary.clone() }))
    }
}

pub(super) async fn run(args: VotingArgs) -> anyhow::Result<()> {
    serve_on(listen(args.port).await?, args.canary).await
}

pub(super) async fn serve_on(listener: TcpListener, canary: String) -> anyhow::Result<()> {
    serve(listener, Protocol::Grpc, VotingServiceServer::new(Poll { votes: Mutex::default(), canary })).await
}
