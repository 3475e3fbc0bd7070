//! What is taken for somebody who waits, or has given up.

use super::*;
use std::sync::mpsc::channel;
use weir_control::dataplane::Inside;
use weir_control::model::{Device, DeviceKind, DeviceSpec, Overwrite, PoolId};
use weir_disk::{Disk as _, DiskOp};
use weir_mem::Slice;
use weir_reactor::{PollMode, Reactor, completion};
use weir_uring::{FileDisk, Ring};

const PRECIOUS: &[u8] = b"precious";

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let dir = std::env::temp_dir().join(format!("weir-taken-{name}-{}", std::process::id()));
        drop(std::fs::remove_dir_all(&dir));
        std::fs::create_dir_all(&dir).expect("a directory");
        Scratch(dir)
    }

    /// A file with something in it.
    fn file(&self) -> PathBuf {
        let path = self.0.join("disk");
        std::fs::write(&path, [1; 8192]).expect("a file");
        path
    }
}

impl Scratch {
    /// Somebody moves a file of theirs to that name.
    fn put_another(&self, path: &Path) {
        let others = self.0.join("others");
        std::fs::write(&others, PRECIOUS).expect("a file");
        std::fs::rename(&others, path).expect("moved");
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

fn pool(name: &str) -> Owner {
    Owner::Pool(name.into())
}

/// Waits until no thread is busy with a path any more.
fn ended(holds: &Holds, path: &Path) {
    let begun = Instant::now();
    while lock(&holds.asked).contains(path) {
        assert!(begun.elapsed() < Duration::from_secs(60), "it ends");
        std::thread::sleep(AGAIN);
    }
}

#[tokio::test]
async fn what_comes_when_nobody_waits_any_more_is_let_go_of() {
    let (dir, holds) = (Scratch::new("late"), Arc::<Holds>::default());
    let (path, made) = (dir.file(), dir.0.join("made"));
    for (path, is_made) in [(&path, false), (&made, true)] {
        let (go_on, answers) = channel::<()>();
        let at = path.clone();
        let taken = holds.helped_while(path, move |h, waited| {
            answers.recv().expect("somebody lets it go on");
            if is_made {
                std::fs::write(&at, []).expect("a file");
            }
            let made = Made::at(&at).ok().filter(|_| is_made);
            let taken = h.take_made(&pool("p"), &at, Wait::No, made)?;
            assert!(!waited(), "it is told that nobody waits");
            assert!(check_waited(&at, waited).is_err());
            Ok(taken)
        });
        let waits = tokio::time::timeout(Duration::from_millis(50), taken);
        assert!(waits.await.is_err(), "the device does not answer");
        go_on.send(()).expect("it waits");
        ended(&holds, path);
        let begun = Instant::now();
        while !holds.paths_of(|_| true).is_empty() || is_made && path.exists() {
            assert!(begun.elapsed() < Duration::from_secs(60), "it is nobody's");
            std::thread::sleep(AGAIN);
        }
        assert_eq!(path.exists(), !is_made, "what was made goes");
    }
    holds
        .hold_image(pool("q"), &path.display().to_string(), (false, None), Wait::ForTheDead)
        .await
        .expect("free");
}

/// File systems give numbers each by themselves: by its number alone a pool's device may be taken for what it was.
#[tokio::test]
async fn a_volume_known_by_a_bare_number_does_not_come_back_on_a_pool_s_device() {
    let (dir, holds) = (Scratch::new("number"), Arc::<Holds>::default());
    let path = dir.file();
    let id = PoolId(7);
    let label = super::label::Label { pool: id, device: 0, size: 4096 };
    std::fs::write(&path, [vec![1; 4096], label.encode()].concat()).expect("written");
    let known = KnownPool { name: "p".into(), id, devices: 1, directories: Vec::new() };
    holds.know(vec![known], Vec::new());
    let at = path.display().to_string();
    let bare = std::fs::metadata(&path).ok().and_then(|m| Identity::of(&m));
    let Some(Identity::Inode(_, number)) = bare else { panic!("it is a file") };
    let bare = format!("inode {number}");
    let owner = Owner::Place("v".into(), 0);
    let back = async |name: &str| {
        let took = holds.hold_image(owner.clone(), &at, (false, Some(name)), Wait::No).await;
        took.map(drop).map_err(|e| e.code)
    };
    assert_eq!(back(&bare).await, Err(Code::DeviceInUse));
    // A name that says in which file system it is does.
    let whole = {
        let held = holds.take(&owner, &path, false, Wait::No).expect("free");
        held.lasting_name().map(str::to_owned)
    };
    if let Some(name) = whole.filter(|name| *name != bare) {
        assert_eq!(back(&name).await, Ok(()));
    }
}

/// Names are exchanged while the machine is off: a pool follows its disk to the name that a volume's had.
#[test]
fn a_volume_that_is_not_up_keeps_its_disk_whoever_has_its_path() {
    let (dir, holds) = (Scratch::new("exchanged"), Arc::<Holds>::default());
    let (path, other) = (dir.file(), dir.0.join("other"));
    let of = |path: &Path| {
        let held = Held::open(path, true).expect("free");
        (held.identity(), held.lasting_name().map(str::to_owned))
    };
    let (identity, lasting) = of(&path);
    let is_told = lasting.as_deref().is_some_and(weir_uring::device::says_where);
    let image = |place| KnownImage {
        volume: "v".into(),
        place,
        path: path.clone(),
        identity: lasting.clone(),
    };
    holds.know(Vec::new(), vec![image(3)]);
    std::fs::rename(&path, &other).expect("moved");
    dir.put_another(&path);
    let check = || holds.check_image(&other, &[identity], lasting.as_deref(), None);
    // Nor does another of its places count, which it has left or is to get.
    let place = |number| Owner::Place("v".into(), number);
    for owner in [pool("p"), Owner::Place("w".into(), 3), place(2)] {
        drop(holds.take(&owner, &path, false, Wait::No).expect("free").keep());
        assert_eq!(check().is_err(), is_told, "{owner}");
        holds.release_all(&owner);
    }
    // Nobody knows yet whether it is that.
    let looks = holds.take(&place(3), &path, false, Wait::No).expect("free");
    assert_eq!(check().is_err(), is_told);
    // The volume itself has what it is.
    drop(looks.keep());
    check().expect("it is up");
}

#[test]
fn what_was_made_and_cannot_be_had_goes() {
    let (dir, holds) = (Scratch::new("made"), Arc::<Holds>::default());
    let path = dir.file();
    let had = holds.take(&pool("p"), &path, false, Wait::No).expect("taken").keep();
    assert!(holds.take_made(&pool("q"), &path, Wait::No, None).is_err() && path.exists());
    let made = Made::at(&path).ok();
    assert!(holds.take_made(&pool("q"), &path, Wait::No, made).is_err() && !path.exists());
    drop(had);
}

/// Somebody puts another file where one was made, in each of the moments at which that may go again.
#[tokio::test]
async fn what_was_made_does_not_take_another_file_of_its_name_with_it() {
    let (dir, holds) = (Scratch::new("replaced"), Arc::<Holds>::default());
    for kept in [false, true] {
        let path = dir.file();
        let made = Made::at(&path).ok();
        let taken = holds.take_made(&pool("p"), &path, Wait::No, made).expect("taken");
        dir.put_another(&path);
        match kept {
            false => drop(taken),
            true => {
                drop(taken.keep());
                holds.give_up(&pool("p"), &path).await;
            }
        }
        assert_eq!(std::fs::read(&path).expect("it is there"), PRECIOUS);
        assert!(holds.paths_of(|_| true).is_empty());
    }
    // Before it was taken.
    let path = dir.file();
    let made = Made::at(&path).ok();
    dir.put_another(&path);
    let taken = holds.take_made(&pool("p"), &path, Wait::No, made).expect("taken");
    assert!(!holds.may_be_wiped(&pool("p"), &path), "that was not made by us");
    drop(taken);
    assert_eq!(std::fs::read(&path).expect("it is there"), PRECIOUS);
}

#[tokio::test]
async fn what_was_made_for_a_pool_goes_when_it_is_given_up() {
    let (dir, holds) = (Scratch::new("given-up"), Arc::<Holds>::default());
    let path = dir.file();
    let made = Made::at(&path).ok();
    drop(holds.take_made(&pool("p"), &path, Wait::No, made).expect("taken").keep());
    holds.give_up(&pool("p"), &path).await;
    assert!(!path.exists() && holds.paths_of(|_| true).is_empty());
    // Of one that stands it stays.
    dir.file();
    let made = Made::at(&path).ok();
    drop(holds.take_made(&pool("p"), &path, Wait::No, made).expect("taken").keep());
    holds.stands(&pool("p"));
    holds.give_up(&pool("p"), &path).await;
    assert!(path.exists() && holds.paths_of(|_| true).is_empty());
}

/// A protected pool that could not be opened when it had been made: its devices are free again. Those of one that is deleted tell
/// whose they were.
#[tokio::test]
async fn a_protected_pool_that_did_not_come_to_be_leaves_no_labels() {
    use weir_control::model::{Command, Model, PoolSpec, Raid};
    use weir_store::format::label::{Label, Layout};
    let (dir, holds) = (Scratch::new("unmade"), Arc::<Holds>::default());
    let path = dir.0.join("disk");
    let spec = DeviceSpec {
        kind: DeviceKind::File,
        path: Some(path.display().to_string()),
        size: Some(64 << 20),
    };
    let spec = PoolSpec {
        name: "p".into(),
        devices: vec![spec],
        raid: Some(Raid::Zero),
        overwrite: Overwrite::default(),
        memory: None,
    };
    let mut model = Model::default();
    model.apply(Command::CreatePool(spec), 7).expect("a pool");
    let made = model.pools["p"].clone();
    let id = made.identity().expect("it has one");
    let layout = Layout::plan(64 << 8, 10, 1024, 4, 16).expect("it fits");
    for (of, did_not_come_to_be, stays) in
        [(id, true, false), (id, false, true), (PoolId(9), true, true)]
    {
        let label = Label { pool: of.0, device: 1, layout, incompat: 0, compat: 0, copy: 0 };
        let mut disk = label.encode().to_vec();
        disk.resize(64 << 20, 0);
        std::fs::write(&path, disk).expect("a file");
        holds.take(&pool("p"), &path, false, Wait::No).expect("taken").keep();
        holds.unmake(&made, did_not_come_to_be).await;
        let left = std::fs::read(&path).expect("it is there");
        assert_eq!(left.iter().any(|b| *b != 0), stays, "{of} {did_not_come_to_be}");
        assert!(holds.paths_of(|_| true).is_empty());
    }
}

/// A command has given up a device that does not answer; what it made there goes by the thread that waits for it.
#[tokio::test]
async fn giving_up_leaves_to_a_thread_what_it_is_busy_with() {
    let (dir, holds) = (Scratch::new("busy"), Arc::<Holds>::default());
    let path = dir.file();
    let (go_on, answers) = channel::<()>();
    let (is_there, there) = channel::<()>();
    let at = path.clone();
    let taken = holds.helped_while(&path, move |h, waited| {
        let taken = h.take_made(&pool("p"), &at, Wait::No, Made::at(&at).ok())?;
        is_there.send(()).expect("somebody waits for that");
        answers.recv().expect("somebody lets it go on");
        check_waited(&at, waited)?;
        Ok(taken)
    });
    assert!(tokio::time::timeout(Duration::from_millis(50), taken).await.is_err(), "it hangs");
    there.recv().expect("it was taken");
    holds.give_up(&pool("p"), &path).await;
    assert!(path.exists() && holds.paths_of(|_| true) == [path.clone()]);
    go_on.send(()).expect("it waits");
    ended(&holds, &path);
    assert!(!path.exists() && holds.paths_of(|_| true).is_empty());
}

/// Looked at and found empty; then its name leads to another file, before the pool gets it.
#[tokio::test]
async fn what_a_pool_is_to_get_is_what_was_looked_at() {
    let (dir, holds) = (Scratch::new("looked"), Arc::<Holds>::default());
    let path = dir.0.join("disk");
    let name = Some(path.display().to_string());
    let spec = DeviceSpec { kind: DeviceKind::File, path: name.clone(), size: Some(1 << 20) };
    let device = Device::known(DeviceKind::File, name, 1 << 20);
    std::fs::write(&path, [0; 1 << 20]).expect("a file");
    let (nothing, none) = (Overwrite::default(), BTreeSet::new());
    let admit = || holds.admit("p", std::slice::from_ref(&spec), Inside::Only(&nothing), &none);
    let owner = pool("p");
    admit().await.expect("it is empty");
    dir.put_another(&path);
    for make in [Make::File, Make::Anew(PoolId(1))] {
        let held = holds.hold_device((&owner, Some(PoolId(1))), &device, make).await;
        let e = held.expect_err("it is another one");
        assert_eq!(e.code, Code::DeviceInUse, "{e}");
        assert_eq!(std::fs::read(&path).expect("it is there"), PRECIOUS);
    }
    std::fs::write(&path, [0; 1 << 20]).expect("empty");
    admit().await.expect("it is empty");
    holds.hold_device((&owner, Some(PoolId(1))), &device, Make::File).await.expect("it is that");
}

#[tokio::test]
async fn of_volumes_only_their_own_files_are_removed() {
    let (dir, holds) = (Scratch::new("own"), Arc::<Holds>::default());
    let (owner, path) = (Owner::Place("v".into(), 0), dir.0.join("v"));
    let name = path.display().to_string();
    holds.make_file(owner.clone(), ("p", &name), 8192).await.expect("a file");
    let lasting = holds.find(&path).and_then(|h| h.lasting_name().map(str::to_owned));
    assert!(lasting.is_some());
    let own = dir.0.join("own");
    std::fs::rename(&path, &own).expect("moved");
    dir.put_another(&path);
    // While it is held, and after a restart.
    for _ in 0..2 {
        holds
            .remove_file(owner.clone(), ("p", &name), lasting.clone())
            .await
            .expect("nothing to do");
        assert_eq!(std::fs::read(&path).expect("it is there"), PRECIOUS);
        assert!(holds.paths_of(|_| true).is_empty());
    }
    std::fs::rename(&own, &path).expect("moved back");
    holds.remove_file(owner, ("p", &name), lasting).await.expect("removed");
    assert!(!path.exists());
}

/// A pool's directory is not mounted any more, or another one is in its place.
#[tokio::test]
async fn files_of_volumes_are_in_the_directory_that_is_held_or_nowhere() {
    let (dir, holds) = (Scratch::new("directory"), Arc::<Holds>::default());
    let (sub, owner) = (dir.0.join("sub"), Owner::Place("v".into(), 0));
    std::fs::create_dir(&sub).expect("a directory");
    drop(holds.take(&pool("p"), &sub, false, Wait::No).expect("taken").keep());
    std::fs::rename(&sub, dir.0.join("moved")).expect("moved");
    std::fs::create_dir(&sub).expect("another one");
    let (new, old) = (sub.join("new"), sub.join("old"));
    std::fs::write(&old, PRECIOUS).expect("a file");
    let name = |path: &Path| path.display().to_string();
    let made = holds.make_file(owner.clone(), ("p", &name(&new)), 8192).await;
    let held = holds.hold_file(owner.clone(), ("p", &name(&old)), Wait::No).await.map(drop);
    let removed = holds.remove_file(owner, ("p", &name(&old)), None).await;
    for done in [made, held, removed] {
        assert_eq!(done.expect_err("it is another one").code, Code::PoolDamaged);
    }
    assert!(!new.exists());
    assert_eq!(std::fs::read(&old).expect("it is there"), PRECIOUS);
    assert_eq!(holds.paths_of(|_| true), [sub]);
}

/// A file in use has been moved, and another pool's has its name now: reactors know what is held by its name.
#[test]
fn a_name_leads_to_one_thing_only() {
    let (dir, holds) = (Scratch::new("names"), Arc::<Holds>::default());
    let path = dir.file();
    let first = holds.take(&pool("a"), &path, false, Wait::No).expect("taken").keep();
    std::fs::rename(&path, dir.0.join("moved")).expect("moved");
    dir.file();
    for wait in [Wait::No, Wait::ForTheDead] {
        let e = holds.take(&pool("b"), &path, false, wait).err().expect("its name is a's");
        assert!(e.to_string().contains("pool `a` has what had that name"), "{e}");
    }
    assert!(holds.find(&path).is_some_and(|h| Arc::ptr_eq(&h, &first)));
    // Who looks at it writes nothing.
    drop(holds.take(&Owner::Look, &path, false, Wait::No).expect("a look"));
    holds.release_all(&pool("a"));
    drop(first);
    holds.take(&pool("b"), &path, false, Wait::No).expect("free").keep();
}

#[tokio::test]
async fn what_is_kept_stays_and_what_was_there_before_is_not_let_go_of() {
    let (dir, holds) = (Scratch::new("kept"), Arc::<Holds>::default());
    let path = dir.file();
    drop(holds.take(&pool("p"), &path, false, Wait::No).expect("taken").keep());
    drop(holds.take(&pool("p"), &path, false, Wait::No).expect("it has it"));
    assert_eq!(holds.paths_of(|o| *o == pool("p")), std::slice::from_ref(&path));
    let e = holds.take(&pool("q"), &path, false, Wait::ForAnybody).err().expect("it is p's");
    assert!(e.to_string().contains("belongs to pool `p`"), "{e}");
}

/// Two pools look for their devices at once, and each has the other's by its old name for a moment.
#[test]
fn a_device_that_somebody_is_about_to_find_not_to_be_theirs_is_waited_for() {
    let (dir, holds) = (Scratch::new("moment"), Arc::<Holds>::default());
    let path = dir.file();
    for wait in [Wait::No, Wait::ForAnybody, Wait::ForTheDead] {
        let not_theirs = holds.take(&pool("a"), &path, false, Wait::No).expect("taken");
        let (h, p) = (holds.clone(), path.clone());
        let other = std::thread::spawn(move || h.take(&pool("b"), &p, false, wait).map(drop));
        std::thread::sleep(5 * AGAIN);
        assert!(!other.is_finished(), "it waits");
        drop(not_theirs);
        other.join().expect("no panic").expect("it has it now");
    }
}

/// A request that hangs keeps the lock of what was let go of.
#[test]
fn what_this_program_has_under_way_is_no_other_programs_use() {
    let (dir, holds) = (Scratch::new("left"), Arc::<Holds>::default());
    let path = dir.file();
    let left = Held::open(&path, false).expect("open");
    let e = holds.take(&pool("a"), &path, false, Wait::No).map(drop).expect_err("locked");
    assert!(e.code == Code::IoError && e.message.contains("does not answer"), "{e}");
    drop(left);
    holds.take(&pool("a"), &path, false, Wait::No).map(drop).expect("it has ended");
}

/// A device is out of service and has lost its name. Its owner may have it back by another, but for what its last disk has left behind.
#[test]
fn what_is_owed_of_a_name_that_was_lost_keeps_it_from_its_owner_too() {
    let dir = Scratch::new("owed");
    let (path, moved) = (dir.file(), dir.0.join("moved"));
    let ring = Ring::new().expect("a ring");
    let reactor = Reactor::new(std::rc::Rc::new(ring.clone()));
    reactor.block_on(PollMode::Sleep, async move {
        let holds = Arc::<Holds>::default();
        let take = |path: &Path| holds.take(&pool("p"), path, false, Wait::No);
        let disk = |held: Arc<Held>| FileDisk::on(&ring, &path, &held).expect("a disk");
        let used = disk(take(&path).expect("free").keep());
        std::fs::rename(&path, &moved).expect("moved");
        dir.put_another(&path);
        holds.yield_name(&pool("p"), &path).expect("it has another name");
        let identity = take(&moved).map(|back| back.identity()).expect("it has a disk");
        let (token, done) = completion();
        used.submit(DiskOp::Read { offset: 0, buf: Slice::heap(4096) }, token);
        drop(used);
        let e = take(&moved).map(drop).expect_err("a request is owed");
        assert!(e.code == Code::IoError && e.message.contains("does not answer"), "{e}");
        assert!(holds.identities_of(|_| true).is_empty());
        done.await;
        let held = take(&moved).expect("it has ended").keep();
        assert_eq!(held.identity(), identity);
        // Who is no more has no claim, whoever has the disk yet.
        let used = disk(held);
        let again = dir.0.join("again");
        std::fs::rename(&moved, &again).expect("moved");
        dir.put_another(&moved);
        holds.yield_name(&pool("p"), &moved).expect("it has another name");
        holds.release_all(&pool("p"));
        assert!(take(&again).is_err() && holds.identities_of(|_| true).is_empty());
        drop(used);
        take(&again).map(drop).expect("it is free");
    });
}
