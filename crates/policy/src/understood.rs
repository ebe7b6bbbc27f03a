//! Objects that the control plane described in a way that is not understood here.

use leno_model::{Name, Service, ServiceName, Workload};

/// The control plane described a part of the mesh in a way that was not understood. Too little is known of it to let
/// anything pass.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the control plane describes {what} in a way this proxy does not understand ({reason}), so nothing passes until it \
     is described in one that is; if the control plane is newer than this proxy, upgrade the proxy"
)]
pub struct NotUnderstood {
    /// The part, in words.
    pub what: String,
    /// What was not understood.
    pub reason: Name,
    /// The service, if it is one.
    pub service: Option<ServiceName>,
}

impl NotUnderstood {
    /// Checks that `workload` was understood.
    ///
    /// # Errors
    /// If it was not.
    pub fn workload(workload: &Workload) -> Result<(), Self> {
        match &workload.not_understood {
            None => Ok(()),
            Some(reason) => {
                let what = if workload.name.is_empty() {
                    format!("workload {}", workload.uid)
                } else {
                    format!("workload {}/{}", workload.namespace, workload.name)
                };
                Err(Self { what, reason: reason.clone(), service: None })
            }
        }
    }

    /// Checks that `service` was understood.
    ///
    /// # Errors
    /// If it was not.
    pub fn service(service: &Service) -> Result<(), Self> {
        match &service.not_understood {
            None => Ok(()),
            Some(reason) => Err(Self {
                what: format!("service {}", service.id),
                reason: reason.clone(),
                service: Some(service.id.clone()),
            }),
        }
    }
}
