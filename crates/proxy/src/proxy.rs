//! A proxy inside another program.

use std::fmt;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use crate::admin::Endpoints;
use crate::carrier::Carrier;
use crate::config::Config;
use crate::core::Core;
use crate::error::Error;
use crate::run::{Ending, Host, control_runtime, launch};
use crate::threads::Workers;

/// A proxy on threads of its own, inside another program. It installs no signal handlers. When dropped, it cuts its
/// connections and ends.
pub struct Proxy {
    endpoints: Endpoints,
    ending: Ending,
    control: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts a proxy, and returns when its own endpoints are open. Its threads live in the caller's network namespace.
    /// `make` creates the carrier.
    ///
    /// # Errors
    /// If it can't start: a setting is not valid, one of its ports is in use, or no threads can be created.
    pub fn start<C: Carrier>(
        config: Config,
        host: Host,
        make: impl FnOnce(Arc<Core>) -> C + Send + 'static,
    ) -> Result<Self, Error> {
        let ending = Ending::default();
        let (tell, told) = mpsc::channel();
        let control = std::thread::Builder::new()
            .name("control".to_owned())
            .spawn({
                let ending = ending.clone();
                move || {
                    let started = control_runtime().and_then(|control| {
                        let workers = Workers::start(config.worker_threads, host.trim, control.handle())?;
                        Ok((control, workers))
                    });
                    // The order matters: the control thread keeps the workers' timers.
                    let (runtime, workers) = match started {
                        Ok(started) => started,
                        Err(error) => return drop(tell.send(Err(error))),
                    };
                    runtime.block_on(async {
                        match launch(config, &workers, host, &ending, make).await {
                            // Sending fails only if the starter's thread is gone, and then nobody waits.
                            Err(error) => drop(tell.send(Err(error))),
                            Ok(running) => {
                                let _ = tell.send(Ok(running.endpoints));
                                running.serve(&ending).await;
                            }
                        }
                    });
                }
            })
            .map_err(Error::Runtime)?;
        let endpoints = told
            .recv()
            .unwrap_or_else(|_| Err(Error::Runtime(std::io::Error::other("the control thread ended at once"))))?;
        Ok(Self { endpoints, ending, control: Some(control) })
    }

    /// The ports of its own endpoints.
    pub fn endpoints(&self) -> Endpoints {
        self.endpoints
    }

    /// Starts an orderly end: no new connections, and live ones get the drain deadline.
    pub fn drain(&self) {
        self.ending.drain.cancel();
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.control.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits until it has ended. Blocks the thread.
    pub fn wait(mut self) {
        self.join();
    }

    fn join(&mut self) {
        if let Some(control) = self.control.take() {
            // A panic there was reported when it happened.
            let _ = control.join();
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.ending.cut.cancel();
        self.join();
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy").field("endpoints", &self.endpoints).finish_non_exhaustive()
    }
}
