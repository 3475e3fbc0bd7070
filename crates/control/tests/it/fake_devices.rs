//! Devices of the data plane that keeps what it was told, which may hang.

use super::Fake;
use std::time::Duration;
use tokio::time::timeout;
use weir_control::{Code, Error};

fn silent(path: &str) -> Error {
    Error::new(Code::IoError, format!("`{path}` does not answer"))
}

/// A device is being taken.
struct Takes<'a>(&'a Fake, String);

impl Drop for Takes<'_> {
    fn drop(&mut self) {
        self.0.state().taking.remove(&self.1);
    }
}

impl Fake {
    async fn answers(&self, path: &str) {
        let hung = self.state().hung_devices.get(path).cloned();
        if let Some(answers) = hung {
            answers.notified().await;
        }
    }

    /// Devices are taken. One that somebody takes just now is said not to answer, as of the real ones.
    pub(super) async fn taken(&self, paths: Vec<String>) -> Result<(), Error> {
        for path in paths {
            if !self.state().taking.insert(path.clone()) {
                return Err(silent(&path));
            }
            let taken = Takes(self, path);
            self.answers(&taken.1).await;
        }
        Ok(())
    }

    pub(super) async fn asked(&self, path: &str, within: Duration) -> Result<(), Error> {
        self.state().asked.push(path.into());
        timeout(within, self.answers(path)).await.map_err(|_| silent(path))
    }
}
