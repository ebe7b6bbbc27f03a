//! What can go wrong between an installation and a cluster.

use http::StatusCode;

use crate::Error;

/// Why an installation could not be changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// There are no objects to apply.
    #[error(transparent)]
    Objects(#[from] Error),
    /// The API server did not do what it was asked to.
    #[error("{doing}: {source}")]
    Api {
        /// What was being done.
        doing: String,
        /// Its answer.
        #[source]
        source: leno_kubernetes::Error,
    },
    /// Whoever runs this may not.
    #[error("{doing}: the API server says: {message}; log in as a cluster administrator, or have this right granted")]
    Forbidden {
        /// What was being done.
        doing: String,
        /// Its words, which name the right.
        message: String,
    },
    /// The namespace is being removed, and takes nothing new.
    #[error(
        "{doing}: {message}; an earlier removal is under way: call this again once `kubectl get namespaces` no longer lists it, \
         and if it does not end, `kubectl get namespace -o yaml` says what keeps it"
    )]
    Ending {
        /// What was being done.
        doing: String,
        /// The API server's words, which name the namespace.
        message: String,
    },
    /// A definition that somebody else brought has no version that this program reads.
    #[error(
        "the definition {name} is there already and has no version {version}; upgrade it (Istio's chart `base` has it), or \
         remove it and let this command bring its own"
    )]
    OldDefinition {
        /// The definition.
        name: String,
        /// The version that is missing.
        version: String,
    },
    /// Another mesh does the same for the same pods.
    #[error(
        "{other}, and two programs would work on the same pods; remove it, or let it keep that part with --set {part}.enabled=false"
    )]
    SecondMesh {
        /// What runs, and where.
        other: String,
        /// The part of this installation that does the same: `agent` or `node`.
        part: &'static str,
    },
    /// Somebody else keeps these objects.
    #[error(
        "Leno in {namespace} was installed by Helm; change it with `helm upgrade` and remove it with `helm uninstall`, because \
         Helm would undo what this command does"
    )]
    Helms {
        /// The installation's namespace.
        namespace: String,
    },
    /// There is nothing to change.
    #[error("Leno is not installed in {namespace}; install it with `leno install`, or name its namespace with -n")]
    NotInstalled {
        /// The namespace that was looked in.
        namespace: String,
    },
    /// What is to be changed or looked at is elsewhere.
    #[error("Leno is not installed in {namespace}; it is in {there}, which -n {there} names")]
    NotHere {
        /// The namespace that was looked in.
        namespace: String,
        /// Where it is.
        there: String,
    },
    /// It would forget what was chosen before.
    #[error(
        "Leno is installed in {namespace} with another profile or other values: `leno upgrade -n {namespace}` keeps these and adds what is \
         given, and with --reset-values only what is given counts"
    )]
    OtherChoices {
        /// The installation's namespace.
        namespace: String,
    },
    /// A removal was ended early, and what is left of the installation does not work together.
    #[error(
        "the removal of Leno in {namespace} has begun and not come to its end: run `leno uninstall -n {namespace}` once more, and \
         then install it"
    )]
    HalfRemoved {
        /// The installation's namespace.
        namespace: String,
    },
    /// Of two commands at once the last would win.
    #[error(
        "another command is changing the installation: {who}, since {since}; nothing was changed: call this again when that one \
         is done, or end it there first"
    )]
    Busy {
        /// What it is and who runs it.
        who: String,
        /// Since when, as the API server has it.
        since: String,
    },
    /// This process stood still for so long that it was taken for dead.
    #[error(
        "another command changes the installation now, because this one was not heard of for a while; look what that one did \
         with `leno status`, and call this again"
    )]
    TurnLost,
    /// Two of them would take each other's pods.
    #[error(
        "Leno is installed in {there} already, and a cluster has room for one; change that one with -n {there}, or remove it \
         with `leno uninstall -n {there}`"
    )]
    Elsewhere {
        /// The other's namespace.
        there: String,
    },
}

impl ClusterError {
    /// Whether the same request may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Api { source, .. } => source.is_retryable(),
            Self::Busy { .. } => true,
            Self::Objects(_)
            | Self::Forbidden { .. }
            | Self::Ending { .. }
            | Self::OldDefinition { .. }
            | Self::SecondMesh { .. }
            | Self::Helms { .. }
            | Self::NotInstalled { .. }
            | Self::NotHere { .. }
            | Self::HalfRemoved { .. }
            | Self::OtherChoices { .. }
            | Self::TurnLost
            | Self::Elsewhere { .. } => false,
        }
    }
}

/// Says what was being done when the API server refused.
pub(super) fn doing(what: impl Into<String>) -> impl FnOnce(leno_kubernetes::Error) -> ClusterError {
    let doing = what.into();
    move |source| match source {
        // It says so with the status of a right that is missing, and no right helps.
        leno_kubernetes::Error::Refused { status: StatusCode::FORBIDDEN, message, .. }
            if message.contains("because it is being terminated") =>
        {
            ClusterError::Ending { doing, message }
        }
        leno_kubernetes::Error::Refused { status: StatusCode::FORBIDDEN, message, .. } => {
            ClusterError::Forbidden { doing, message }
        }
        source => ClusterError::Api { doing, source },
    }
}
