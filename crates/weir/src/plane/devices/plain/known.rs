//! Devices that a plain pool has had. A start gives it no byte that it has not had.

use super::super::belongs::labels;
use super::super::growing::{behind, gained};
use super::super::label::{Label, most};
use super::super::{Holds, check_waited};
use super::{Starting, foreign};
use weir_control::Result;
use weir_control::model::{DeviceFound, EXTENT_ALIGN};
use weir_control::units::format_size;
use weir_uring::Held;
use weir_uring::device::{PAGE, is_as_recorded};

impl Starting<'_> {
    /// Refuses a device without a label that is not what it was, as far as something tells.
    fn check_unlabelled(&self, holds: &Holds, held: &Held) -> Result<()> {
        if self.device.labelled {
            return Err(foreign(self.path, "it does not carry the pool's label"));
        }
        if !is_as_recorded(self.device.identity.as_deref(), held.lasting_name()) {
            return Err(foreign(self.path, "it is another file or disk of that name"));
        }
        // Nothing tells it from others but what they carry.
        let (name, labels) = (self.owner.pool(), labels(held, self.path)?);
        holds.check_labels(&labels, self.path, name)?;
        holds.check_no_twin(&labels, self.path, (name, Some(self.number)))
    }

    /// It has all that it had, and gets more only if somebody has asked for that.
    /// `grows_to`: to so many bytes for volumes, and what it gains by that was looked at.
    pub(super) fn start_known(
        &self,
        holds: &Holds,
        held: &Held,
        grows_to: Option<u64>,
    ) -> Result<DeviceFound> {
        let (d, len) = (self.device, held.len().map_err(|e| self.io(e))?);
        if len < d.had() {
            let why = format!("it has {}, and had {}", format_size(len), format_size(d.had()));
            return Err(foreign(self.path, why));
        }
        let label = self.known_label(held)?;
        match &label {
            Some((l, _)) if !self.is_ours(l) => {
                let why = format!("it carries the label of device {} of pool {}", l.device, l.pool);
                return Err(foreign(self.path, why));
            }
            Some(_) => {}
            None => self.check_unlabelled(holds, held)?,
        }
        let is_behind_had = label.as_ref().is_some_and(|(_, at)| *at == d.had());
        let found = match (d.grown_from, grows_to) {
            (Some(_), _) if !held.is_block() && self.may_lengthen(held, len, grows_to) => {
                match self.lengthen(held, len) {
                    // Nobody asks for it now: what it had is there all the same, and its label behind that.
                    Err(e) if grows_to.is_none() && is_behind_had => {
                        tracing::warn!("{} does not grow: {e}", self.path.display());
                        self.had()
                    }
                    done => return done,
                }
            }
            (Some(_), Some(size)) if held.is_block() => return self.gain(held, size, len),
            _ if label.is_some() => self.had(),
            _ => self.label_inside(held, len)?,
        };
        // Of a file, what is behind the label is nobody's.
        let gained = if held.is_block() { gained(d.had(), len) } else { 0 };
        Ok(DeviceFound { gained, ..found })
    }

    /// What it had, with its label behind.
    fn had(&self) -> DeviceFound {
        DeviceFound { size: self.device.had(), labelled: true, ..DeviceFound::default() }
    }

    /// Whether a file gets what it was to have, though a crash may have come between. Bytes that are there already are anybody's, unless
    /// they were looked at or carry its own label.
    fn may_lengthen(&self, held: &Held, len: u64, grows_to: Option<u64>) -> bool {
        let size = self.device.size;
        let own = |l: Option<Label>| l.is_some_and(|l| self.is_ours(&l));
        len <= behind(self.device)
            || grows_to.is_some_and(|seen| seen >= size)
            || self.read_label(held, size).is_ok_and(own)
    }

    /// A file that somebody has asked to grow.
    fn lengthen(&self, held: &Held, len: u64) -> Result<DeviceFound> {
        let size = self.device.size;
        check_waited(self.path, self.waited)?;
        if len < most(size) {
            held.set_len(most(size)).map_err(|_| self.no_room(size))?;
        }
        self.finish(held, size)
    }

    /// A disk that somebody has asked to grow, and that was looked at for that. The label that it had stays until this is recorded.
    fn gain(&self, held: &Held, size: u64, len: u64) -> Result<DeviceFound> {
        if most(size) > len {
            let why = format!("it has {}, and had more a moment ago", format_size(len));
            return Err(foreign(self.path, why));
        }
        self.clear(held, (behind(self.device), most(size)))?;
        self.finish(held, size)
    }

    /// Gives one of an older program its label: behind its bytes, if it is a file that has no others, or where what it had leaves room.
    fn label_inside(&self, held: &Held, len: u64) -> Result<DeviceFound> {
        let size = self.device.had();
        check_waited(self.path, self.waited)?;
        let is_free = !held.is_block() && size > 0 && len <= most(size);
        if is_free && (len == most(size) || held.set_len(most(size)).is_ok()) {
            return self.finish(held, size);
        }
        // A rest behind the last whole MiB is no use to volumes.
        let place = (size / PAGE * PAGE).saturating_sub(PAGE);
        match place > 0 && place / EXTENT_ALIGN == size / EXTENT_ALIGN {
            true => self.finish(held, place),
            false => Ok(self.unlabelled(held, size)),
        }
    }
}
