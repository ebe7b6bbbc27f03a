//! Makes sure that a new root of the certificate authority reaches every proxy before it signs.

use std::sync::Arc;
use std::time::Duration;

use leno_proto::TRUST_BUNDLE_TYPE;
use leno_tls::CertificateAuthority;
use tokio::time::{Instant, sleep_until};

use crate::server::ControlPlane;

/// How often the authority's directory is checked.
const LOOK: Duration = Duration::from_secs(2);
/// The shortest time between announcing a new root and signing with it. A proxy that is just reconnecting is not asked
/// whether it trusts the root. After this time it has connected, or has been away for longer than its longest back-off.
pub const SPREAD: Duration = Duration::from_secs(30);

/// Publishes the roots of `authority` to the proxies, and lets a new root sign once it was announced for `spread` and
/// all connected proxies trust it. Never returns.
///
/// A proxy that does not take roots from discovery, such as a ztunnel, gets them with its next certificate. While one
/// is connected, a new root waits until everything has expired that was signed before it was announced.
pub async fn follow(plane: ControlPlane, authority: Arc<CertificateAuthority>, spread: Duration) {
    let mut trust = authority.trust();
    let mut proxies = plane.proxy_changes();
    let mut announced: Option<Instant> = None;
    // The snapshot in which the current roots were published. Later snapshots need not be waited for.
    let mut told = 0;
    let mut look = Instant::now();
    loop {
        let now = Instant::now();
        if now >= look {
            look = now + LOOK;
            match authority.reload() {
                Ok(true) => {
                    tracing::info!("the certificate authority's files have changed and are in use");
                    // A proxy that was away may have missed these roots as well.
                    announced = None;
                }
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(%error, "the certificate authority's files can't be used; what was read before goes on")
                }
            }
            authority.tick();
        }
        let bundle = trust.borrow_and_update().clone();
        if plane.controller().publish_roots(&bundle) {
            told = plane.controller().generation();
        }
        if authority.announces_a_root() {
            let may_sign = *announced.get_or_insert(now) + spread;
            proxies.mark_unchanged();
            // That each has accepted the roots that were published with snapshot `told`.
            if now >= may_sign && plane.all_accepted(TRUST_BUNDLE_TYPE, told) {
                authority.all_trust_it();
                continue;
            }
            look = if now < may_sign { look.min(may_sign) } else { look };
        } else {
            announced = None;
        }
        tokio::select! {
            _ = trust.changed() => {}
            // This can't fail: the service lives in `plane`. Proxies report with every change of anything, which
            // matters only while a root is announced.
            _ = proxies.changed(), if announced.is_some() => {}
            () = sleep_until(look) => {}
        }
    }
}
