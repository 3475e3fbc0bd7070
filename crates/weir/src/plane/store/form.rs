//! The form of stored data: layers over the store's volume at its home, below everything that hosts and other reactors use.

use std::rc::Rc;
use weir_block::Volume;
use weir_control::dataplane::Hooks;
use weir_control::model::{self, Form};
use weir_control::{Code, Error, Result};
use weir_layers::encrypt::{Encrypt, MasterKey};
use weir_mem::BufPool;

/// What it takes to open a volume in its form, made ready before its reactor is asked.
pub(super) struct Wrapping {
    form: Form,
    key: Option<MasterKey>,
}

impl Wrapping {
    /// For a volume in one of its places. Gets its key, if it has one.
    pub(super) async fn of(volume: &model::Volume, hooks: Option<&Hooks>) -> Result<Wrapping> {
        let form = volume.form().clone();
        let key = match &form.encryption {
            None => None,
            Some(e) => Some(master(volume, e, hooks).await?),
        };
        Ok(Wrapping { form, key })
    }

    /// Bytes of the stored volume, where hosts see `size` bytes.
    pub(super) fn stored_len(&self, size: u64) -> u64 {
        self.form.stored_len(size)
    }

    /// The volume as hosts see it, over the stored one. From the host down: first what makes data smaller, then what
    /// makes it unreadable, since that cannot be made smaller any more.
    pub(super) fn wrap(self, stored: Rc<dyn Volume>, buffers: &BufPool) -> Rc<dyn Volume> {
        match self.key {
            Some(key) => Rc::new(Encrypt::new(stored, &key, buffers.clone())),
            None => stored,
        }
    }
}

async fn master(
    volume: &model::Volume,
    encryption: &model::Encryption,
    hooks: Option<&Hooks>,
) -> Result<MasterKey> {
    let name = &volume.name;
    let hooks =
        hooks.ok_or_else(|| Error::new(Code::Internal, "the data plane is not attached"))?;
    let bytes = hooks.keys.master(encryption).await.map_err(|e| {
        let hint = e.hint.replace("VOLUME", name);
        Error::new(e.code, format!("encrypted volume {name} cannot be opened"))
            .because(e)
            .hint(hint)
    })?;
    MasterKey::new(&bytes).ok_or_else(|| {
        Error::new(Code::KeyDamaged, format!("encrypted volume {name} cannot be opened"))
            .because("both halves of its key are the same")
    })
}
