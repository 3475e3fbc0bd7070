//! Foreign files and disks that are volumes as they are.

use super::super::devices::{
    Holds, Owner, Wait, Waited, check_blank, check_unused, in_use, remove, unusable,
};
use super::super::node::Node;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use weir_control::dataplane::ImageWish;
use weir_control::model::{ImageFound, Layout, Volume};
use weir_control::{Code, Error, Result};
use weir_uring::device::{Made, make_file};

/// Makes a sparse file that is not there yet, and gives what was made.
fn create(path: &Path, size: u64) -> Result<Made> {
    let made = make_file(path).map_err(|e| match e.kind() {
        ErrorKind::AlreadyExists => {
            Error::new(Code::DeviceInUse, format!("`{}` exists", path.display()))
                .because("--create makes a new file")
                .hint("name another one; or leave --create out, and what is in it is overwritten")
        }
        _ => unusable(path, e),
    })?;
    let file = std::fs::OpenOptions::new().write(true).open(path);
    let sized = file.and_then(|f| f.set_len(size).and_then(|()| f.sync_all()));
    if let Err(e) = sized {
        remove(made, path);
        return Err(unusable(path, e));
    }
    Ok(made)
}

/// Looks at a file or disk and refuses what others use, and what may not be lost.
fn look(holds: &Arc<Holds>, wish: &ImageWish) -> Result<ImageFound> {
    let path = std::fs::canonicalize(&wish.path).map_err(|e| {
        let hint = "name a file or block device that is there; `--create` of `weir volume export` makes a file";
        unusable(Path::new(&wish.path), e).hint(hint)
    })?;
    let held = holds.take(&Owner::Look, &path, !wish.write, Wait::ForTheDead)?;
    let look = || {
        if held.is_directory() {
            return Err(Error::new(
                Code::InvalidDevice,
                format!("`{}` cannot be a volume", path.display()),
            )
            .because("it is neither a file nor a block device")
            .hint("name a file or block device"));
        }
        check_unused(&held, &path)?;
        match &wish.overwrite {
            Some(overwrite) if wish.create.is_none() => {
                holds.check_belongs(&held, &path, None)?;
                check_blank(&held, &path, overwrite)?;
            }
            Some(_) => {}
            None => {
                let contents = held.contents().map_err(|e| unusable(&path, e))?;
                if contents.kinds().iter().any(|k| k == "weir") {
                    return Err(in_use(&path, "it carries the label of a pool").hint(
                        "its volumes are read by opening that pool; if nobody needs it any more, erase its first and last MiB",
                    ));
                }
            }
        }
        let size = held.len().map_err(|e| unusable(&path, e))?;
        Ok(ImageFound {
            path: path.display().to_string(),
            size,
            block_size: held.block_size(),
            identity: held.lasting_name(),
        })
    };
    look()
}

impl Node {
    /// Looks at a file or disk and refuses what others use.
    pub(in crate::plane) async fn look_at_image(&self, wish: &ImageWish) -> Result<ImageFound> {
        let wish = wish.clone();
        let at = Path::new(&wish.path).to_owned();
        let path = at.clone();
        let look = move |holds: &Arc<Holds>, waited: &Waited<'_>| {
            let made = match wish.create {
                Some(size) => Some(create(&path, size)?),
                None => None,
            };
            let found = look(holds, &wish);
            if let Some(made) = made.filter(|_| found.is_err() || !waited()) {
                remove(made, &path);
            }
            found
        };
        self.holds.helped_while(&at, look).await
    }

    /// Removes a file that was made for a volume that did not go there.
    pub(in crate::plane) async fn remove_image(&self, volume: &Volume) -> Result<()> {
        let Layout::Image { path, identity, .. } = &volume.layout else { return Ok(()) };
        let owner = Owner::Place(volume.name.clone(), volume.place);
        self.holds.remove_file(owner, path, identity.clone()).await
    }
}
