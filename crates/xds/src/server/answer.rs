//! A response on its way out: its length, its type, the shared bytes, and the nonce, which belongs to this stream
//! alone.

use std::sync::Arc;

use bytes::{BufMut, Bytes};
use leno_model::Name;

use super::delta::{Delta, Part};
use crate::catalogue::{Catalogue, Page};
use crate::wire;

/// `DeltaDiscoveryResponse.type_url`.
const TYPE_URL: u8 = 4;
/// `DeltaDiscoveryResponse.nonce`.
const NONCE: u8 = 5;
/// Up to this length, bytes, a response is sent as one piece and so as one frame: copying it costs less than a second
/// frame.
const ONE_PIECE: usize = 15 << 10;
/// The gRPC prefix of a message: whether it is compressed, and its length.
const HEAD: usize = 5;

/// A `DeltaDiscoveryResponse` on its way to one proxy, piece by piece. Protobuf fields may come in any order, so the
/// shared bytes are put between those that are not shared. A first answer is one message, however large: proxies take
/// the first message as the complete state.
#[derive(Debug)]
pub struct Answer {
    type_url: Name,
    head: Option<Bytes>,
    body: Body,
    nonce: Option<Bytes>,
    length: usize,
}

#[derive(Debug)]
pub(super) enum Body {
    Nothing,
    /// All resources.
    Everything(std::vec::IntoIter<Arc<Page>>),
    Part {
        delta: Arc<Delta>,
        part: Part,
        at: usize,
    },
}

impl Body {
    pub(super) fn everything(catalogue: &Catalogue) -> Self {
        Self::Everything(catalogue.pages().cloned().collect::<Vec<_>>().into_iter())
    }

    pub(super) fn part(delta: Arc<Delta>, part: Part) -> Self {
        Self::Part { delta, part, at: 0 }
    }

    fn next(&mut self) -> Option<Bytes> {
        match self {
            Self::Nothing => None,
            Self::Everything(pages) => {
                // Only an empty catalogue's page is empty.
                pages.map(|page| page.block().clone()).find(|block| !block.is_empty())
            }
            Self::Part { delta, part, at } => match delta.written(*part) {
                Some(_) if *at > 0 => None,
                Some(bytes) => {
                    *at = 1;
                    (!bytes.is_empty()).then(|| bytes.clone())
                }
                None => delta.piece(*part, at),
            },
        }
    }
}

impl Answer {
    /// Of `length` bytes of resources and removals in `body`.
    pub(super) fn new(type_url: &Name, nonce: u64, length: usize, body: Body) -> Self {
        let nonce = nonce.to_string();
        let length = wire::length(type_url.len()) + length + wire::length(nonce.len());
        let mut head = Vec::with_capacity(HEAD + wire::length(type_url.len()));
        head.put_u8(0);
        // No proxy accepts a longer one.
        head.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
        wire::put(&mut head, TYPE_URL, type_url.as_bytes());
        let mut tail = Vec::with_capacity(wire::length(nonce.len()));
        wire::put(&mut tail, NONCE, nonce.as_bytes());
        let type_url = type_url.clone();
        let mut answer = Self { type_url, head: Some(head.into()), body, nonce: Some(tail.into()), length };
        if length <= ONE_PIECE {
            let mut whole = Vec::with_capacity(HEAD + length);
            while let Some(piece) = answer.next_piece() {
                whole.extend_from_slice(&piece);
            }
            answer.head = Some(whole.into());
        }
        answer
    }

    /// The type of its resources.
    pub(super) fn type_url(&self) -> &Name {
        &self.type_url
    }

    /// Length of the message, bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    /// The next piece, as part of a gRPC message; `None` at the end.
    pub fn next_piece(&mut self) -> Option<Bytes> {
        self.head.take().or_else(|| self.body.next()).or_else(|| self.nonce.take())
    }
}
