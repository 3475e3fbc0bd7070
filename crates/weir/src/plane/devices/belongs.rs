//! Which pool a device belongs to, by the labels that are on it, whatever it is called.

use super::label::Label as Plain;
use super::{Holds, in_use, lock, unusable};
use std::path::Path;
use weir_control::Result;
use weir_control::model::PoolId;
use weir_store::format::label::Label;
use weir_uring::Held;
use weir_uring::device::PAGE;

/// The pools whose labels a file or block device carries, at any of the places where labels are.
pub(super) fn labels(held: &Held, path: &Path) -> Result<Vec<PoolId>> {
    let mut found = Vec::new();
    if held.is_directory() {
        return Ok(found);
    }
    let io = |e: std::io::Error| unusable(path, e);
    let end = held.len().map_err(io)? / PAGE * PAGE;
    let places = [Some(0), Some(PAGE), end.checked_sub(PAGE), end.checked_sub(2 * PAGE)];
    for at in places.into_iter().flatten().filter(|at| at + PAGE <= end) {
        let page = held.read(at, PAGE as usize).map_err(io)?;
        let protected = page.as_slice().try_into().ok().and_then(|p| Label::decode(p).ok());
        let plain = Plain::decode(&page).ok().flatten().map(|l| l.pool);
        let id = protected.map(|l| PoolId(l.pool)).or(plain);
        found.extend(id.filter(|id| !found.contains(id)));
    }
    Ok(found)
}

impl Holds {
    /// Notes which pools the configuration has, whether they can be started or not.
    pub(crate) fn know(&self, pools: Vec<(String, PoolId)>) {
        *lock(&self.known) = pools.into_iter().collect();
    }

    /// Whether a device carries the label of this pool. Refuses one that carries the label of another pool of this node: also
    /// while that is not up, by whichever name it is reached, and whatever may be overwritten.
    pub(crate) fn check_belongs(
        &self,
        held: &Held,
        path: &Path,
        pool: Option<&str>,
    ) -> Result<bool> {
        let labels = labels(held, path)?;
        let known = lock(&self.known);
        let mut owners = known.iter().filter(|(_, id)| labels.contains(id)).map(|(name, _)| name);
        let mut own = false;
        match owners.find(|name| {
            own |= pool == Some(name.as_str());
            pool != Some(name.as_str())
        }) {
            Some(other) => Err(in_use(path, format!("it is a device of this node's pool `{other}`"))
                .hint(format!("`weir pool show {other}` tells how that pool stands; once it is deleted or released the device may be used"))),
            None => Ok(own),
        }
    }
}
