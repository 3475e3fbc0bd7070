use super::*;
use crate::state::Maker;
use crate::state::tests::{Scratch, ended, mapped, state};
use crate::whose::{Whose, whose};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// By force somebody has taken the files away, and the name is another attachment's.
#[test]
fn the_end_of_an_attachment_leaves_another_of_its_name_alone() {
    let dir = Scratch::new("another");
    let mut place = dir.place("a");
    place.create().unwrap();
    let undone = Arc::new(AtomicU64::new(0));
    let cleanup = || {
        let undone = undone.clone();
        let undo = move || undone.fetch_add(1, Ordering::Relaxed) == 0;
        Cleanup {
            place: place.clone(),
            device: None,
            mark: None,
            undo: Some(Box::new(undo)),
            _port: None,
        }
    };
    let (first, second) = (cleanup(), cleanup());
    let file = dir.0.join("run/a/maker.json");
    let mine = fs::read(&file).unwrap();
    let other = Maker::of(ended());
    fs::write(&file, serde_json::to_vec(&other).unwrap()).unwrap();
    let noting = Noting(place.clone());
    let made = Made::here(mapped(), "1:2".into(), Vec::new());
    assert!(noting.note(Some(&made)).is_err(), "nothing is made for it any more");
    drop(first);
    assert!(place.exists() && undone.load(Ordering::Relaxed) == 0);
    fs::write(&file, mine).unwrap();
    noting.note(Some(&made)).unwrap();
    drop(second);
    assert!(!place.exists() && undone.load(Ordering::Relaxed) == 1);
}

/// A device by its name alone says nothing: who has it now?
#[test]
fn a_disk_that_is_not_there_or_another_s_is_not_still_ours() {
    let dir = Scratch::new("still");
    let mut place = dir.place("a");
    place.create().unwrap();
    for (method, device) in [
        (Method::Fuse, "/dev/loop987654"),
        (Method::Nbd, "/dev/nbd987654"),
        (Method::Ublk, "/dev/ublkb987654"),
    ] {
        place.make_link(Path::new(device)).unwrap();
        let now = whose(&place, &state("a", method, device));
        assert_ne!(now, Whose::Ours, "{device}");
        assert!(now == Whose::NotOurs || method == Method::Ublk, "{now:?}");
    }
}
