//! A start that is given up halfway.

use tokio::sync::watch;

use crate::Error;

/// Whether a start is to be given up.
pub(crate) struct GiveUp(watch::Receiver<bool>);

impl GiveUp {
    /// It is once this holds `true`.
    pub(crate) fn when(asked: watch::Receiver<bool>) -> Self {
        Self(asked)
    }

    /// Waits until it is.
    pub(crate) async fn asked(&self) {
        if self.0.clone().wait_for(|asked| *asked).await.is_err() {
            // Nobody is left who could ask.
            std::future::pending::<()>().await;
        }
    }

    /// To be called between two steps: lets whoever asks have a turn.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if it is.
    pub(crate) async fn check(&self) -> Result<(), Error> {
        tokio::task::yield_now().await;
        if *self.0.borrow() { Err(Error::Interrupted) } else { Ok(()) }
    }
}
