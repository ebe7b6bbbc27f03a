//! Tasks that end with their owner.

use tokio::task::JoinHandle;

/// Background tasks that end with their owner.
#[derive(Default)]
pub(crate) struct Tasks(Vec<JoinHandle<()>>);

impl Tasks {
    pub(crate) fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.push(tokio::spawn(task));
    }

    /// Ends them and waits until what they hold is released.
    pub(crate) async fn end(mut self) {
        for task in std::mem::take(&mut self.0) {
            task.abort();
            let _ = task.await;
        }
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}
