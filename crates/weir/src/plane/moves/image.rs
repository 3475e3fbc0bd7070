//! Foreign files and disks that are volumes as they are.

use super::super::devices::{
    Holds, Owner, To, Wait, Waited, another, check_blank, check_words, in_use, remove, unusable,
};
use super::super::node::Node;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use weir_control::dataplane::ImageWish;
use weir_control::model::{ImageFound, Layout, PoolId, Volume};
use weir_control::{Code, Error, Result};
use weir_uring::device::{Made, all_of, make_file};

/// Makes a sparse file that is not there yet, and gives what was made.
fn create(path: &Path, size: u64) -> Result<Made> {
    make_file(path, size).map_err(|e| match e.kind() {
        ErrorKind::AlreadyExists => {
            Error::new(Code::DeviceInUse, format!("`{}` exists", path.display()))
                .because("--create makes a new file")
                .hint("name another one; or leave --create out, and say what in it may be destroyed, as in --overwrite ext4")
        }
        _ => unusable(path, e),
    })
}

/// Looks at a file or disk, which may have been `made` for this, and refuses what others use, and what may not be lost.
fn look(
    holds: &Arc<Holds>,
    wish: &ImageWish,
    made: Option<Made>,
    waited: &Waited<'_>,
) -> Result<ImageFound> {
    let path = std::fs::canonicalize(&wish.path).map_err(|e| {
        let hint = "name a file or block device that is there; `--create` of `weir volume export` makes a file";
        unusable(Path::new(&wish.path), e).hint(hint)
    })?;
    holds.check_outside(&path)?;
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
        holds.check_unused(&held, &path, To::New)?;
        if !made.is_some_and(|made| made.is(held.identity())) {
            holds.check_image(&path, &all_of(held.identity()), held.lasting_name(), None)?;
            holds.check_belongs_below(&held, &path, None, To::New)?;
        }
        holds.check_disk(held.held(), &path, None)?;
        match &wish.overwrite {
            Some(_) if made.is_some_and(|made| made.is(held.identity())) => {}
            Some(_) if made.is_some() => return Err(another(&path)),
            Some(overwrite) => {
                check_words(overwrite)?;
                holds.check_belongs(&held, &path, None)?;
                check_blank(&held, &path, overwrite)?;
                holds.check_alone(&held, &path, PoolId(0), waited)?;
            }
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
            // Other file systems may number their files anew.
            identity: held.lasting_name().filter(|_| !held.is_slow()).map(str::to_owned),
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
            let found = look(holds, &wish, made, waited);
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
        self.holds.remove_file(owner, (&volume.pool, path), identity.clone()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Somebody puts a file of theirs where one was made for an export, before that is looked at.
    #[test]
    fn what_an_export_goes_to_is_what_was_made_for_it() {
        let dir = std::env::temp_dir().join(format!("weir-image-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        let (path, others) = (dir.join("to"), dir.join("others"));
        drop(std::fs::remove_file(&path));
        let wish = ImageWish {
            path: path.display().to_string(),
            create: Some(8192),
            write: true,
            overwrite: Some(Default::default()),
        };
        let made = create(&path, 8192).expect("a file");
        let holds = Arc::<Holds>::default();
        assert_eq!(look(&holds, &wish, Some(made), &|| true).expect("it is that").size, 8192);
        assert!(create(&path, 8192).is_err(), "it is there");
        std::fs::write(&others, [7; 8192]).expect("a file");
        std::fs::rename(&others, &path).expect("moved");
        let e = look(&holds, &wish, Some(made), &|| true).expect_err("it is another one");
        assert_eq!(e.code, Code::PoolDamaged, "{e}");
        assert_eq!(std::fs::read(&path).expect("it is there"), [7; 8192]);
        drop(std::fs::remove_dir_all(&dir));
    }
}
