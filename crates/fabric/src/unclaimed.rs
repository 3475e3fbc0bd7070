//! A connection between its set-up and its owner.

use crate::Connection;
use std::rc::Rc;

/// A connection that nobody owns yet: it ends with this, unless it is claimed before.
pub struct Unclaimed {
    conn: Rc<dyn Connection>,
    claimed: bool,
}

impl Unclaimed {
    /// Takes charge of a connection that was just made.
    pub fn new(conn: Rc<dyn Connection>) -> Unclaimed {
        Unclaimed { conn, claimed: false }
    }

    /// From here on it is up to the caller to end the connection.
    pub fn claim(mut self) -> Rc<dyn Connection> {
        self.claimed = true;
        self.conn.clone()
    }
}

impl std::ops::Deref for Unclaimed {
    type Target = dyn Connection;

    fn deref(&self) -> &Self::Target {
        &*self.conn
    }
}

impl Drop for Unclaimed {
    fn drop(&mut self) {
        if !self.claimed {
            self.conn.disconnect(true);
        }
    }
}
