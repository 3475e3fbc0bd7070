use super::*;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Waker};
use weir_base::Prng;

type Wait = Pin<Box<dyn Future<Output = ()>>>;

fn wait(a: &Rc<Account>) -> Wait {
    let a = a.clone();
    Box::pin(async move { a.one(0).await })
}

fn is_done(f: &mut Wait) -> bool {
    f.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

/// Takes as many as are to be had.
fn take_all(a: &Account) -> u32 {
    let mut n = 0;
    while a.try_one(0) {
        n += 1;
    }
    n
}

fn give(a: &Account, n: u32) {
    (0..n).for_each(|_| a.give_back(0));
}

/// Hosts come one after the other, each takes what it can and gives nothing back.
#[test]
fn whoever_comes_finds_something_however_many_stand_still() {
    for total in 2..200 {
        let s = Shares::new([total]);
        // One of four is kept; with fewer than eight, as many as can be.
        let hosts = (total / 4).max(2).min(total);
        let all: Vec<_> = (0..hosts).map(|i| s.account(&i.to_string())).collect();
        let each: Vec<u32> = all.iter().map(|a| take_all(a)).collect();
        assert!(each.iter().all(|n| *n > 0), "{total}: {each:?}");
        assert!(each.is_sorted_by(|a, b| a >= b), "{total}: {each:?}");
        if total >= 32 {
            assert!(
                each[0] as usize * 9 >= total * 4,
                "alone it has about half: {total}: {each:?}"
            );
        }
    }
}

/// Hosts that are there and do nothing: what is kept for them is no more than half.
#[test]
fn hosts_that_are_idle_leave_half_to_one_that_works() {
    for total in 8..100 {
        let s = Shares::new([total]);
        let idle: Vec<_> = (0..2 * total).map(|i| s.account(&format!("idle {i}"))).collect();
        let (works, house) = (s.account("works"), s.house());
        let n = take_all(&works);
        assert!(n as usize * 4 >= total, "{total}: it has {n}");
        give(&works, n);
        assert!(take_all(&house) as usize * 3 > total, "{total}");
        give(&house, house.parts[0].held.get());
        // One of four at least finds one, when all stand still.
        let others = idle.iter().filter(|a| take_all(a) > 0).count();
        assert!(others >= total / 4, "{total}: {others} others");
    }
}

#[test]
fn a_channel_leaves_something_to_the_others_of_its_host() {
    for total in 4..200 {
        let s = Shares::new([total]);
        let (a, b) = (s.account("a"), s.account("a"));
        let first = take_all(&a);
        let second = take_all(&b);
        assert!(first >= second && second > 0, "{total}: {first} and {second}");
        // Many channels are not more than one host.
        let more: u32 = (0..50).map(|_| take_all(&s.account("a"))).sum();
        let other = take_all(&s.account("b"));
        assert!(other > 0, "{total}: {first}, {second}, {more}, and nothing for the other host");
    }
}

#[test]
fn with_no_host_there_all_is_spare() {
    let s = Shares::new([7]);
    let house = s.house();
    assert_eq!(take_all(&house), 7);
    give(&house, 7);
    let host = s.account("a");
    // Kept: for the host, and for the next one.
    assert_eq!(take_all(&house), 5);
    assert_eq!(take_all(&host), 1);
    give(&host, 1);
    drop(host);
    assert_eq!((take_all(&house), s.hosts()), (2, 0));
}

#[test]
fn first_come_first_served_in_a_channel_and_hosts_in_turn() {
    let s = Shares::new([2]);
    let (a, b) = (s.account("a"), s.account("b"));
    assert!(a.try_one(0) && b.try_one(0));
    let mut first = [wait(&a), wait(&a), wait(&a)];
    first.iter_mut().for_each(|f| assert!(!is_done(f)));
    let mut other = wait(&b);
    assert!(!is_done(&mut other) && s.waiting(0) == 4);
    give(&b, 1);
    // It is a's turn, but a has one and b none.
    assert!(!first.iter_mut().any(is_done) && is_done(&mut other));
    give(&a, 1);
    assert!(is_done(&mut first[0]) && !is_done(&mut first[1]));
    let mut other = wait(&b);
    assert!(!is_done(&mut other));
    give(&a, 1);
    assert!(is_done(&mut first[1]) && !is_done(&mut first[2]));
    drop(first);
    give(&b, 1);
    assert!(is_done(&mut other));
    assert!(!a.is_without(0) && s.waiting(0) == 0);
    give(&a, 1);
    give(&b, 1);
    assert_eq!(s.free(0), 2);
}

#[test]
fn what_is_given_to_one_who_is_gone_goes_to_the_next() {
    let s = Shares::new([1]);
    let (a, b) = (s.account("a"), s.account("b"));
    assert!(a.try_one(0));
    let (mut gone, mut next, mut other) = (wait(&a), wait(&a), wait(&b));
    assert!(!is_done(&mut gone) && !is_done(&mut next) && !is_done(&mut other));
    give(&a, 1);
    drop(gone);
    assert!(is_done(&mut next));
    give(&a, 1);
    drop(other);
    assert_eq!((s.free(0), s.waiting(0)), (1, 0), "nobody has it, nobody waits");
    // The last one of all.
    assert!(b.try_one(0));
    let mut gone = wait(&b);
    assert!(!is_done(&mut gone));
    give(&b, 1);
    drop(gone);
    assert_eq!((s.free(0), s.waiting(0)), (1, 0));
}

/// One of those that ask has no use for anything any more; others are given what they have asked for.
#[test]
fn what_nobody_asks_for_any_more_is_given_to_nobody() {
    let s = Shares::new([1]);
    let given = Rc::new(Cell::new(0));
    let told = given.clone();
    let (a, b) = (s.account_told("a", move || told.set(told.get() + 1)), s.account("b"));
    assert!(a.try_one(0));
    (0..3).for_each(|_| a.ask(0));
    let mut other = wait(&b);
    assert!(!is_done(&mut other));
    assert_eq!(s.waiting(0), 4);
    a.ask_no_more(0);
    assert_eq!(s.waiting(0), 1);
    give(&a, 1);
    assert!(is_done(&mut other) && given.get() == 0);
    give(&b, 1);
    assert!(a.try_one(0), "it may come back");
    a.ask(0);
    give(&a, 1);
    assert_eq!((given.get(), s.waiting(0)), (1, 0));
    give(&a, 1);
    assert_eq!(s.free(0), 1);
}

/// Whatever happens: nothing is lost, nobody waits who may have one, and a host that has none gets one as long as there are
/// no more hosts than are kept for.
#[test]
fn anything_may_happen_in_any_order() {
    for seed in 0..300 {
        let mut rng = Prng::new(seed);
        let total = rng.between(1, 40) as usize;
        let s = Shares::new([total]);
        let mut accounts: Vec<Rc<Account>> = Vec::new();
        let mut waits: Vec<(Rc<Account>, Wait)> = Vec::new();
        for _ in 0..400 {
            let i = rng.below(accounts.len().max(1) as u64) as usize;
            match rng.below(10) {
                0 if accounts.len() < 12 => accounts.push(s.account(&rng.below(4).to_string())),
                1 if i < accounts.len() => {
                    // A channel ends: its waits are given up, and what it has comes back.
                    let a = accounts.remove(i);
                    waits.retain(|(x, _)| !Rc::ptr_eq(x, &a));
                    give(&a, a.parts[0].held.get());
                }
                2..=4 if i < accounts.len() => drop(accounts[i].try_one(0)),
                5 | 6 if i < accounts.len() => {
                    let mut w = wait(&accounts[i]);
                    if !is_done(&mut w) {
                        waits.push((accounts[i].clone(), w));
                    }
                }
                7 if !waits.is_empty() => {
                    drop(waits.remove(rng.below(waits.len() as u64) as usize));
                }
                _ if i < accounts.len() && accounts[i].parts[0].held.get() > 0 => {
                    // Perhaps one that was given just now, to somebody who has not looked yet.
                    waits.retain_mut(|(a, w)| !Rc::ptr_eq(a, &accounts[i]) || !is_done(w));
                    give(&accounts[i], 1);
                }
                _ => {}
            }
            let held: u32 = accounts.iter().map(|a| a.parts[0].held.get()).sum();
            assert_eq!(held + s.free(0), total as u32, "seed {seed}");
            let kind = &s.0.kinds[0];
            for host in kind.row.borrow().iter() {
                for a in host.parts[0].row.borrow().iter() {
                    assert!(a.parts[0].waits.waiting() > 0 && a.parts[0].in_row.get());
                    assert!(!a.may_take(0), "seed {seed}: one waits who may have one");
                }
            }
            for a in &accounts {
                let none = a.host.parts[0].held.get() == 0;
                let enough = s.hosts() <= (total / 4).max(2).min(total);
                assert!(!none || !enough || a.may_take(0), "seed {seed}: a host is without");
            }
        }
        waits.clear();
        accounts.iter().for_each(|a| give(a, a.parts[0].held.get()));
        assert_eq!((s.free(0), s.waiting(0)), (total as u32, 0), "seed {seed}");
        accounts.clear();
        assert_eq!((s.hosts(), s.0.kinds[0].kept.get()), (0, 0), "seed {seed}");
    }
}
