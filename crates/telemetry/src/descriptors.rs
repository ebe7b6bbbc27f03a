//! How many files a process may have open: sockets are files, and a service manager's usual soft limit of 1024 holds few.

use std::io;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Assumed where the limit can't be read.
const USUAL: u64 = 1024;

/// The limit on open files after an attempt to raise it.
#[derive(Debug)]
pub struct DescriptorLimit {
    /// How many files this process may have open.
    pub limit: u64,
    /// Why it could not be raised, if it could not be.
    pub refused: Option<io::Error>,
}

/// How many files this process may have open.
pub fn descriptor_limit() -> u64 {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(USUAL, |(soft, _)| soft)
}

/// Raises the limit for this process and those it starts: to what the kernel grants (the hard limit), and beyond that to
/// `wanted`, if this process may.
pub fn raise_descriptor_limit(wanted: u64) -> DescriptorLimit {
    let (soft, hard) = match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok(limits) => limits,
        Err(error) => return DescriptorLimit { limit: USUAL, refused: Some(error.into()) },
    };
    let raise = |to: u64| if soft < to { setrlimit(Resource::RLIMIT_NOFILE, to, to.max(hard)) } else { Ok(()) };
    let raised = raise(wanted.max(hard)).or_else(|error| raise(hard).and(Err(error)));
    DescriptorLimit { limit: descriptor_limit(), refused: raised.err().map(io::Error::from) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_raised_as_far_as_the_kernel_grants() {
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        let raised = raise_descriptor_limit(0);
        assert_eq!(raised.limit, hard);
        assert!(raised.refused.is_none(), "{raised:?}");
        // More than any kernel grants: the old limit stays, and the refusal is reported.
        let refused = raise_descriptor_limit(u64::MAX);
        assert_eq!(refused.limit, hard);
        assert!(refused.refused.is_some(), "{refused:?}");
    }
}
