//! Volumes that are in a newer pool as well, as its devices say: what this configuration has of them elsewhere is not served. That
//! outlives the pool's being here, and ends by a command only.

use super::*;

impl Model {
    /// A pool whose devices carry a newer configuration has that volume.
    pub(super) fn note_newer(&mut self, name: &str, pool: &str) -> Result<Vec<Change>> {
        let id = self.pool(pool)?.protection.as_ref().map(|p| p.id);
        let newer_in = id.map(|id| NewerIn { pool: pool.to_string(), id });
        let text = format!(
            "volume `{name}` is in pool `{pool}`, which carries a newer configuration; what is here of it is not served"
        );
        self.set_newer(name, newer_in, text)
    }

    /// What is here of a volume counts, whatever another pool had of it.
    pub(super) fn serve_here(&mut self, name: &str, patch: &VolumePatch) -> Result<Vec<Change>> {
        if *patch != (VolumePatch { serve_here: true, ..VolumePatch::default() }) {
            return Err(Error::new(
                Code::InvalidRequest,
                format!("volume `{name}` is not changed while it is not served"),
            )
            .hint("have it served first, then change it"));
        }
        let text = format!("volume `{name}` is served as it is here, whatever another pool had");
        self.set_newer(name, None, text)
    }

    fn set_newer(&mut self, name: &str, to: Option<NewerIn>, text: String) -> Result<Vec<Change>> {
        self.volume(name)?;
        match self.volumes.get_mut(name) {
            Some(v) if v.newer_in != to => v.newer_in = to,
            _ => return Ok(Vec::new()),
        }
        Ok(vec![Change::new(ObjectKind::Volume, Action::Updated, name, text)])
    }
}
