//! Writes that fail: what was refused is neither in force nor found after a start, and what comes next works.

use crate::fake::Fake;
use crate::full::Full;
use crate::support::*;
use std::path::Path;
use std::sync::Arc;
use weir_control::model::{Command, Model};
use weir_control::store::MetaStore;
use weir_control::{Code, Controller};

fn stored(file: &Full) -> Model {
    MetaStore::open_on(file.copy()).expect("it opens").load().expect("it is read")
}

/// What is wrong after a command met a full file system, whenever that was; and how often it did.
async fn full_at_any_moment() -> (Option<String>, u32, u32) {
    let (mut refused, mut faults) = (0, 0);
    for n in 0..60 {
        let (file, fake) = (Full::default(), Arc::new(Fake::default()));
        let store = MetaStore::open_on(file.clone()).expect("a store");
        let c = Controller::start_on(store, Path::new("/nowhere"), fake.clone(), Vec::new()).await;
        let c = c.expect("a controller");
        let do_it = |command| c.execute(command);
        do_it(Command::CreatePool(ram_pool("mem", GIB))).await.expect("a pool");
        do_it(Command::CreateVolume(volume("v", "mem", 1 << 20))).await.expect("a volume");
        let before = c.model();
        file.after(n);
        let done = do_it(Command::CreateHost(host("h", &["1:2"]))).await;
        let is_full = file.is_full();
        let wrong = |what: &str| Some(format!("full after {n}: {what}"));
        if let Err(e) = &done {
            refused += 1;
            assert_eq!((e.code, is_full), (Code::IoError, true), "{e}");
            if *c.model() != *before || !fake.state().access.hosts.is_empty() {
                return (wrong("what was refused is in force"), refused, faults);
            }
            let told = c.status().await.expect("a status").faults;
            let told = told.iter().find(|f| f.object == "configuration").cloned();
            if told.is_none() && do_it(Command::CreateHost(host("i", &["3:4"]))).await.is_err() {
                return (wrong("nothing tells that no change can be made"), refused, faults);
            }
            faults += u32::from(told.is_some());
        }
        file.has_room_again();
        do_it(Command::CreateHost(host("later", &["5:6"]))).await.expect("there is room again");
        let told = c.status().await.expect("a status").faults;
        assert!(told.iter().all(|f| f.object != "configuration"), "{told:?}");
        if stored(&file) != *c.model() || c.model().hosts.contains_key("h") != done.is_ok() {
            return (wrong("what is in force is not what is stored"), refused, faults);
        }
    }
    (None, refused, faults)
}

#[tokio::test]
async fn what_was_refused_is_nowhere_and_the_store_goes_on() {
    let (wrong, refused, faults) = full_at_any_moment().await;
    assert_eq!(wrong, None);
    assert!(refused > 5 && faults > 5, "{refused} refused, {faults} faults");
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn a_configuration_in_force_that_is_not_durable_is_caught() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::InForceBeforeDurable));
    let (wrong, ..) = full_at_any_moment().await;
    plant(None);
    assert!(wrong.is_some());
}

/// What is wrong after the data plane refused a change, and the file system was full by the time it was to be taken back; and how
/// often it was.
async fn refused_twice() -> (Option<String>, u32) {
    let mut in_the_way = 0;
    for n in 0..60 {
        let (file, fake) = (Full::default(), Arc::new(Fake::default()));
        let store = MetaStore::open_on(file.clone()).expect("a store");
        let c = Controller::start_on(store, Path::new("/nowhere"), fake.clone(), Vec::new()).await;
        let c = c.expect("a controller");
        fake.break_call("set_mappings");
        file.after(n);
        c.execute(Command::CreateHost(host("h", &["1:2"]))).await.expect_err("it is refused");
        in_the_way += u32::from(c.model().hosts.contains_key("h"));
        fake.mend();
        file.has_room_again();
        c.execute(Command::CreateHost(host("later", &["3:4"]))).await.expect("there is room again");
        let hosts: Vec<_> = fake.state().access.hosts.iter().map(|h| h.name.clone()).collect();
        if stored(&file) != *c.model() || c.model().hosts.contains_key("h") || hosts != ["later"] {
            return (Some(format!("full after {n}: {hosts:?} {:?}", c.model().hosts)), in_the_way);
        }
    }
    (None, in_the_way)
}

#[tokio::test]
async fn what_failed_is_taken_back_before_the_next_change() {
    let (wrong, in_the_way) = refused_twice().await;
    assert_eq!(wrong, None);
    assert!(in_the_way > 5, "{in_the_way}");
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn a_change_that_is_left_half_undone_is_caught() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::UndoneHalf));
    let (wrong, _) = refused_twice().await;
    plant(None);
    assert!(wrong.is_some());
}

/// Reservations that were refused are not found after a start either.
#[test]
fn a_blob_that_was_refused_is_not_there() {
    for n in 0..40 {
        let file = Full::default();
        let store = MetaStore::open_on(file.clone()).expect("a store");
        store.put_blob("reservations/v", b"before").expect("kept");
        file.after(n);
        let done = store.put_blob("reservations/v", b"after");
        file.has_room_again();
        assert_eq!(store.try_again(), None);
        let expected: &[u8] = if done.is_ok() { b"after" } else { b"before" };
        assert_eq!(store.blob("reservations/v").expect("read").as_deref(), Some(expected), "{n}");
        drop(store);
        let store = MetaStore::open_on(file).expect("it opens");
        assert_eq!(store.blob("reservations/v").expect("read").as_deref(), Some(expected), "{n}");
    }
}
