//! What hosts do with all channels of a nexus.

use super::channel::{Channel, Login, NoChannel};
use std::rc::Rc;
use weir_base::{Prng, SECONDS};
use weir_reactor::timeout;

/// No login takes longer than this; the fabric and the target both have shorter limits.
const LOGIN: u64 = 30 * SECONDS;

/// Logs in. An answer that is wrong, or none at all, is told to the login's fault.
///
/// # Errors
/// There is no channel; if it was refused, why.
pub(crate) async fn login(l: Login<'_>, rng: Prng) -> Result<Rc<Channel>, Option<String>> {
    let fault = l.fault.clone();
    match timeout(LOGIN, Channel::login(l, rng)).await {
        Ok(Ok(c)) => Ok(c),
        Ok(Err(NoChannel::Refused(why))) => Err(Some(why)),
        Ok(Err(NoChannel::Wrong(what))) => {
            fault.set(what);
            Err(None)
        }
        Err(_) => {
            fault.set("a login has hung for 30 seconds".to_string());
            Err(None)
        }
    }
}

/// Ends channels and waits until they are gone.
pub(crate) async fn end(all: Vec<Rc<Channel>>) {
    for c in &all {
        c.end();
    }
    for c in all {
        c.gone().await;
    }
}
