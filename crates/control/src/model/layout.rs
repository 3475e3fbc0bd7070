//! Where a volume's blocks are: a tree that names layers, and the allocation of device space for its leaves.

use super::{Form, Pool, Volume};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Device space is handed out in multiples of this many bytes.
pub const EXTENT_ALIGN: u64 = 1 << 20;
/// Smallest stripe chunk in bytes.
pub const MIN_CHUNK: u64 = 4 << 10;
/// Largest stripe chunk in bytes; it divides [`EXTENT_ALIGN`], so that columns end on whole chunks.
pub const MAX_CHUNK: u64 = EXTENT_ALIGN;

/// The device graph of one volume. Devices are indices into the pool's list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "layer", rename_all = "lowercase")]
pub enum Layout {
    /// A sparse file of its own in a directory device.
    File {
        /// The directory device.
        device: usize,
        /// The file's name in it.
        file: String,
    },
    /// A contiguous piece of a device.
    Extent {
        /// The device.
        device: usize,
        /// First byte on the device.
        offset: u64,
        /// Length in bytes.
        length: u64,
    },
    /// A volume of the pool store, in a protected pool.
    Store {
        /// What it is called on the devices: the volume's identity.
        dataset: String,
        /// The snapshot that it was made of, as it is called on the devices.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        origin: Option<String>,
        /// What it is turned into before it is kept there.
        #[serde(default, skip_serializing_if = "Form::is_plain")]
        form: Form,
    },
    /// A file or block device of its own, byte by byte.
    Image {
        /// Where it is: an absolute path.
        path: String,
        /// It is opened for reading only.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        read_only: bool,
        /// What tells it from others that come to have its name: of a file its number in its file system, of a disk its
        /// world-wide name. None where the system knows nothing of the kind.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        identity: Option<String>,
    },
    /// Parts one after the other.
    Concat {
        /// The parts in address order.
        #[schema(no_recursion)]
        parts: Vec<Layout>,
    },
    /// Round-robin over columns of equal length: chunk `i` is chunk `i / columns` of column `i % columns`.
    Stripe {
        /// Bytes per chunk.
        chunk: u64,
        /// The columns.
        #[schema(no_recursion)]
        columns: Vec<Layout>,
    },
}

impl Layout {
    /// Bytes that the layout gives; `None` for a file, an image and in a protected pool, which give the volume's size.
    pub fn capacity(&self) -> Option<u64> {
        match self {
            Layout::File { .. } | Layout::Store { .. } | Layout::Image { .. } => None,
            Layout::Extent { length, .. } => Some(*length),
            Layout::Concat { parts } => parts.iter().map(Layout::capacity).sum(),
            Layout::Stripe { columns, .. } => {
                let least = columns.iter().map(Layout::capacity).min().flatten()?;
                Some(least * columns.len() as u64)
            }
        }
    }

    /// The snapshot that it was made of, as it is called on the devices.
    pub fn origin(&self) -> Option<&String> {
        match self {
            Layout::Store { origin, .. } => origin.as_ref(),
            _ => None,
        }
    }

    /// Calls `f(device, offset, length)` for every extent.
    pub fn for_each_extent(&self, f: &mut impl FnMut(usize, u64, u64)) {
        match self {
            Layout::File { .. } | Layout::Store { .. } | Layout::Image { .. } => {}
            Layout::Extent { device, offset, length } => f(*device, *offset, *length),
            Layout::Concat { parts: below } | Layout::Stripe { columns: below, .. } => {
                below.iter().for_each(|l| l.for_each_extent(f));
            }
        }
    }

    /// The devices it uses, in ascending order.
    pub fn devices(&self) -> Vec<usize> {
        let mut all = Vec::new();
        if let Layout::File { device, .. } = self {
            all.push(*device);
        }
        self.for_each_extent(&mut |d, _, _| all.push(d));
        all.sort_unstable();
        all.dedup();
        all
    }

    fn extents(&self) -> Vec<Extent> {
        let mut all = Vec::new();
        self.for_each_extent(&mut |device, offset, length| {
            all.push(Extent { device, offset, length });
        });
        all
    }

    /// One extent as it is, several as a concat; neighbours on the device become one.
    fn linear(extents: Vec<Extent>) -> Layout {
        let mut merged: Vec<Extent> = Vec::with_capacity(extents.len());
        for e in extents {
            match merged.last_mut() {
                Some(l) if l.device == e.device && l.offset + l.length == e.offset => {
                    l.length += e.length;
                }
                _ => merged.push(e),
            }
        }
        let mut parts: Vec<Layout> = merged.into_iter().map(Extent::layout).collect();
        if parts.len() == 1 { parts.swap_remove(0) } else { Layout::Concat { parts } }
    }

    /// The layout cut to the first `size` bytes, rounded up to whole extents.
    pub(super) fn shrunk(&self, size: u64) -> Layout {
        match self {
            Layout::File { .. } | Layout::Store { .. } | Layout::Image { .. } => self.clone(),
            Layout::Extent { .. } | Layout::Concat { .. } => {
                let mut left = round_up(size);
                let mut kept = self.extents();
                for e in &mut kept {
                    e.length = e.length.min(left);
                    left -= e.length;
                }
                kept.retain(|e| e.length > 0);
                Layout::linear(kept)
            }
            Layout::Stripe { chunk, columns } => {
                let each = column_size(size, *chunk, columns.len());
                let columns = columns.iter().map(|c| c.shrunk(each)).collect();
                Layout::Stripe { chunk: *chunk, columns }
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Extent {
    device: usize,
    offset: u64,
    length: u64,
}

impl Extent {
    fn layout(self) -> Layout {
        Layout::Extent { device: self.device, offset: self.offset, length: self.length }
    }
}

fn round_up(size: u64) -> u64 {
    size.next_multiple_of(EXTENT_ALIGN)
}

/// Length of each column so that `columns` of them hold `size` bytes in whole chunks and whole extents.
fn column_size(size: u64, chunk: u64, columns: usize) -> u64 {
    let rows = size.div_ceil(chunk).div_ceil(columns as u64);
    round_up(rows * chunk)
}

/// The free space of a pool, computed from the layouts of its volumes.
#[derive(Debug)]
pub(super) struct FreeSpace {
    /// Per device the free pieces as `(offset, length)`, ascending and aligned.
    devices: Vec<Vec<(u64, u64)>>,
}

impl FreeSpace {
    pub(super) fn of<'a>(
        pool: &Pool,
        places: impl Iterator<Item = (&'a Volume, &'a Layout)>,
    ) -> FreeSpace {
        let mut used: Vec<Vec<(u64, u64)>> = vec![Vec::new(); pool.devices.len()];
        for (_, layout) in places {
            layout.for_each_extent(&mut |device, offset, length| {
                if let Some(u) = used.get_mut(device) {
                    u.push((offset, length));
                }
            });
        }
        let devices = pool.devices.iter().zip(used).map(|(device, mut used)| {
            used.sort_unstable();
            let end = device.size / EXTENT_ALIGN * EXTENT_ALIGN;
            let mut free = Vec::new();
            let mut at = 0;
            for (offset, length) in used {
                if offset > at {
                    free.push((at, offset - at));
                }
                at = at.max(offset + length);
            }
            if end > at {
                free.push((at, end - at));
            }
            free
        });
        FreeSpace { devices: devices.collect() }
    }

    /// Free bytes on one device.
    pub(super) fn on(&self, device: usize) -> u64 {
        self.devices.get(device).map_or(0, |f| f.iter().map(|(_, l)| l).sum())
    }

    /// Takes `need` bytes from one device, in one piece if any piece is large enough; else in several.
    fn take(&mut self, device: usize, need: u64) -> Option<Vec<Extent>> {
        if self.on(device) < need {
            return None;
        }
        let free = self.devices.get_mut(device)?;
        let mut taken = Vec::new();
        let mut left = need;
        let mut cut = |piece: &mut (u64, u64), left: &mut u64| {
            let length = piece.1.min(*left);
            taken.push(Extent { device, offset: piece.0, length });
            *piece = (piece.0 + length, piece.1 - length);
            *left -= length;
        };
        if let Some(fits) = free.iter_mut().find(|p| p.1 >= need) {
            cut(fits, &mut left);
        } else {
            for piece in free.iter_mut() {
                if left > 0 {
                    cut(piece, &mut left);
                }
            }
        }
        free.retain(|p| p.1 > 0);
        Some(taken)
    }

    /// `size` bytes, device after device; `None` when there is too little.
    pub(super) fn concat(&mut self, devices: &[usize], size: u64) -> Option<Layout> {
        self.take_over(devices, round_up(size)).map(Layout::linear)
    }

    fn take_over(&mut self, devices: &[usize], need: u64) -> Option<Vec<Extent>> {
        let mut left = need;
        let mut extents = Vec::new();
        // A device that holds it all keeps the volume in one piece.
        if let Some(whole) = devices.iter().find(|d| self.on(**d) >= need) {
            return self.take(*whole, need);
        }
        for d in devices {
            let here = self.on(*d).min(left);
            if here > 0 {
                extents.extend(self.take(*d, here)?);
                left -= here;
            }
        }
        (left == 0).then_some(extents)
    }

    /// `size` bytes striped over `columns` of `devices`, those with most room first.
    pub(super) fn stripe(
        &mut self,
        devices: &[usize],
        columns: usize,
        chunk: u64,
        size: u64,
    ) -> Option<Layout> {
        let each = column_size(size, chunk, columns);
        let mut chosen = devices.to_vec();
        chosen.sort_by_key(|d| std::cmp::Reverse(self.on(*d)));
        chosen.truncate(columns);
        chosen.sort_unstable();
        let columns = chosen
            .into_iter()
            .map(|d| self.take(d, each).map(Layout::linear))
            .collect::<Option<Vec<_>>>()?;
        Some(Layout::Stripe { chunk, columns })
    }

    /// The layout with room for `size` bytes; what it has stays where it is.
    pub(super) fn grown(
        &mut self,
        layout: &Layout,
        devices: &[usize],
        size: u64,
    ) -> Option<Layout> {
        match layout {
            Layout::File { .. } | Layout::Store { .. } | Layout::Image { .. } => {
                Some(layout.clone())
            }
            Layout::Extent { .. } | Layout::Concat { .. } => {
                let need = round_up(size).saturating_sub(layout.capacity()?);
                let mut extents = layout.extents();
                // The device where it ends now comes first: the volume may stay in one piece.
                let mut order: Vec<usize> = extents.last().map(|e| e.device).into_iter().collect();
                let first = order.first().copied();
                order.extend(devices.iter().copied().filter(|d| Some(*d) != first));
                if need > 0 {
                    let next = self.take_after(extents.last().copied(), need);
                    extents.extend(match next {
                        Some(e) => vec![e],
                        None => self.take_over(&order, need)?,
                    });
                }
                Some(Layout::linear(extents))
            }
            Layout::Stripe { chunk, columns } => {
                let each = column_size(size, *chunk, columns.len());
                let columns = columns
                    .iter()
                    .map(|c| self.grown(c, &c.devices(), each))
                    .collect::<Option<Vec<_>>>()?;
                Some(Layout::Stripe { chunk: *chunk, columns })
            }
        }
    }

    /// `need` bytes right behind `last`, if they are free.
    fn take_after(&mut self, last: Option<Extent>, need: u64) -> Option<Extent> {
        let last = last?;
        let end = last.offset + last.length;
        let free = self.devices.get_mut(last.device)?;
        let piece = free.iter_mut().find(|p| p.0 == end && p.1 >= need)?;
        *piece = (piece.0 + need, piece.1 - need);
        free.retain(|p| p.1 > 0);
        Some(Extent { device: last.device, offset: end, length: need })
    }
}

/// Most bytes that a new volume of `columns` stripe columns, or a linear one (`columns` 0), could have.
pub(super) fn largest(free: &FreeSpace, devices: &[usize], columns: usize) -> u64 {
    let mut rooms: Vec<u64> = devices.iter().map(|d| free.on(*d)).collect();
    if columns == 0 {
        return rooms.iter().sum();
    }
    rooms.sort_unstable_by(|a, b| b.cmp(a));
    rooms.get(columns - 1).map_or(0, |least| least * columns as u64)
}
