//! A control plane whose objects, tokens and authority are in files.

use std::sync::Arc;

use anyhow::Context as _;
use leno_cli::ControlArgs;
use leno_control::status::{Status, StatusSink};
use leno_control::{Controller, Feed, StaticTokens, roots};
use leno_local::files;
use leno_objects::{Kind, ObjectKey};
use leno_tls::{CaOptions, CertificateAuthority};

use super::Parts;

/// Writes what is found about objects into the log.
#[derive(Debug)]
pub(super) struct Log;

impl StatusSink for Log {
    fn status(&self, object: &ObjectKey, status: &Status) {
        for finding in status.findings() {
            tracing::warn!("{object}: {finding}");
        }
    }
}

/// Reads everything once. Then objects follow the files.
pub(super) fn parts(args: &ControlArgs, controller: &Controller, options: CaOptions) -> anyhow::Result<Parts> {
    let feed = Feed::announce(controller.clone(), &Kind::of_files());
    let controller = controller.clone();
    let load = move |read: Result<files::Manifests, leno_local::Error>| match read {
        Ok(manifests) => {
            let passed_over = manifests.passed_over.iter().map(ToString::to_string);
            for warning in passed_over.chain(manifests.warnings.iter().cloned()) {
                tracing::warn!("{warning}");
            }
            tracing::info!(objects = manifests.objects.len(), "manifests loaded");
            let objects = manifests.objects.into_values().map(|sourced| sourced.object);
            let objects = objects.map(|object| files::mesh_config(&object).map_or(object, Arc::new));
            feed.replace(objects);
            controller.lint();
        }
        Err(error) => tracing::error!("the edit is refused as a whole, the last good state stays: {error}"),
    };
    load(Ok(files::read(&args.files)?));

    // The flags are required where there is no cluster.
    let tokens = args.tokens.clone().unwrap_or_default();
    let listed = std::fs::read_to_string(&tokens)
        .with_context(|| format!("can't read the tokens of the node proxies from {}", tokens.display()))?;
    let authenticator = StaticTokens::parse(&listed).with_context(|| format!("in {}", tokens.display()))?;

    let directory = args.ca_dir.clone().unwrap_or_default();
    let authority = Arc::new(CertificateAuthority::open(&directory, args.trust_domain.as_str(), options)?);

    let files = args.files.clone();
    let following = async move { files::follow(&files, load).await.context("can't watch the manifests for changes") };
    Ok(Parts {
        authenticator: Arc::new(authenticator),
        authority,
        root: directory.join("root-cert.pem").display().to_string(),
        spread: roots::SPREAD,
        following: Box::pin(following),
        leaving: Box::pin(std::future::ready(())),
    })
}
