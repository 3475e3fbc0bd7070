//! The form of stored data: layers over the store's volume at its home, below everything that hosts and other reactors use.

use super::open::random;
use std::rc::Rc;
use weir_block::Volume;
use weir_control::dataplane::Hooks;
use weir_control::model::{self, Form};
use weir_control::{Code, Error};
use weir_layers::compress::{Compress, Options};
use weir_layers::encrypt::{Encrypt, MasterKey};
use weir_mem::BufPool;
use weir_store::StoreError;

type Result<T, E = Error> = std::result::Result<T, E>;

/// Memory for what is known of the chunks of a compressed volume, at most: 128 GiB of them if they have 32 KiB.
const STATES: usize = 8 << 20;

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
    pub(super) fn wrap(self, stored: Rc<dyn Volume>, buffers: &BufPool) -> Result<Wrapped> {
        let stored: Rc<dyn Volume> = match self.key {
            Some(key) => Rc::new(Encrypt::new(stored, &key, buffers.clone())),
            None => stored,
        };
        let Some(c) = self.form.compression else {
            return Ok(Wrapped { volume: stored, compressed: None });
        };
        let options = Options {
            algorithm: c.algorithm.algorithm(),
            chunk: c.chunk,
            stamp: random()?,
            memory: STATES,
        };
        let over = Compress::new(stored, options, buffers.clone()).ok_or_else(|| {
            Error::new(Code::Unsupported, "a compressed volume cannot be opened")
                .because(format!("{} in chunks of {} is not possible", c.algorithm, c.chunk))
        })?;
        Ok(Wrapped { volume: over.clone(), compressed: Some(over) })
    }
}

/// A volume in its form.
pub(super) struct Wrapped {
    /// As hosts see it.
    pub(super) volume: Rc<dyn Volume>,
    /// Its layer that compresses.
    pub(super) compressed: Option<Rc<Compress>>,
}

impl Wrapped {
    /// Gives the stored volume another size, so that hosts see `len` bytes.
    pub(super) async fn resize(
        &self,
        pool: &weir_store::Pool,
        id: u32,
        stored: u64,
        len: u64,
    ) -> Result<(), StoreError> {
        let Some(c) = &self.compressed else { return pool.resize(id, stored).await };
        let now = c.geometry().len;
        if len < now {
            // What is cut off must not be there again when the volume grows: it may be in one piece with what stays.
            c.discard(len, now - len).await?;
        }
        let still = c.hold().await;
        let done = pool.resize(id, stored).await;
        drop(still);
        done
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
