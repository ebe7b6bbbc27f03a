//! All pods of the node: what is known of them, and their tasks.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use leno_capture::NetworkNamespace;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::cluster::News;
use crate::directory::{Directory, Wish};
use crate::pod::{Handle, PodTask, Request, Shared, Standing};
use crate::state::{self, Remembered, State};

/// The pods of the node. Clones are the same.
#[derive(Clone)]
pub(crate) struct Registry {
    shared: Arc<Shared>,
    state_file: PathBuf,
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    // First: tasks must not see their handles go when the agent ends, because then they would let go of their pods.
    tasks: JoinSet<()>,
    directory: Directory,
    handles: HashMap<String, Handle>,
    /// What the plugin's file says.
    written: Option<BTreeSet<String>>,
    /// No pod is to be in the mesh any more.
    removing: bool,
}

impl Registry {
    pub(crate) fn new(shared: Arc<Shared>, directory: Directory, state_file: PathBuf) -> Self {
        let inner = Inner { tasks: JoinSet::new(), directory, handles: HashMap::new(), written: None, removing: false };
        Self { shared, state_file, inner: Arc::new(Mutex::new(inner)) }
    }

    /// Looks something up.
    pub(crate) fn ask<T>(&self, question: impl FnOnce(&mut Directory) -> T) -> T {
        question(&mut self.inner.lock().directory)
    }

    /// Takes in news, and does what follows from all of it.
    pub(crate) fn take(&self, news: impl IntoIterator<Item = News>) {
        let mut inner = self.inner.lock();
        news.into_iter().for_each(|news| inner.directory.take(news));
        drop(inner);
        self.act(HashMap::new());
    }

    /// Starts, informs and ends the tasks of pods, as what is known says. `found` are namespaces of pods, by uid.
    pub(crate) fn act(&self, mut found: HashMap<String, NetworkNamespace>) {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        let mut wishes = inner.directory.wishes();
        if inner.removing {
            wishes.values_mut().for_each(|wish| wish.in_mesh = false);
        }
        inner.handles.retain(|uid, _| wishes.contains_key(uid));
        for (uid, wish) in wishes {
            match inner.handles.get(&uid) {
                Some(handle) => {
                    handle.wish.send_if_modified(|known| {
                        let changed = *known != wish;
                        *known = wish;
                        changed
                    });
                }
                None if wish.in_mesh || wish.annotated => {
                    let (task, handle) = PodTask::new(self.shared.clone(), wish, found.remove(&uid));
                    inner.tasks.spawn(task.run());
                    inner.handles.insert(uid, handle);
                }
                None => {}
            }
        }
        while inner.tasks.try_join_next().is_some() {}
        self.write_state(inner);
        let wanted = inner.handles.values().filter(|handle| handle.wish.borrow().in_mesh).count();
        self.shared.metrics.wanted.set(i64::try_from(wanted).unwrap_or(i64::MAX));
    }

    /// The plugin decides by this while no agent answers.
    fn write_state(&self, inner: &mut Inner) {
        let Some(namespaces) = inner.directory.mesh_namespaces() else { return };
        if inner.removing || inner.written.as_ref() == Some(&namespaces) {
            return;
        }
        match state::write(&self.state_file, &State { namespaces: namespaces.clone() }) {
            Ok(()) => inner.written = Some(namespaces),
            Err(error) => tracing::warn!(
                "can't write {}: {error}; while no agent runs, the CNI plugin decides by what was true before",
                self.state_file.display()
            ),
        }
    }

    /// Whether the plugin can decide alone.
    pub(crate) fn is_written(&self) -> bool {
        self.inner.lock().written.is_some()
    }

    /// Hands a request to the task of a pod that is to be in the mesh, which is started if it does not run.
    pub(crate) fn requests(&self, uid: &str) -> Option<mpsc::Sender<Request>> {
        if !self.inner.lock().handles.contains_key(uid) {
            self.act(HashMap::new());
        }
        self.inner.lock().handles.get(uid).map(|handle| handle.requests.clone())
    }

    /// The pods that are in the mesh now.
    pub(crate) fn enrolled(&self) -> Vec<Remembered> {
        let inner = self.inner.lock();
        let enrolled = inner.handles.values().filter(|handle| handle.standing.borrow().enrolled);
        let mut pods: Vec<_> = enrolled
            .map(|handle| {
                let Wish { info, addresses, runtime_uid, .. } = &*handle.wish.borrow();
                Remembered::new(info, addresses, runtime_uid)
            })
            .collect();
        pods.sort();
        pods
    }

    /// Takes all pods out of the mesh. Returns their standings.
    pub(crate) fn remove_all(&self) -> Vec<watch::Receiver<Standing>> {
        self.inner.lock().removing = true;
        self.act(HashMap::new());
        self.inner.lock().handles.values().map(|handle| handle.standing.clone()).collect()
    }
}
