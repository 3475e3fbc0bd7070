//! Foreign files and disks that are volumes as they are.

use super::super::local::{Local, on};
use super::super::node::Node;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::os::linux::fs::MetadataExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::PoisonError;
use weir_control::dataplane::ImageWish;
use weir_control::model::{ImageFound, Layout, Volume};
use weir_control::{Code, Error, Result};

/// `O_EXCL` without `O_CREAT` claims a block device for one user (open(2)): nobody can mount it meanwhile.
const EXCLUSIVE: i32 = 0o200;

/// Files and disks that are claimed, by volume and place.
pub(crate) type Images = BTreeMap<(String, u32), File>;

fn in_use(path: &str, why: impl std::fmt::Display) -> Error {
    Error::new(Code::DeviceInUse, format!("`{path}` is in use"))
        .because(why)
        .hint("end that use first; two users of one disk destroy its data")
}

fn io(path: &str, e: impl std::fmt::Display) -> Error {
    Error::new(Code::IoError, format!("`{path}` cannot be used"))
        .because(e)
        .hint("check that the path exists and that the daemon may use it")
}

/// Claims it for this process.
fn claim(path: &str, write: bool) -> Result<File> {
    let meta = fs::metadata(path).map_err(|e| io(path, e))?;
    let is_disk = meta.file_type().is_block_device();
    let mut options = OpenOptions::new();
    options.read(true).write(write);
    if is_disk {
        options.custom_flags(EXCLUSIVE);
    }
    let file = options.open(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::ResourceBusy => {
            in_use(path, "the kernel, or another program, holds it")
        }
        _ => io(path, e),
    })?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            Err(in_use(path, "another program, or a pool, has locked it"))
        }
        Err(TryLockError::Error(e)) => Err(io(path, e)),
    }
}

fn lines(path: impl AsRef<Path>) -> Vec<String> {
    fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// Whether the kernel uses a file: as swap, or behind a loop device.
fn used_by_kernel(path: &str) -> Option<String> {
    let swap = lines("/proc/swaps").into_iter().skip(1);
    if swap.into_iter().any(|l| l.split_whitespace().next() == Some(path)) {
        return Some("it is swap space".into());
    }
    for dir in fs::read_dir("/sys/block").into_iter().flatten().flatten() {
        let backing = lines(dir.path().join("loop/backing_file"));
        if backing.first().map(String::as_str) == Some(path) {
            return Some(format!("/dev/{} is made of it", dir.file_name().display()));
        }
    }
    None
}

/// Whether a block device, or a partition of it, is mounted or part of another device.
fn held(dev: u64) -> Option<String> {
    let number = format!("{}:{}", major(dev), minor(dev));
    let sys = PathBuf::from(format!("/sys/dev/block/{number}"));
    let mut all = vec![(number, sys.clone())];
    for sub in fs::read_dir(&sys).into_iter().flatten().flatten() {
        if sub.path().join("partition").exists() {
            let number = lines(sub.path().join("dev")).into_iter().next().unwrap_or_default();
            all.push((number, sub.path()));
        }
    }
    let mounts = lines("/proc/self/mountinfo");
    for (number, sys) in &all {
        let mounted = mounts.iter().find(|l| l.split_whitespace().nth(2) == Some(number));
        if let Some(line) = mounted {
            let at = line.split_whitespace().nth(4).unwrap_or("somewhere");
            return Some(format!("it, or a partition of it, is mounted at {at}"));
        }
        let mut holders = fs::read_dir(sys.join("holders")).into_iter().flatten().flatten();
        if let Some(h) = holders.next() {
            return Some(format!("{} is made of it", h.file_name().display()));
        }
    }
    None
}

/// Major and minor number (makedev(3), Linux).
fn major(dev: u64) -> u64 {
    ((dev >> 8) & 0xfff) | ((dev >> 32) & !0xfff)
}

fn minor(dev: u64) -> u64 {
    (dev & 0xff) | ((dev >> 12) & !0xff)
}

/// Makes a sparse file that is not there yet.
fn create(path: &str, size: u64) -> Result<()> {
    let made = OpenOptions::new().write(true).create_new(true).open(path);
    let file = made.map_err(|e| match e.kind() {
        std::io::ErrorKind::AlreadyExists => {
            Error::new(Code::DeviceInUse, format!("`{path}` exists"))
                .because("--create makes a new file")
                .hint("name another one; or leave --create out, and what is in it is overwritten")
        }
        _ => io(path, e),
    })?;
    file.set_len(size).and_then(|()| file.sync_all()).map_err(|e| io(path, e))
}

/// Removes a file that was made for a volume that did not go there.
pub(crate) fn remove_image(volume: &Volume) -> Result<()> {
    let Layout::Image { path, .. } = &volume.layout else { return Ok(()) };
    match fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(io(path, e)),
        _ => Ok(()),
    }
}

impl Node {
    /// Looks at a file or disk and refuses what others use.
    pub(in crate::plane) async fn look_at_image(&self, wish: &ImageWish) -> Result<ImageFound> {
        if let Some(size) = wish.create {
            create(&wish.path, size)?;
        }
        let found = self.look_at(wish).await;
        if found.is_err() && wish.create.is_some() {
            // It was made a moment ago, by us.
            drop(fs::remove_file(&wish.path));
        }
        found
    }

    async fn look_at(&self, wish: &ImageWish) -> Result<ImageFound> {
        let path = fs::canonicalize(&wish.path).map_err(|e| {
            let hint = "name a file or block device that is there; `--create` of `weir volume export` makes a file";
            io(&wish.path, e).hint(hint)
        })?;
        let path = path.display().to_string();
        let meta = fs::metadata(&path).map_err(|e| io(&path, e))?;
        let used = if meta.file_type().is_block_device() {
            held(meta.st_rdev()).or_else(|| used_by_kernel(&path))
        } else if meta.is_file() {
            used_by_kernel(&path)
        } else {
            return Err(Error::new(Code::InvalidDevice, format!("`{path}` cannot be a volume"))
                .because("it is neither a file nor a block device")
                .hint("name a file or block device"));
        };
        if let Some(why) = used {
            return Err(in_use(&path, why));
        }
        let claimed = claim(&path, wish.write)?;
        let size = match meta.is_file() {
            true => meta.len(),
            false => {
                use std::io::Seek;
                (&claimed).seek(std::io::SeekFrom::End(0)).map_err(|e| io(&path, e))?
            }
        };
        let first = self.handles().into_iter().next();
        let Some(h) = first else { return Err(Error::new(Code::Internal, "there is no reactor")) };
        let path2 = path.clone();
        let block_size = on(&h, move |local: Rc<Local>| {
            Box::pin(async move {
                let o = weir_uring::OpenOptions {
                    create: false,
                    len: None,
                    direct: true,
                    read_only: true,
                };
                let disk = local.open_file(Path::new(&path2), o).map_err(|e| io(&path2, e))?;
                if let Ok(label) = weir_store::label_of(&disk).await {
                    return Err(in_use(
                        &path2,
                        format!("it carries the label of protected pool {:032x}", label.pool),
                    )
                    .hint("its volumes are read by opening that pool; if nobody needs it any more, erase its first MiB"));
                }
                Ok(disk.block_size())
            })
        })
        .await?;
        drop(claimed);
        Ok(ImageFound { path, size, block_size })
    }

    /// Claims the file or disk that a volume is, as long as it is open. Does nothing for others.
    pub(in crate::plane) fn lock_image(&self, volume: &Volume) -> Result<()> {
        let Layout::Image { path, read_only } = &volume.layout else { return Ok(()) };
        let key = (volume.name.clone(), volume.place);
        let mut images = self.images.lock().unwrap_or_else(PoisonError::into_inner);
        if let std::collections::btree_map::Entry::Vacant(e) = images.entry(key) {
            e.insert(claim(path, !read_only)?);
        }
        Ok(())
    }

    /// Lets go of what was claimed for a volume: in one of its places, or in all.
    pub(in crate::plane) fn unlock_image(&self, name: &str, place: Option<u32>) {
        let mut images = self.images.lock().unwrap_or_else(PoisonError::into_inner);
        images.retain(|(n, p), _| n != name || place.is_some_and(|wanted| wanted != *p));
    }
}
