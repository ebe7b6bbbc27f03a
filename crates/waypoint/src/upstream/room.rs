//! Room for one more connection, where a rule limits them.

use std::pin::pin;
use std::sync::Arc;

use crate::balance::{Common, Counted, Limit};
use crate::pool::{Leased, UpstreamKey};
use crate::state::shared::Gate;
use crate::state::worker::Lane;

/// What a request gets that needs a connection.
pub(crate) enum Room {
    /// One that has become free.
    Kept(Leased),
    /// Leave to make another one.
    New(Counted),
}

/// Waits until there is room for a connection, or one is free.
///
/// Where requests share connections, nobody waits for one of another endpoint to be free, which may never be: each endpoint
/// has one connection whatever the limit, and that takes all requests.
pub(crate) async fn room(gate: &Gate, lane: &Lane, key: &UpstreamKey, of: &Arc<Common>) -> Room {
    let most = of.rules.max_connections;
    if let Some(counted) = of.shared.count(Limit::Connections, most) {
        return Room::New(counted);
    }
    loop {
        let (_waiting, freed) = of.shared.freed();
        let mut freed = pin!(freed);
        // From here on, whoever frees a connection wakes this.
        freed.as_mut().enable();
        if let Some(kept) = lane.http.kept(key) {
            return Room::Kept(kept);
        }
        if let Some(counted) = of.shared.count(Limit::Connections, most) {
            return Room::New(counted);
        }
        if key.is_shared() {
            if let Some(kept) = lane.http.crowded(key) {
                return Room::Kept(kept);
            }
            if let Some(counted) = of.shared.count(Limit::Connections, None) {
                return Room::New(counted);
            }
        }
        if gate.lanes.iter().any(|lane| lane.http.let_go(&of.shared)) {
            continue;
        }
        freed.await;
    }
}
