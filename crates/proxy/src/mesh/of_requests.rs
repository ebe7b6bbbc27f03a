//! How changes of what concerns requests are taken in: whatever is refused closes what it was for.

use leno_model::{Mesh, Name};
use leno_proto::ConvertError;
use leno_xds::client::Update;
use prost::Message;

/// What is done with the resources of one type.
pub(super) struct Steps<M, T> {
    /// What a resource is, with its article.
    pub(super) what: &'static str,
    pub(super) remove: fn(&mut Mesh, &str),
    pub(super) read: fn(M) -> Result<T, ConvertError>,
    /// The name of the resource that says this.
    pub(super) name: fn(&T) -> String,
    pub(super) take: fn(&mut Mesh, T),
    /// Closes what a refused one is for, as far as its message can be read.
    pub(super) close: fn(&mut Mesh, &str, Option<M>, &str),
}

/// Applies the changes of one message. Returns the resources that were refused, each with the reason.
pub(super) fn apply<M: Message + Default + Clone, T>(
    mesh: &mut Mesh,
    updates: Vec<Update>,
    steps: &Steps<M, T>,
) -> Vec<(Name, String)> {
    let mut refused = Vec::new();
    for update in updates {
        let (name, message, reason) = match update {
            Update::Remove { name } => {
                (steps.remove)(mesh, &name);
                continue;
            }
            Update::Upsert { name, body } => {
                let message = M::decode(body).map_err(|error| format!("not {}: {error}", steps.what));
                match message.clone().and_then(|message| steps.read_named(&name, message)) {
                    Ok(read) => {
                        (steps.take)(mesh, read);
                        continue;
                    }
                    Err(reason) => (name, message.ok(), reason),
                }
            }
            Update::Unreadable { name, reason } => (name, None, reason),
        };
        (steps.close)(mesh, &name, message, &reason);
        refused.push((name, reason));
    }
    refused
}

impl<M, T> Steps<M, T> {
    /// What a resource says, if that goes by the resource's name.
    fn read_named(&self, name: &str, message: M) -> Result<T, String> {
        let read = (self.read)(message).map_err(|error| error.to_string())?;
        let own = (self.name)(&read);
        if own == name { Ok(read) } else { Err(format!("the resource is named {name:?} but is {own:?}")) }
    }
}
