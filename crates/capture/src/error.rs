//! Errors of capturing traffic, in words that an operator can act on.

use std::fmt;
use std::io;

/// Shorthand for this crate's results.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failed operation on a network namespace, its links, its rules or its sockets.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error("{operation}: {source}{}", Advice(.source))]
    System {
        /// The operation, with the names involved.
        operation: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel refused a netlink request.
    #[error("{operation}: {source}{}{}", Detail(.message), Advice(.source))]
    Netlink {
        /// The operation, with the names involved.
        operation: String,
        /// The kernel's own explanation, where it gives one (extended acknowledgement).
        message: Option<String>,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel refused one entry of an nf_tables transaction; nothing of the transaction was applied.
    #[error(
        "nf_tables refused `{entry}`: {source}{}{}{}; nothing was applied",
        Detail(.message), Advice(.source), missing_module(entry, source)
    )]
    Nft {
        /// The refused entry, written like a line of `nft`.
        entry: String,
        /// The kernel's own explanation, where it gives one.
        message: Option<String>,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel has no nf_tables.
    #[error(
        "this kernel has no nf_tables, which traffic capture needs: load it (modprobe nf_tables nft_redir nft_ct) or use \
         a kernel built with CONFIG_NF_TABLES, CONFIG_NFT_NAT and CONFIG_NFT_REDIR"
    )]
    NoNftables {
        /// The kernel's answer to the first message.
        source: io::Error,
    },
    /// A rule was put together in a way that could never match what was meant.
    #[error("rule `{rule}` is not usable: {reason}")]
    InvalidRule {
        /// The rule so far.
        rule: String,
        /// Why it can't be used.
        reason: &'static str,
    },
    /// A name that the kernel would not take.
    #[error("`{name}` is not a usable {what}: {reason}")]
    InvalidName {
        /// The refused name.
        name: String,
        /// The kind of thing it was to name.
        what: &'static str,
        /// The broken rule.
        reason: &'static str,
    },
    /// The thread could enter another namespace but never come back, so it is not let in.
    #[error(
        "this process may not re-enter its own network namespace, so it can't visit others{}; inside a user namespace, \
         create the network namespace together with it (CLONE_NEWUSER|CLONE_NEWNET)",
        Advice(.source)
    )]
    NoWayBack {
        /// The kernel's answer to entering the current namespace again.
        source: io::Error,
    },
    /// A reply of the kernel could not be understood.
    #[error("{operation}: the kernel's reply is malformed ({reason}); please report this with the kernel version")]
    Malformed {
        /// The operation.
        operation: String,
        /// Why the reply is malformed.
        reason: &'static str,
    },
}

impl Error {
    /// Wraps a failed system call.
    pub(crate) fn system(operation: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::System { operation: operation.into(), source: source.into() }
    }

    /// The kernel's answer, where there was one.
    #[must_use]
    pub fn io(&self) -> Option<&io::Error> {
        match self {
            Self::System { source, .. }
            | Self::Netlink { source, .. }
            | Self::Nft { source, .. }
            | Self::NoNftables { source }
            | Self::NoWayBack { source } => Some(source),
            Self::InvalidRule { .. } | Self::InvalidName { .. } | Self::Malformed { .. } => None,
        }
    }

    /// The errno, where there was one.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        self.io().and_then(io::Error::raw_os_error)
    }

    /// Whether the same call may succeed later without anybody changing the machine's configuration.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(
            self.errno(),
            Some(libc::EAGAIN | libc::EBUSY | libc::EINTR | libc::ENOBUFS | libc::ENOMEM | libc::EMFILE | libc::ENFILE)
        )
    }
}

/// Lets a caller fold this error into an `io::Result` without losing the errno's kind or the text.
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = error.io().map_or(io::ErrorKind::Other, io::Error::kind);
        Self::new(kind, error)
    }
}

/// The next action for an errno, as the tail of a sentence; empty when the errno speaks for itself.
pub(crate) struct Advice<'a>(pub(crate) &'a io::Error);

impl fmt::Display for Advice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                " (needs CAP_NET_ADMIN and CAP_SYS_ADMIN: run as root, or allow unprivileged user namespaces: sysctl \
                 user.max_user_namespaces=10000, and on Ubuntu also kernel.apparmor_restrict_unprivileged_userns=0)"
            }
            Some(libc::EROFS) => {
                " (/proc/sys is read-only here, as in an unprivileged container: run it privileged or mount /proc/sys \
                 read-write)"
            }
            Some(libc::EAFNOSUPPORT) => " (this kernel lacks the address family; IPv6 may be switched off)",
            Some(libc::EOPNOTSUPP) => " (this kernel lacks the feature or its module is not loaded)",
            Some(libc::EMFILE | libc::ENFILE) => " (raise the limit of open files: ulimit -n)",
            _ => "",
        })
    }
}

/// The kernel answers the same to a rule that names a chain that isn't there and to one that needs a module that isn't there.
fn missing_module(entry: &str, error: &io::Error) -> &'static str {
    if entry.starts_with("add rule") && error.raw_os_error() == Some(libc::ENOENT) {
        " (it names a chain or set that doesn't exist, or the kernel lacks a module: nft_ct, nft_nat, nft_redir, nft_masq, \
         nft_numgen, nft_reject_inet)"
    } else {
        ""
    }
}

struct Detail<'a>(&'a Option<String>);

impl fmt::Display for Detail<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(message) => write!(f, " ({message})"),
            None => Ok(()),
        }
    }
}
