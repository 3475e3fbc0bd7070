//! Volumes of every form that grow: what is new reads as zeros.

use super::forms::Form;
use super::pool::{PATIENCE, Story};
use crate::Wrong;
use weir_base::{IoError, Prng};
use weir_block::Volume;
use weir_mem::Slice;
use weir_store::StoreError;

/// Bytes of a sector.
const SECTOR: u64 = 512;

async fn is_all(v: &dyn Volume, at: u64, len: u64, value: u8) -> Result<bool, IoError> {
    let buf = Slice::heap(len as usize);
    v.read(at, buf.clone()).await?;
    Ok(buf.to_vec().iter().all(|b| *b == value))
}

impl Story {
    /// Volumes across a border of groups of chunks.
    pub(crate) fn across(&self) -> u64 {
        let is = |v: &&std::rc::Rc<super::pool::Loaded>| {
            let (at, len) = v.load.extent();
            v.form.border().is_some_and(|b| (at..at + len as u64).contains(&(b * SECTOR)))
        };
        self.volumes.iter().filter(is).count() as u64
    }

    /// A volume of odd length is written to its end and grows, beside others of all kinds.
    pub(crate) fn grow(&mut self) -> Result<(), Wrong> {
        let mut rng = self.w.rng(0x60_5709);
        for n in 0..2 {
            let form = Form::draw(&mut rng);
            self.grow_one(n, form, &mut rng)?;
        }
        Ok(())
    }

    fn grow_one(&mut self, n: u64, form: Form, rng: &mut Prng) -> Result<(), Wrong> {
        let (pool, forms) = (self.running()?, self.director.forms());
        if super::director::is_low(&pool) || pool.status().suspended.is_some() {
            return Ok(());
        }
        let (old, more) = (rng.between(1, 90) * SECTOR, rng.between(1, 90) * SECTOR);
        let name = format!("grown{n}");
        let work = async move {
            let id = pool.create_volume(&name, form.stored_len(old), 512).await?;
            let f = forms.open(&pool, id, form)?;
            // What others store goes through the same buffers.
            for value in [0x11u8, 0x22] {
                let buf = Slice::heap(old as usize);
                buf.fill(value);
                f.volume.write(0, buf, false).await?;
            }
            let still = f.hold().await;
            pool.resize(id, form.stored_len(old + more)).await?;
            drop(still);
            let good =
                is_all(&*f.volume, 0, old, 0x22).await? && is_all(&*f.volume, old, more, 0).await?;
            forms.close(id).await;
            pool.delete(id).await?;
            Ok::<bool, StoreError>(good)
        };
        match self.w.run(&self.node, PATIENCE, work)? {
            Ok(true) => self.beside.grown.set(self.beside.grown.get() + 1),
            Ok(false) => {
                return Err(Wrong(format!(
                    "a volume of {old} bytes in {form:?} grew by {more}, and reads otherwise"
                )));
            }
            Err(StoreError::Io(IoError::NoSpace)) => {}
            Err(e) => return Err(Wrong(format!("growing a volume in {form:?}: {e}"))),
        }
        Ok(())
    }
}
