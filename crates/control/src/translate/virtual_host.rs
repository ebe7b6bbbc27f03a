//! The hosts that a VirtualService is for.

use leno_objects::VirtualService;

use super::Options;

/// The host names that an object names, whole ones of Kubernetes' names alone.
pub(super) fn hosts<'a>(options: &'a Options, object: &'a VirtualService) -> impl Iterator<Item = String> + 'a {
    object.spec.hosts.iter().map(move |host| whole(options, object, host))
}

/// The whole name of a host that an object names.
pub(super) fn whole(options: &Options, object: &VirtualService, host: &str) -> String {
    let host = host.to_ascii_lowercase();
    if host.contains(['.', '*']) {
        return host;
    }
    format!("{host}.{}.svc.{}", object.metadata.namespace, options.cluster_domain)
}
