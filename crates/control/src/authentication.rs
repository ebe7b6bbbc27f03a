//! Who owns a bearer token, where no API server can be asked.

use std::fmt;
use std::hint::black_box;

use futures_util::future::BoxFuture;
use leno_xds::server::{AuthError, Authenticator, Caller};
use parking_lot::RwLock;

/// Shortest token, characters. Shorter ones could be guessed (128 bits in hex).
const MIN_TOKEN: usize = 32;

/// A list of tokens and their owners.
#[derive(Default)]
pub struct StaticTokens {
    tokens: RwLock<Vec<(String, Caller)>>,
}

/// Why a list of tokens can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// A token is too short.
    #[error("the token of {account} has {length} characters; use at least {MIN_TOKEN}, from a random source")]
    Short {
        /// The token's owner.
        account: String,
        /// The token's length, characters.
        length: usize,
    },
    /// Two entries have the same token.
    #[error("the tokens of {0} and {1} are equal; give each its own")]
    Shared(String, String),
    /// A line does not have the right form.
    #[error("line {0}: expected TOKEN NAMESPACE/ACCOUNT [NODE]")]
    Line(usize),
}

impl TokenError {
    /// Whether reading the same list again can succeed. Never: the list must be changed.
    pub fn is_retryable(&self) -> bool {
        false
    }
}

impl StaticTokens {
    /// An empty list, which lets nobody in.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads a list. Each line is `TOKEN NAMESPACE/ACCOUNT [NODE]`; `#` starts a comment.
    ///
    /// # Errors
    /// If a line does not have that form, or a token is too short or listed twice.
    pub fn parse(text: &str) -> Result<Self, TokenError> {
        let out = Self::new();
        for (i, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default();
            let words: Vec<&str> = line.split_whitespace().collect();
            let (token, account, node) = match words[..] {
                [] => continue,
                [token, account] => (token, account, None),
                [token, account, node] => (token, account, Some(node.to_owned())),
                _ => return Err(TokenError::Line(i + 1)),
            };
            let (namespace, service_account) = account.split_once('/').ok_or(TokenError::Line(i + 1))?;
            let caller = Caller {
                namespace: namespace.to_owned(),
                service_account: service_account.to_owned(),
                node,
                ..Caller::default()
            };
            out.insert(token, caller)?;
        }
        Ok(out)
    }

    /// Adds a token.
    ///
    /// # Errors
    /// If it is too short or already in the list.
    pub fn insert(&self, token: impl Into<String>, caller: Caller) -> Result<(), TokenError> {
        let token = token.into();
        let name = |caller: &Caller| format!("{}/{}", caller.namespace, caller.service_account);
        if token.len() < MIN_TOKEN {
            return Err(TokenError::Short { account: name(&caller), length: token.len() });
        }
        let mut tokens = self.tokens.write();
        if let Some((_, other)) = tokens.iter().find(|(known, _)| equal(known, &token)) {
            return Err(TokenError::Shared(name(other), name(&caller)));
        }
        tokens.push((token, caller));
        Ok(())
    }

    /// Removes a token. Returns whether it was there. Streams opened with it stay open.
    pub fn remove(&self, token: &str) -> bool {
        let mut tokens = self.tokens.write();
        let before = tokens.len();
        tokens.retain(|(known, _)| !equal(known, token));
        tokens.len() < before
    }

    fn find(&self, token: &str) -> Option<Caller> {
        let tokens = self.tokens.read();
        let mut found = None;
        // Always to the end of the list: the time taken must not tell a token's place in it.
        for (known, caller) in tokens.iter() {
            if equal(known, token) {
                found = Some(caller.clone());
            }
        }
        found
    }
}

/// Compares in a time that depends only on the lengths. With a comparison that stops at the first difference, a token
/// could be guessed byte by byte.
fn equal(a: &str, b: &str) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let differences = a.bytes().zip(b.bytes()).fold(0u8, |sum, (a, b)| black_box(sum | (a ^ b)));
    black_box(differences) == 0
}

impl Authenticator for StaticTokens {
    fn authenticate<'a>(&'a self, token: &'a str, cluster_id: &'a str) -> BoxFuture<'a, Result<Caller, AuthError>> {
        let found = self.find(token).map(|caller| Caller { cluster_id: cluster_id.to_owned(), ..caller });
        let known = found.ok_or_else(|| {
            AuthError::Invalid(
                "it is not among the tokens of this control plane; was it restarted with others?".to_owned(),
            )
        });
        Box::pin(std::future::ready(known))
    }
}

impl fmt::Debug for StaticTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StaticTokens").field("tokens", &self.tokens.read().len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0123456789abcdef0123456789abcdef";

    fn caller(account: &str) -> Caller {
        Caller { namespace: "a".into(), service_account: account.into(), ..Caller::default() }
    }

    #[tokio::test]
    async fn a_token_opens_for_its_owner_only() {
        let text = format!("# ours\n{TOKEN} leno-system/leno-node node-1 # the first\n\n{TOKEN}x a/b\n");
        let tokens = StaticTokens::parse(&text).expect("sound");
        let first = tokens.authenticate(TOKEN, "Kubernetes").await.expect("known");
        assert_eq!((first.service_account.as_str(), first.node.as_deref()), ("leno-node", Some("node-1")));
        assert_eq!(first.cluster_id, "Kubernetes");
        let second = tokens.authenticate(&format!("{TOKEN}x"), "").await.expect("known");
        assert_eq!((second.service_account.as_str(), second.node), ("b", None));
        for wrong in ["", &TOKEN[1..], &TOKEN.replace('f', "e"), &format!("{TOKEN} ")] {
            let error = tokens.authenticate(wrong, "").await.expect_err(wrong);
            assert!(!error.is_retryable());
        }
        assert!(tokens.remove(TOKEN));
        assert!(!tokens.remove(TOKEN));
        assert!(tokens.authenticate(TOKEN, "").await.is_err());
    }

    #[test]
    fn unusable_lists_are_refused() {
        let parse = |text: &str| StaticTokens::parse(text).err();
        assert_eq!(parse(TOKEN), Some(TokenError::Line(1)));
        assert_eq!(parse(&format!("\n{TOKEN} b")), Some(TokenError::Line(2)));
        assert_eq!(parse(&format!("{TOKEN} a/b c d")), Some(TokenError::Line(1)));
        assert_eq!(parse("short a/b"), Some(TokenError::Short { account: "a/b".into(), length: 5 }));
        let tokens = StaticTokens::new();
        assert_eq!(tokens.insert(TOKEN, caller("x")), Ok(()));
        assert_eq!(tokens.insert(TOKEN, caller("y")), Err(TokenError::Shared("a/x".into(), "a/y".into())));
    }

    #[test]
    fn tokens_are_not_printed() {
        let tokens = StaticTokens::new();
        tokens.insert(TOKEN, caller("x")).expect("sound");
        assert!(!format!("{tokens:?}").contains(TOKEN));
    }
}
