//! From a volume's layout to the device graph that is built on each reactor.

use std::path::Path;
use weir_block::{GraphSpec, NodeSpec};
use weir_control::model::{DeviceKind, Layout, Pool, Volume};
use weir_control::{Code, Error, Result};

/// Name of the uppermost node of what a volume is made of.
pub(crate) const TOP: &str = "top";

/// The graph of a volume: the layers that were put over it, and what it is made of.
pub(crate) fn spec(volume: &Volume, pool: &Pool) -> Result<GraphSpec> {
    Ok(layered(volume, bare(volume, pool)?))
}

/// With the volume's layers above the top.
fn layered(volume: &Volume, mut spec: GraphSpec) -> GraphSpec {
    for l in volume.layers.iter().rev() {
        let new = NodeSpec::new(&l.node(), &l.kind).over(&spec.top);
        let new = l.params.iter().fold(new, |n, (k, v)| n.param(k, v.as_str()));
        spec.top.clone_from(&new.id);
        spec = spec.with(new);
    }
    spec
}

/// What a volume is made of: `top`, and below it one node for each part of the layout. What has moved has a layer more,
/// which keeps what hosts know of it true.
pub(crate) fn bare(volume: &Volume, pool: &Pool) -> Result<GraphSpec> {
    let mut b = Builder { volume, pool, spec: GraphSpec::new(&volume.name, TOP), next: 0 };
    let place = place(volume);
    match volume.told {
        Some(told) if volume.place > 0 => {
            b.node(&place, &volume.layout)?;
            let steady = NodeSpec::new(TOP, "steady")
                .param("write-cache", told.write_cache)
                .param("thin", told.thin)
                .over(&place);
            b.add(steady);
        }
        _ => b.node(&place, &volume.layout)?,
    }
    if b.spec.nodes.iter().all(|n| n.id != TOP) {
        b.spec.top = place;
    }
    Ok(b.spec)
}

/// Name of the uppermost node of a place. State that is kept by nodes' names is that of one place.
pub(crate) fn place(volume: &Volume) -> String {
    match volume.place {
        0 => TOP.into(),
        n => format!("place-{n}"),
    }
}

/// The graph of a volume while it moves.
pub(crate) fn moving(volume: &Volume) -> GraphSpec {
    let leaf = NodeSpec::new(TOP, super::moves::KIND).param("volume", volume.name.as_str());
    layered(volume, GraphSpec::new(&volume.name, TOP).with(leaf))
}

/// The file of a volume that has one of its own.
pub(crate) fn own_file(volume: &Volume, pool: &Pool) -> Result<Option<String>> {
    let Layout::File { device, file } = &volume.layout else { return Ok(None) };
    let dir = path(pool, *device)?;
    Ok(Some(Path::new(&dir).join(file).display().to_string()))
}

fn path(pool: &Pool, device: usize) -> Result<String> {
    let d = pool.devices.get(device).ok_or_else(|| missing(pool, device))?;
    d.path.clone().ok_or_else(|| missing(pool, device))
}

fn missing(pool: &Pool, device: usize) -> Error {
    Error::new(Code::Internal, format!("pool {} has no usable device {device}", pool.name))
}

struct Builder<'a> {
    volume: &'a Volume,
    pool: &'a Pool,
    spec: GraphSpec,
    next: usize,
}

impl Builder<'_> {
    fn block(&self) -> &'static str {
        if self.volume.block_size == 4096 { "4096" } else { "512" }
    }

    fn add(&mut self, n: NodeSpec) {
        let spec = std::mem::replace(&mut self.spec, GraphSpec::new("", TOP));
        self.spec = spec.with(n);
    }

    fn below(&mut self, layout: &Layout) -> Result<String> {
        self.next += 1;
        let id = match self.volume.place {
            0 => format!("part-{}", self.next),
            n => format!("place-{n}-part-{}", self.next),
        };
        self.node(&id, layout)?;
        Ok(id)
    }

    fn node(&mut self, id: &str, layout: &Layout) -> Result<()> {
        match layout {
            Layout::File { device, file } => {
                let dir = path(self.pool, *device)?;
                let full = Path::new(&dir).join(file).display().to_string();
                let n = NodeSpec::new(id, "disk")
                    .param("path", full)
                    .param("block-size", self.block())
                    .param("len", self.volume.size);
                self.add(n);
            }
            Layout::Extent { device, offset, length } => {
                let d =
                    self.pool.devices.get(*device).ok_or_else(|| missing(self.pool, *device))?;
                match d.kind {
                    DeviceKind::Ram | DeviceKind::Null => {
                        let kind = if d.kind == DeviceKind::Ram { "ram" } else { "null" };
                        let mut n = NodeSpec::new(id, kind)
                            .param("block-size", self.block())
                            .param("len", *length);
                        if d.kind == DeviceKind::Ram {
                            // An RDMA adapter may have it registered, so its pages stay.
                            n = n.param("release", false);
                        }
                        self.add(n);
                    }
                    _ => {
                        let disk = format!("{id}-disk");
                        let mut n = NodeSpec::new(&disk, "disk")
                            .param("path", path(self.pool, *device)?)
                            .param("block-size", self.block());
                        if d.kind == DeviceKind::File {
                            // So that a graph notices when the file has become larger.
                            n = n.param("len", super::devices::whole(d));
                        }
                        self.add(n);
                        let part = NodeSpec::new(id, "linear")
                            .param("offset", *offset)
                            .param("len", *length)
                            .over(&disk);
                        self.add(part);
                    }
                }
            }
            Layout::Store { dataset, form, .. } => {
                let mut n = NodeSpec::new(id, super::store::KIND)
                    .param("pool", self.pool.name.as_str())
                    .param("dataset", dataset.as_str());
                for (part, how) in form.words() {
                    n = n.param(part, how);
                }
                self.add(n);
            }
            Layout::Image { path, read_only, .. } => {
                let n = NodeSpec::new(id, "disk")
                    .param("path", path.as_str())
                    .param("block-size", self.block())
                    .param("len", self.volume.size)
                    .param("read-only", *read_only);
                self.add(n);
            }
            Layout::Concat { parts } => {
                let mut n = NodeSpec::new(id, "concat");
                for p in parts {
                    n = n.over(&self.below(p)?);
                }
                self.add(n);
            }
            Layout::Stripe { chunk, columns } => {
                let mut n = NodeSpec::new(id, "stripe").param("unit", *chunk);
                for c in columns {
                    n = n.over(&self.below(c)?);
                }
                self.add(n);
            }
        }
        Ok(())
    }
}
