//! The command window: which numbers a command may have, and in which order they are delivered (RFC 7143 4.2.2.1).

use std::collections::BTreeMap;

/// Whether `a` comes before `b` (RFC 1982, 32 bits).
pub fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// Numbers of one session, and what has come out of order. `W` is what is delivered.
#[derive(Debug)]
pub struct Window<W> {
    exp: u32,
    max: u32,
    /// Those that came before their turn; `None` where one counts as received that will not come.
    held: BTreeMap<u32, Option<W>>,
}

impl<W> Window<W> {
    /// Where `first` is the next number, and so many commands may come.
    pub fn new(first: u32, slots: u32) -> Window<W> {
        Window { exp: first, max: first.wrapping_add(slots).wrapping_sub(1), held: BTreeMap::new() }
    }

    /// ExpCmdSN.
    pub fn expected(&self) -> u32 {
        self.exp
    }

    /// MaxCmdSN, where so many slots are free of those that a session has. It never goes back.
    pub fn most(&mut self, free: u32) -> u32 {
        let held = u32::try_from(self.held.len()).unwrap_or(u32::MAX);
        let now = self.exp.wrapping_add(free.saturating_sub(held)).wrapping_sub(1);
        if before(self.max, now) {
            self.max = now;
        }
        self.max
    }

    /// MaxCmdSN as it was last told.
    pub fn told(&self) -> u32 {
        self.max
    }

    /// The number is one that may come: it is within the window, and has not come.
    pub fn has(&self, sn: u32) -> bool {
        !before(sn, self.exp) && !before(self.max, sn) && !self.held.contains_key(&sn)
    }

    /// Takes what has this number, and gives what is delivered first: mostly the same. More may [follow](Window::due).
    ///
    /// # Errors
    /// It is outside the window, or came already, and is to be ignored (RFC 7143 4.2.2.1): its giver has it back.
    pub fn pass(&mut self, sn: u32, what: W) -> Result<Option<W>, W> {
        if !self.has(sn) {
            return Err(what);
        }
        if sn == self.exp {
            self.exp = self.exp.wrapping_add(1);
            return Ok(Some(what));
        }
        self.held.insert(sn, Some(what));
        Ok(None)
    }

    /// What has this number counts as received, and is not delivered (RFC 7143 11.5.1, ABORT TASK).
    pub fn skip(&mut self, sn: u32) -> bool {
        let may = self.has(sn);
        if may {
            self.held.insert(sn, None);
        }
        may
    }

    /// The next that is delivered, if it is there.
    pub fn due(&mut self) -> Option<W> {
        while let Some(w) = self.held.remove(&self.exp) {
            self.exp = self.exp.wrapping_add(1);
            if w.is_some() {
                return w;
            }
        }
        None
    }

    /// What waits for its turn.
    pub fn held_mut(&mut self) -> impl Iterator<Item = &mut Option<W>> {
        self.held.values_mut()
    }

    /// Nothing is delivered any more. Gives what waited for its turn.
    pub fn clear(&mut self) -> Vec<W> {
        std::mem::take(&mut self.held).into_values().flatten().collect()
    }

    /// So many wait for their turn.
    pub fn held(&self) -> usize {
        self.held.len()
    }
}
