//! The emoji service.

use clap::Args;
use tokio::net::TcpListener;
use tonic::{Request, Response, Status};

use super::catalogue::EMOJI;
use super::generated::emoji_service_server::{EmojiService, EmojiServiceServer};
use super::generated::{Emoji, FindRequest, FindResponse, ListRequest, ListResponse};
use super::serve::{Protocol, listen, serve};

/// Settings of the emoji service.
#[derive(Debug, Args)]
pub(crate) struct EmojiArgs {
    /// Port to listen on.
    #[arg(long, env = "GRPC_PORT", default_value_t = 8080)]
    port: u16,

    /// Text put into every response.
    #[arg(long, env = "CANARY", default_value = "")]
    canary: String,
}

struct Catalogue {
    canary: String,
}

fn emoji((shortcode, unicode): (&str, &str)) -> Emoji {
    Emoji { shortcode: shortcode.to_owned(), unicode: unicode.to_owned() }
}

#[tonic::async_trait]
impl EmojiService for Catalogue {
    async fn list(&self, _: Request<ListRequest>) -> Result<Response<ListResponse>, Status> {
        Ok(Response::new(ListResponse { emoji: EMOJI.map(emoji).to_vec(), canary: self.canary.clone() }))
    }

    async fn find(&self, request: Request<FindRequest>) -> Result<Response<FindResponse>, Status> {
        let wanted = request.into_inner().shortcode;
        let found = EMOJI.into_iter().find(|(shortcode, _)| *shortcode == wanted).map(emoji);
        Ok(Response::new(FindResponse { emoji: found, canary: self.canary.clone() }))
    }
}

pub(super) async fn run(args: EmojiArgs) -> anyhow::Result<()> {
    serve_on(listen(args.port).await?, args.canary).await
}

pub(super) async fn serve_on(listener: TcpListener, canary: String) -> anyhow::Result<()> {
    serve(listener, Protocol::Grpc, EmojiServiceServer::new(Catalogue { canary })).await
}
