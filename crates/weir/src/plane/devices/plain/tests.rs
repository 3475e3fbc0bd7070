//! Devices of plain pools at a start, as files.

use super::*;
use weir_control::dataplane::KnownPool;
use weir_control::model::{DeviceGrow, Overwrite};

struct Dir(PathBuf);

impl Drop for Dir {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

fn dir(name: &str) -> Dir {
    let dir = std::env::temp_dir().join(format!("weir-plain-{name}-{}", std::process::id()));
    drop(std::fs::remove_dir_all(&dir));
    std::fs::create_dir_all(&dir).expect("a directory");
    Dir(dir)
}

const SIZE: u64 = 4 << 20;

/// Starts a device as a pool of this identity has it, with nobody else there.
fn start(path: &Path, pool: u128, known: &Device) -> Result<DeviceFound> {
    start_for(path, pool, known, &|| true)
}

/// The same for one who may wait for it or not.
fn start_for(path: &Path, pool: u128, known: &Device, waited: &Waited<'_>) -> Result<DeviceFound> {
    let owner = Owner::Pool("p".into());
    let (pool, number) = (Some(PoolId(pool)), 0);
    let s = Starting { owner: &owner, pool, number, device: known, path, waited };
    s.start(&Arc::default()).map(|(found, taken)| {
        taken.keep();
        found
    })
}

fn file(path: &Path, size: u64) -> Device {
    Device::known(DeviceKind::File, Some(path.display().to_string()), size)
}

#[test]
fn a_device_of_an_older_program_is_labelled_and_keeps_its_data() {
    let d = dir("older");
    let path = d.0.join("disk");
    let data: Vec<u8> = (0..SIZE).map(|n| (n % 251) as u8).collect();
    std::fs::write(&path, &data).expect("written");
    let old = file(&path, SIZE);
    let found = start(&path, 7, &old).expect("it starts");
    assert_eq!(found, DeviceFound { size: SIZE, labelled: true, ..DeviceFound::default() });
    let now = std::fs::read(&path).expect("read");
    assert!(now[..data.len()] == data && now.len() as u64 == SIZE + PAGE);
    // From now on it is told from others.
    let known = Device { labelled: true, ..old.clone() };
    assert_eq!(start(&path, 7, &known).expect("it starts"), found);
    for known in [&known, &old] {
        let e = start(&path, 8, known).expect_err("another pool's");
        assert!(e.reason.contains("label of device 0 of pool"), "{e}");
    }
    std::fs::write(&path, &data).expect("written");
    let e = start(&path, 7, &known).expect_err("it has no label");
    assert_eq!(e.code, Code::PoolDamaged);
    assert!(std::fs::read(&path).expect("read") == data, "nothing is written to it");
}

/// The file system does not give what a file was to have by a command that a crash has cut off: what it had is served.
#[test]
fn growing_that_cannot_go_on_keeps_nothing_down() {
    let d = dir("endless");
    let path = d.0.join("disk");
    let new = Device { new: true, ..file(&path, SIZE) };
    start(&path, 7, &new).expect("it is made");
    let before = std::fs::read(&path).expect("read");
    let endless = Device { labelled: true, grown_from: Some(SIZE), ..file(&path, 1 << 63) };
    let found = start(&path, 7, &endless).expect("it starts");
    assert_eq!((found.size, found.labelled), (SIZE, true));
    assert!(std::fs::read(&path).expect("read") == before, "it was written to");
}

/// One that a crash has left with its label at its new end alone is tried again: what it had has none.
#[test]
fn growing_that_came_to_its_label_is_tried_again() {
    let d = dir("labelled-at-its-end");
    let path = d.0.join("disk");
    let grown = Device { labelled: false, grown_from: Some(SIZE), ..file(&path, 2 * SIZE) };
    let mut all = vec![0; 2 * SIZE as usize];
    all.extend(Label { pool: PoolId(7), device: 0, size: 2 * SIZE }.encode());
    std::fs::write(&path, all).expect("written");
    start_for(&path, 7, &grown, &|| false).expect_err("nobody waits for it");
    let found = start(&path, 7, &grown).expect("it grows");
    assert_eq!((found.size, found.labelled), (2 * SIZE, true));
}

/// A file gets what it was to have. Where that is there already, only its own label says that a crash came between.
#[test]
fn growing_that_was_cut_off_goes_on() {
    let d = dir("growing");
    let path = d.0.join("disk");
    let new = Device { new: true, ..file(&path, SIZE) };
    start(&path, 7, &new).expect("it is made");
    let before = std::fs::read(&path).expect("read");
    let growing = Device { labelled: true, grown_from: Some(SIZE), ..file(&path, 2 * SIZE) };
    let end = |pool| Label { pool: PoolId(pool), device: 0, size: 2 * SIZE }.encode();
    for (len, end, size) in [
        (SIZE + PAGE, vec![], 2 * SIZE),
        (2 * SIZE, end(7), 2 * SIZE),
        (SIZE + PAGE + 5000, vec![], SIZE),
        (2 * SIZE + PAGE, vec![], SIZE),
        (2 * SIZE, end(8), SIZE),
    ] {
        let mut content = before.clone();
        content.resize(len as usize, 0);
        content.extend(end);
        std::fs::write(&path, &content).expect("written");
        let found = start(&path, 7, &growing).expect("it starts");
        assert_eq!((found.size, found.labelled), (size, true), "from {len}");
        let now = std::fs::read(&path).expect("read");
        match size == SIZE {
            true => assert!(now == content, "it was written to: {len}"),
            false => assert_eq!(now.len() as u64, 2 * SIZE + PAGE),
        }
    }
}

/// Another file has the name by the time that it grows: that was not looked at.
#[tokio::test]
async fn only_what_was_looked_at_grows() {
    let d = dir("exchanged");
    let (path, other) = (d.0.join("disk"), d.0.join("other"));
    let pool = |device| Pool {
        name: "p".into(),
        devices: vec![device],
        id: Some(PoolId(7)),
        protection: None,
        left: Vec::new(),
    };
    let holds = Arc::<Holds>::default();
    let new = Device { new: true, ..file(&path, SIZE) };
    holds.start_plain(&pool(new)).await.expect("it is made");
    let mut copy = std::fs::read(&path).expect("read");
    copy.resize((2 * SIZE + PAGE) as usize, 5);
    std::fs::write(&other, &copy).expect("written");
    let grow = [DeviceGrow { device: 0, size: Some(2 * SIZE) }];
    let known = Device { labelled: true, ..file(&path, SIZE) };
    let looked = holds.admit_growth(&pool(known), &grow, &Overwrite::default()).await;
    looked.expect("nothing is there");
    std::fs::rename(&other, &path).expect("renamed");
    let growing = Device { labelled: true, grown_from: Some(SIZE), ..file(&path, 2 * SIZE) };
    let found = holds.start_plain(&pool(growing)).await.expect("it starts");
    assert_eq!(found[0].size, SIZE);
    assert!(std::fs::read(&path).expect("read") == copy, "it was written to");
}

/// A device of which nothing is known but its size, as an older program left it, and another pool's disk has its name now.
#[test]
fn what_carries_the_label_of_another_pool_of_the_node_is_not_taken() {
    let dir = dir("foreign");
    let path = dir.0.join("d");
    // At any of the places where labels are.
    let label = Label { pool: PoolId(9), device: 0, size: SIZE };
    let mut content = vec![0; SIZE as usize + 100];
    content[..PAGE as usize].copy_from_slice(&label.encode());
    std::fs::write(&path, &content).expect("a file");
    let owner = Owner::Pool("p".into());
    let holds = Arc::<Holds>::default();
    let known = |name: &str, id| KnownPool {
        name: name.into(),
        id: PoolId(id),
        devices: 2,
        directories: Vec::new(),
    };
    holds.know(vec![known("p", 7), known("other", 9)], Vec::new());
    let known = file(&path, SIZE);
    let s = Starting {
        owner: &owner,
        pool: Some(PoolId(7)),
        number: 0,
        device: &known,
        path: &path,
        waited: &|| true,
    };
    let e = s.start(&holds).err().expect("it is another pool's");
    assert!(e.to_string().contains("pool `other`"), "{e}");
    assert!(std::fs::read(&path).expect("read") == content, "nothing is written");
    // Nor at that of another device of this one.
    let twin = Label { pool: PoolId(7), device: 1, size: SIZE };
    content[..PAGE as usize].copy_from_slice(&twin.encode());
    std::fs::write(&path, &content).expect("a file");
    let e = s.start(&holds).err().expect("it is another device");
    assert!(e.to_string().contains("label of device 1 of this pool"), "{e}");
    assert!(std::fs::read(&path).expect("read") == content, "nothing is written");
    assert!(holds.paths_of(|_| true).is_empty(), "and it is let go of");
}

/// Somebody has given up while the first of several writes was under way.
#[test]
fn nothing_more_is_written_for_somebody_who_has_gone() {
    let d = dir("gone");
    let (path, sub) = (d.0.join("disk"), d.0.join("dir"));
    let content = vec![7; 8 << 20];
    std::fs::write(&path, &content).expect("a file");
    let owner = Owner::Pool("p".into());
    let (holds, asked) = (Arc::<Holds>::default(), std::cell::Cell::new(0));
    let waited = || asked.replace(asked.get() + 1) < 2;
    let device = |path: &Path, kind| Device {
        new: true,
        ..Device::known(kind, Some(path.display().to_string()), SIZE)
    };
    let (disk, directory) = (device(&path, DeviceKind::File), device(&sub, DeviceKind::Dir));
    drop(holds.take(&owner, &path, false, Wait::No).expect("it is there").keep());
    holds.set_admitted(&owner, &path);
    // A file is made longer before; of a directory the label is written, and named.
    for (path, device, before) in [(&path, &disk, 0), (&sub, &directory, 1)] {
        asked.set(before);
        let (owner, waited) = (&owner, &waited);
        let s = Starting { owner, pool: Some(PoolId(7)), number: 0, device, path, waited };
        assert!(s.start(&holds).is_err());
    }
    let now = std::fs::read(&path).expect("read");
    assert!(now[..1 << 20].iter().all(|b| *b == 0), "the first write was under way");
    assert!(now[1 << 20..8 << 20] == content[1 << 20..], "its end is as it was");
    assert!(!sub.exists(), "what was made for it is gone, with all that came into it");
}

#[test]
fn only_what_is_new_is_made() {
    let d = dir("new");
    let path = d.0.join("disk");
    let known = file(&path, SIZE);
    assert!(start(&path, 7, &known).is_err() && !path.exists());
    let sub = d.0.join("dir");
    let directory = Device::known(DeviceKind::Dir, Some(sub.display().to_string()), 0);
    assert!(start(&sub, 7, &directory).is_err() && !sub.exists());
    start(&sub, 7, &Device { new: true, ..directory.clone() }).expect("it is made");
    let labelled = Device { labelled: true, ..directory };
    start(&sub, 7, &labelled).expect("it is there");
    assert!(start(&sub, 8, &labelled).is_err(), "another pool's");
    std::fs::remove_file(sub.join(DIR_LABEL)).expect("removed");
    assert!(start(&sub, 7, &labelled).is_err() && !sub.join(DIR_LABEL).exists());
    // What cannot be made leaves nothing.
    let none = d.0.join("none/disk");
    assert!(start(&none, 7, &Device { new: true, ..known }).is_err());
    let small = Device { new: true, ..file(&path, 4096) };
    assert!(start(&path, 7, &small).is_err() && !path.exists());
}
