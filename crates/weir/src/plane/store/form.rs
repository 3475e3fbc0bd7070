//! The form of stored data: layers over the store's volume at its home, below everything that hosts and other reactors use.

use super::open::random;
use std::rc::Rc;
use weir_base::{Nanos, SECONDS};
use weir_block::Volume;
use weir_control::dataplane::Hooks;
use weir_control::model::{self, Form};
use weir_control::{Code, Error};
use weir_layers::compress::{self, Compress, Options};
use weir_layers::dedup::{self, Dedup};
use weir_layers::encrypt::{Encrypt, MasterKey};
use weir_mem::BufPool;
use weir_reactor::timeout;
use weir_store::StoreError;

type Result<T, E = Error> = std::result::Result<T, E>;

/// Memory for what is known of the chunks of a compressed volume, at most: 128 GiB of them if they have 32 KiB.
const STATES: usize = 8 << 20;

/// Memory for the index of a deduplicated volume, at most: eight million chunks, which are 32 GiB if they have 4 KiB.
const INDEX: usize = 64 << 20;
/// Memory for the records of its slots, at most: those of a million chunks.
const RECORDS: usize = 16 << 20;
/// How long closing it may take.
const SETTLE: Nanos = 5 * SECONDS;

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
        let (volume, compressed) = match self.form.compression {
            None => (stored, None),
            Some(c) => {
                let options = Options {
                    algorithm: c.algorithm.algorithm(),
                    chunk: c.chunk,
                    stamp: random()?,
                    memory: STATES,
                };
                let over = Compress::new(stored, options, buffers.clone()).ok_or_else(|| {
                    Error::new(Code::Unsupported, "a compressed volume cannot be opened").because(
                        format!("{} in chunks of {} is not possible", c.algorithm, c.chunk),
                    )
                })?;
                (over.clone() as Rc<dyn Volume>, Some(over))
            }
        };
        let Some(d) = self.form.deduplication else {
            return Ok(Wrapped { volume, compressed, deduplicated: None });
        };
        let options = dedup::Options { chunk: d.chunk, index: INDEX, records: RECORDS };
        let over = Dedup::new(volume, options, buffers.clone()).ok_or_else(|| {
            Error::new(Code::Unsupported, "a deduplicated volume cannot be opened")
                .because(format!("chunks of {} bytes are not possible", d.chunk))
        })?;
        Ok(Wrapped { volume: over.clone(), compressed, deduplicated: Some(over) })
    }
}

/// A volume in its form.
pub(super) struct Wrapped {
    /// As hosts see it.
    pub(super) volume: Rc<dyn Volume>,
    /// Its layer that compresses.
    pub(super) compressed: Option<Rc<Compress>>,
    /// Its layer that deduplicates, above that.
    pub(super) deduplicated: Option<Rc<Dedup>>,
}

/// The layers of a form stand still.
pub(super) struct Still {
    _compressed: Option<compress::Hold>,
    _deduplicated: Option<dedup::Hold>,
}

impl Wrapped {
    /// Waits until nothing is under way, and keeps everybody out until what it returns is dropped, after which the layers
    /// find out anew how the stored volume is.
    pub(super) async fn hold(&self) -> Still {
        let deduplicated = match &self.deduplicated {
            Some(d) => Some(d.hold().await),
            None => None,
        };
        let compressed = match &self.compressed {
            Some(c) => Some(c.hold().await),
            None => None,
        };
        Still { _compressed: compressed, _deduplicated: deduplicated }
    }

    /// Ends what the layers do besides I/O, before the volume is closed.
    pub(super) async fn settle(&self) {
        if let Some(d) = &self.deduplicated {
            // What does not end costs a recount.
            let _ = timeout(SETTLE, d.settle()).await;
        }
    }

    /// Gives the stored volume another size, so that hosts see `len` bytes.
    pub(super) async fn resize(
        &self,
        pool: &weir_store::Pool,
        id: u32,
        stored: u64,
        len: u64,
    ) -> Result<(), StoreError> {
        let (mut len, mut deduplicated) = (len, None);
        if let Some(d) = &self.deduplicated {
            deduplicated = Some(match len < d.geometry().len {
                true => d.shrink(len).await?,
                false => d.hold().await,
            });
            len = d.below(len);
        }
        if let Some(c) = &self.compressed {
            let now = c.geometry().len;
            if len < now {
                // What is cut off must not be there again when the volume grows: it may be in one piece with what stays.
                c.discard(len, now - len).await?;
            }
        }
        let compressed = match &self.compressed {
            Some(c) => Some(c.hold().await),
            None => None,
        };
        let done = pool.resize(id, stored).await;
        drop(Still { _compressed: compressed, _deduplicated: deduplicated });
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
