//! How one voter asks another: bytes of a request, bytes of an answer. What is in them is the engine's business.

use super::types::{Identity, Member};
use core::future::Future;
use core::time::Duration;
use thiserror::Error;

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PeerError {
    /// The request has certainly not been given to anybody.
    #[error("the voter cannot be reached: {0}")]
    NotSent(String),
    /// The request may have been carried out.
    #[error("the voter has not answered: {0}")]
    Lost(String),
}

/// A way to the other voters.
///
/// Who implements it must see to three things. A request reaches nobody but the voter of this identity. Nobody but the
/// voters of this cluster can ask or answer. What is called not sent was not sent.
pub trait Peers: Send + Sync + 'static {
    /// Asks a voter, and waits for the answer at most so long. The call may be dropped at any time.
    ///
    /// # Errors
    /// There is no answer.
    fn ask(
        &self,
        identity: Identity,
        member: &Member,
        request: Vec<u8>,
        limit: Duration,
    ) -> impl Future<Output = Result<Vec<u8>, PeerError>> + Send;
}
