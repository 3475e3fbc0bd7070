//! The store.

use super::*;
use crate::model::{Command, HostSpec, PoolId, Stamp};
use std::sync::atomic::{AtomicU32, Ordering};

struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let n = NUMBER.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("weir-store-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Scratch(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

fn host(model: &Model, name: &str) -> Model {
    let mut new = model.clone();
    let allow_any = model.hosts.is_empty();
    let ports = if allow_any { Vec::new() } else { vec!["1:2".parse().unwrap()] };
    let spec = HostSpec { name: name.into(), allow_any, ports, ..HostSpec::default() };
    new.apply(Command::CreateHost(spec), 0).unwrap();
    new
}

#[test]
fn blobs_by_prefix() {
    let dir = Scratch::new();
    let store = MetaStore::open(&dir.0).unwrap();
    for (key, bytes) in [("a/1", "x"), ("b/1", "y"), ("b/2", "z"), ("c", "w")] {
        store.put_blob(key, bytes.as_bytes()).unwrap();
    }
    let b: Vec<String> = store.blobs("b/").unwrap().into_keys().collect();
    assert_eq!(b, ["b/1", "b/2"]);
    store.put_blob("b/1", b"").unwrap();
    assert_eq!(store.blob("b/1").unwrap(), None);
    assert_eq!(store.put_blob("b/1", &vec![0; MAX_BLOB + 1]).unwrap_err().code, Code::TooMany);
}

#[test]
fn only_one_process_and_only_a_known_format() {
    let dir = Scratch::new();
    let store = MetaStore::open(&dir.0).unwrap();
    assert_eq!(MetaStore::open(&dir.0).unwrap_err().code, Code::DataDirInUse);
    store.db.raw(|tx| {
        tx.open_table(META)?.insert("schema", SCHEMA + 1)?;
        Ok(())
    });
    drop(store);
    let e = MetaStore::open(&dir.0).unwrap_err();
    assert_eq!(e.code, Code::StoreUnusable);
    assert!(e.message.contains("format 2") && e.hint.contains("version"));
}

#[test]
fn damage_is_reported_not_ignored() {
    let dir = Scratch::new();
    let store = MetaStore::open(&dir.0).unwrap();
    let model = host(&Model::default(), "h");
    store.commit(&Model::default(), &model).unwrap();
    for (key, value) in [("host/x", "{"), ("what/x", "{}"), ("map/h/1", "{\"host\":1}")] {
        let set = |bytes: Option<&[u8]>| {
            let value = bytes.map(<[u8]>::to_vec);
            store.db.write(&[Row { table: Table::Objects, key: key.into(), value }]).unwrap();
        };
        set(Some(value.as_bytes()));
        let e = store.load().unwrap_err();
        assert_eq!(e.code, Code::StoreUnusable);
        assert!(e.message.contains(key), "{e}");
        set(None);
    }
    assert_eq!(store.load().unwrap(), model);
    drop(store);
    // Not a store at all, and a store with its pages overwritten.
    let path = dir.0.join(FILE);
    let good = std::fs::read(&path).unwrap();
    std::fs::write(&path, b"not a store").unwrap();
    assert_eq!(MetaStore::open(&dir.0).unwrap_err().code, Code::StoreUnusable);
    let mut bad = good.clone();
    bad[4096..].fill(0xa5);
    std::fs::write(&path, &bad).unwrap();
    let opened = MetaStore::open(&dir.0).and_then(|s| s.load());
    assert_eq!(opened.unwrap_err().code, Code::StoreUnusable);
    // One rotten bit anywhere: an error, or what was written, never anything else. Most bytes are of older versions.
    let rot = |at: usize, bit: u64| {
        let mut bad = good.clone();
        bad[at] ^= 1 << bit;
        std::fs::write(&path, &bad).unwrap();
        match MetaStore::open(&dir.0).and_then(|s| s.load()) {
            Ok(found) => {
                assert_eq!(found, model, "bit flipped in byte {at}");
                false
            }
            Err(e) => {
                assert_eq!(e.code, Code::StoreUnusable, "byte {at}: {e}");
                true
            }
        }
    };
    let mut prng = weir_base::Prng::new(11);
    let used: Vec<usize> = (0..good.len()).filter(|i| good[*i] != 0).collect();
    for _ in 0..100 {
        rot(used[prng.below(used.len() as u64) as usize], prng.below(8));
    }
    let text = b"\"allow_any\":true";
    let copies: Vec<usize> =
        (0..good.len() - text.len()).filter(|i| good[*i..].starts_with(text)).collect();
    let noticed = copies.iter().filter(|at| rot(**at + 2, 0)).count();
    assert!(noticed >= 1, "the copy in force is among {copies:?}");
    std::fs::write(&path, &good).unwrap();
    assert_eq!(MetaStore::open(&dir.0).unwrap().load().unwrap(), model);
}

#[test]
fn what_an_unfinished_first_start_left_is_in_nobodys_way() {
    let dir = Scratch::new();
    std::fs::write(dir.0.join(NEW_FILE), b"half a sto").unwrap();
    std::fs::write(dir.0.join("config.json.new"), b"{").unwrap();
    let store = MetaStore::open(&dir.0).unwrap();
    let model = host(&Model::default(), "h");
    store.commit(&Model::default(), &model).unwrap();
    assert_eq!(store.load().unwrap(), model);
    let export = std::fs::read_to_string(dir.0.join(EXPORT)).unwrap();
    let export: serde_json::Value = serde_json::from_str(&export).unwrap();
    assert_eq!(export["hosts"]["h"]["allow_any"], true);
    assert_eq!(export["schema"], SCHEMA);
}

#[test]
fn a_readable_copy_that_cannot_be_written_stops_nothing() {
    let dir = Scratch::new();
    std::fs::create_dir(dir.0.join("config.json.new")).unwrap();
    let store = MetaStore::open(&dir.0).unwrap();
    let model = host(&Model::default(), "h");
    store.commit(&Model::default(), &model).unwrap();
    assert_eq!(store.load().unwrap(), model);
}

/// A store that is gone, or has no bytes, where there was one is no new node; the copy is as it was, and is read back.
#[test]
fn a_store_that_is_gone_is_refused_and_made_of_its_copy() {
    let dir = Scratch::new();
    let store = MetaStore::open(&dir.0).unwrap();
    let model = host(&Model::default(), "h");
    store.commit(&Model::default(), &model).unwrap();
    let stamp = store.stamp(model.revision);
    drop(store);
    let (path, copy) = (dir.0.join(FILE), dir.0.join(EXPORT));
    let text = std::fs::read(&copy).unwrap();
    for empty in [true, false] {
        match empty {
            true => std::fs::write(&path, b"").unwrap(),
            false => std::fs::remove_file(&path).unwrap(),
        }
        let e = MetaStore::open(&dir.0).unwrap_err();
        assert_eq!(e.code, Code::StoreUnusable);
        assert!(e.hint.contains("--restore-from") && e.reason.contains("no new node"), "{e}");
        assert_eq!(std::fs::read(&copy).unwrap(), text);
    }
    // Without the copy the lock tells that there was one.
    std::fs::rename(&copy, dir.0.join("elsewhere")).unwrap();
    assert_eq!(MetaStore::open(&dir.0).unwrap_err().code, Code::StoreUnusable);
    let store = MetaStore::restore(&dir.0, &dir.0.join("elsewhere")).unwrap();
    assert_eq!(store.load().unwrap(), model);
    assert!(store.knows(&stamp, PoolId(1), model.revision), "it is the same store");
    drop(store);
    assert_eq!(
        MetaStore::restore(&dir.0, &dir.0.join("elsewhere")).unwrap_err().code,
        Code::StoreUnusable
    );
    // A damaged one is kept.
    std::fs::write(&path, b"not a store").unwrap();
    assert!(MetaStore::restore(&dir.0, &dir.0.join("weir.lock")).is_err(), "that is no copy");
    let store = MetaStore::restore(&dir.0, &dir.0.join("elsewhere")).unwrap();
    assert_eq!(store.load().unwrap(), model);
    assert_eq!(std::fs::read(dir.0.join("weir.redb.damaged")).unwrap(), b"not a store");
}

#[test]
fn a_copy_is_not_overwritten_by_less() {
    let (dir, other) = (Scratch::new(), Scratch::new());
    let store = MetaStore::open(&dir.0).unwrap();
    let one = host(&Model::default(), "h");
    store.commit(&Model::default(), &one).unwrap();
    drop(store);
    let older = std::fs::read(dir.0.join(FILE)).unwrap();
    let store = MetaStore::open(&dir.0).unwrap();
    let two = host(&one, "i");
    store.commit(&one, &two).unwrap();
    drop(store);
    let newer = std::fs::read(dir.0.join(EXPORT)).unwrap();
    // An older store is put back, then one of another node.
    std::fs::write(dir.0.join(FILE), older).unwrap();
    let store = MetaStore::open(&dir.0).unwrap();
    assert!(store.notes()[0].contains("revision 2"), "{:?}", store.notes());
    store.export(&one);
    assert_eq!(std::fs::read(dir.0.join("config.json.1")).unwrap(), newer);
    drop(store);
    drop(MetaStore::open(&other.0).unwrap());
    std::fs::copy(other.0.join(FILE), dir.0.join(FILE)).unwrap();
    let store = MetaStore::open(&dir.0).unwrap();
    assert!(store.notes()[0].contains("another node"), "{:?}", store.notes());
    assert!(dir.0.join("config.json.2").exists());
}

/// What was written anew has nothing of the past, also after a crash in between.
#[test]
fn the_past_is_forgotten() {
    let dir = Scratch::new();
    let store = MetaStore::open(&dir.0).unwrap();
    let none = Model::default();
    let one = host(&none, "the-secret-of-before");
    store.commit(&none, &one).unwrap();
    let mut two = one.clone();
    two.hosts.clear();
    two.revision += 1;
    store.commit(&one, &two).unwrap();
    store.put_blob("reservations/v", b"kept").unwrap();
    let old = std::fs::File::open(dir.0.join(FILE)).unwrap();
    store.forget_past(&two).unwrap();
    let has = |bytes: &[u8]| bytes.windows(20).any(|w| w == b"the-secret-of-before");
    let read = |mut f: &std::fs::File| {
        let mut all = Vec::new();
        std::io::Read::read_to_end(&mut f, &mut all).unwrap();
        all
    };
    assert!(!has(&read(&old)), "the file that is gone was overwritten");
    assert!(!has(&std::fs::read(dir.0.join(FILE)).unwrap()));
    assert!(!has(&std::fs::read(dir.0.join(EXPORT)).unwrap()));
    assert_eq!(store.load().unwrap(), two);
    assert_eq!(store.blob("reservations/v").unwrap().as_deref(), Some(&b"kept"[..]));
    store.put_blob("reservations/v", b"more").unwrap();
    drop(store);
    // What a crash left behind is overwritten at the next start.
    let left = dir.0.join("weir.redb.old");
    std::fs::write(&left, b"the-secret-of-before").unwrap();
    let file = std::fs::File::open(&left).unwrap();
    drop(MetaStore::open(&dir.0).unwrap());
    assert!(!left.exists() && !has(&read(&file)));
    std::fs::hard_link(dir.0.join(FILE), &left).unwrap();
    let store = MetaStore::open(&dir.0).unwrap();
    assert_eq!((store.load().unwrap(), left.exists()), (two, false));
}

const POOL: PoolId = PoolId(1);

/// A store that is put back from a copy and counts on: whether it takes what the copied life wrote since for its own.
fn counts_itself_newer(by_file: bool) -> bool {
    let dir = Scratch::new();
    let store = MetaStore::open(&dir.0).unwrap();
    let one = host(&Model::default(), "h");
    store.commit(&Model::default(), &one).unwrap();
    let copied = store.stamp(one.revision);
    let kept = dir.0.join("kept");
    std::fs::copy(dir.0.join(EXPORT), &kept).unwrap();
    let file = std::fs::read(dir.0.join(FILE)).unwrap();
    let two = host(&one, "i");
    store.commit(&one, &two).unwrap();
    let since = store.stamp(two.revision);
    drop(store);
    std::fs::remove_file(dir.0.join(EXPORT)).unwrap();
    std::fs::remove_file(dir.0.join(FILE)).unwrap();
    let store = match by_file {
        true => {
            std::fs::write(dir.0.join(FILE), file).unwrap();
            MetaStore::open(&dir.0).unwrap()
        }
        false => MetaStore::restore(&dir.0, &kept).unwrap(),
    };
    assert!(!store.knows(&since, POOL, one.revision));
    let mut now = store.load().unwrap();
    assert_eq!(now, one);
    for _ in 0..5 {
        let mut next = now.clone();
        next.revision += 1;
        store.commit(&now, &next).unwrap();
        now = next;
    }
    let again = store.knows(&since, POOL, now.revision);
    drop(store);
    let store = MetaStore::open(&dir.0).unwrap();
    assert!(store.knows(&copied, POOL, now.revision), "what was in the copy");
    again || store.knows(&since, POOL, now.revision)
}

/// A store that is put back from a copy stays the older one, whatever it writes and however often it is opened.
#[test]
fn a_copy_that_counts_on_does_not_know_what_was_written_since() {
    assert!(!counts_itself_newer(false));
    // As one that was copied under a running daemon.
    assert!(!counts_itself_newer(true));
}

#[cfg(feature = "planted")]
#[test]
fn lives_that_go_on_in_a_copy_are_caught() {
    use crate::planted::{Bug, plant};
    plant(Some(Bug::LivesGoOn));
    let found = counts_itself_newer(false) && counts_itself_newer(true);
    plant(None);
    assert!(found);
}

/// A daemon that was started often knows what it wrote at first, which pools still carry; of lives that none carries it keeps
/// no list for ever.
#[test]
fn a_store_that_was_opened_often_knows_its_own_first_life() {
    let dir = Scratch::new();
    let mut now = Model::default();
    let mut first: Option<Stamp> = None;
    for n in 0..20 {
        let store = MetaStore::open(&dir.0).unwrap();
        if n % 2 == 0 {
            let mut next = now.clone();
            next.revision += 1;
            store.commit(&now, &next).unwrap();
            now = next;
        } else {
            // Something is written elsewhere though nothing has changed here.
            store.begin_life(&now).unwrap();
        }
        first.get_or_insert(store.stamp(now.revision));
    }
    let store = MetaStore::open(&dir.0).unwrap();
    let first = first.unwrap();
    let known = |store: &MetaStore| store.identity().lives.len();
    assert!(store.knows(&first, POOL, now.revision) && known(&store) == 20);
    store.forget_lives(&[first.life.clone()].into()).unwrap();
    assert!(store.knows(&first, POOL, now.revision) && known(&store) == 1);
}

/// To look at what there is makes no life known: else a daemon that is started again and again would fill the list.
#[test]
fn a_life_in_which_nothing_was_written_is_not_kept() {
    let dir = Scratch::new();
    drop(MetaStore::open(&dir.0).unwrap());
    for _ in 0..3 {
        let store = MetaStore::open(&dir.0).unwrap();
        drop(store.stamp(0));
        assert!(store.identity().lives.is_empty());
    }
}
