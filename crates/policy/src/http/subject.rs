//! What a policy looks at: a connection, and a request if it has one that can be read.

use std::borrow::Cow;
use std::cell::OnceCell;

use http::HeaderName;
use http::header::HOST;

use super::authentication::Caller;
use super::request::Request;
use super::token::Claims;
use crate::Connection;

/// A connection and, where HTTP is spoken, the request.
pub struct Subject<'a> {
    pub(super) connection: Connection<'a>,
    /// `None` if the connection is passed on unread.
    pub(super) request: Option<&'a Request<'a>>,
    /// Whose token the request carries; `None` if nobody has looked.
    caller: Option<&'a Caller>,
    /// Whether the authorisers that are to be asked have let it pass.
    authorized: bool,
    /// The server name that a client of TLS asks for; `None` if nobody has listened.
    server_name: Option<Option<String>>,
    // Computed on demand: building it costs an allocation.
    principal: OnceCell<Option<String>>,
}

/// The values of an attribute.
pub(super) enum Values<'v> {
    /// They can't be known here.
    Unknown,
    /// None.
    Absent,
    One(&'v [u8]),
    /// A program may take any of them.
    Several(Vec<Cow<'v, [u8]>>),
}

impl<'a> Subject<'a> {
    /// Addresses that are claimed in headers don't count in `connection`; its destination is what was asked for, with the
    /// port of the service.
    pub fn new(connection: Connection<'a>, request: Option<&'a Request<'a>>) -> Self {
        // What a waypoint reads as HTTP came to it without TLS of the program's own.
        let server_name = request.map(|_| None);
        Self { connection, request, caller: None, authorized: false, server_name, principal: OnceCell::new() }
    }

    /// With the server name that the client of TLS asks for, `None` if it asks for none, or does not speak TLS. Without this,
    /// conditions on the server name of a connection that passes unread can't be checked.
    pub fn asking_for(self, server_name: Option<&str>) -> Self {
        let one_form = |name: &str| name.trim_end_matches('.').to_ascii_lowercase();
        Self { server_name: Some(server_name.map(one_form)), ..self }
    }

    /// With whose token the request carries. Without this, conditions on tokens can't be checked.
    pub fn by(self, caller: &'a Caller) -> Self {
        Self { caller: Some(caller), ..self }
    }

    /// Says that the authorisers which are to be asked ([`Guard::to_ask`](super::Guard::to_ask)) have let it pass. Without this,
    /// what they have to be asked about is refused.
    pub fn authorized(self) -> Self {
        Self { authorized: true, ..self }
    }

    pub(super) fn is_authorized(&self) -> bool {
        self.authorized
    }

    /// What the request's token says: `None` if that can't be known here, and `Some(None)` if it has none.
    pub(super) fn claims(&self) -> Option<Option<&'a Claims>> {
        self.request?;
        self.caller.map(Caller::claims)
    }

    /// Whether there is a request that can be read.
    pub fn has_request(&self) -> bool {
        self.request.is_some()
    }

    pub(super) fn principal(&self) -> Values<'_> {
        let principal = self.principal.get_or_init(|| self.connection.source.map(leno_model::Identity::principal));
        principal.as_ref().map_or(Values::Absent, |text| Values::One(text.as_bytes()))
    }

    pub(super) fn namespace(&self) -> Values<'_> {
        self.connection.source.map_or(Values::Absent, |identity| Values::One(identity.namespace().as_bytes()))
    }

    pub(super) fn server_name(&self) -> Values<'_> {
        match &self.server_name {
            None => Values::Unknown,
            Some(None) => Values::Absent,
            Some(Some(name)) => Values::One(name.as_bytes()),
        }
    }

    pub(super) fn method(&self) -> Values<'_> {
        self.request.map_or(Values::Unknown, |request| Values::One(request.method.as_bytes()))
    }

    /// The host; with its port for a pattern that names one.
    pub(super) fn host(&self, with_port: bool) -> Values<'_> {
        let Some(request) = self.request else { return Values::Unknown };
        if !with_port {
            return Values::One(request.host.as_bytes());
        }
        let port = request.host_port.unwrap_or(self.connection.destination.port());
        Values::Several(vec![format!("{}:{port}", request.host).into_bytes().into()])
    }

    pub(super) fn header(&self, name: &HeaderName) -> Values<'_> {
        let Some(request) = self.request else { return Values::Unknown };
        if *name == HOST {
            return self.host(false);
        }
        let mut all = request.headers.get_all(name).iter();
        match (all.next(), all.next()) {
            (None, _) => Values::Absent,
            (Some(one), None) => Values::One(one.as_bytes()),
            (Some(_), Some(_)) => {
                let each = request.headers.get_all(name).iter().map(|value| Cow::Borrowed(value.as_bytes()));
                Values::Several(each.chain(request.header(name)).collect())
            }
        }
    }

    /// Whether a proxy in between says that the request comes from elsewhere. Nobody can prove that.
    pub(super) fn is_forwarded(&self) -> bool {
        let named = ["x-forwarded-for", "forwarded"];
        self.request.is_some_and(|request| named.iter().any(|name| request.headers.contains_key(*name)))
    }
}
