//! The engine among voters of one process: their messages go by channels that can be cut, and the test waits for events.

use super::*;
use crate::registers::history::{Op, What, check};
use crate::registers::{Changed, ReadError, Register, Registers, Settled, Version, settle};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tokio::time::{sleep, timeout};
use weir_base::Prng;
use weir_proto_cluster::{Life, Node, Writer};

const POOL: u128 = 5;

fn value(version: u64, n: u32) -> Register {
    let [a, b] = [1, 2].map(|n| Node::new(n).unwrap());
    let mut r = Register::made(POOL, [a, b], Writer { node: a, life: Life(1), n });
    r.version = Version(version);
    r
}

fn before(version: u64) -> Option<Version> {
    (version > 1).then(|| Version(version - 1))
}

/// A folder that goes with the test.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Dir {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("weir-cluster-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What joins the voters of a test.
#[derive(Default)]
struct Hub {
    voters: Mutex<BTreeMap<Identity, Voter<Line>>>,
    /// Ways that are cut.
    cut: Mutex<BTreeSet<(Identity, Identity)>>,
}

impl Hub {
    fn isolate(&self, one: Identity) {
        let others: Vec<Identity> = self.voters.lock().unwrap().keys().copied().collect();
        let ways = others.into_iter().flat_map(|o| [(one, o), (o, one)]);
        self.cut.lock().unwrap().extend(ways);
    }

    fn heal(&self) {
        self.cut.lock().unwrap().clear();
    }

    fn is_cut(&self, from: Identity, to: Identity) -> bool {
        self.cut.lock().unwrap().contains(&(from, to))
    }
}

/// The way of one voter to all others.
struct Line {
    me: Identity,
    hub: Arc<Hub>,
}

impl Peers for Line {
    async fn ask(
        &self,
        identity: Identity,
        _: &Member,
        request: Vec<u8>,
        limit: Duration,
    ) -> Result<Vec<u8>, PeerError> {
        let silence = |what: &str| PeerError::Lost(what.into());
        let lost = async {
            sleep(limit).await;
            Err(silence("cut"))
        };
        if self.hub.is_cut(self.me, identity) {
            return lost.await;
        }
        let voter = self.hub.voters.lock().unwrap().get(&identity).cloned();
        let Some(voter) = voter else { return Err(PeerError::NotSent("nobody there".into())) };
        let answer = timeout(limit, voter.answer(&request)).await;
        if self.hub.is_cut(identity, self.me) {
            return lost.await;
        }
        answer.map_err(|_| silence("late"))
    }
}

fn times() -> Times {
    Times { limit: Duration::from_millis(800), ..Times::default() }
}

async fn begin(file: File, hub: &Arc<Hub>, times: Times) -> Voter<Line> {
    let peers = Arc::new(Line { me: file.identity(), hub: hub.clone() });
    let voter = Voter::start(file, peers, times).await.unwrap();
    hub.voters.lock().unwrap().insert(voter.identity(), voter.clone());
    voter
}

fn member(node: u8) -> Member {
    Member { node, address: String::new() }
}

/// Three voters that are one cluster.
async fn three(dir: &Dir, hub: &Arc<Hub>, times: Times) -> Vec<Voter<Line>> {
    let mut voters = Vec::new();
    for n in 1..=3 {
        voters.push(begin(File::create(&dir.file(&n.to_string())).unwrap(), hub, times).await);
    }
    let members = voters.iter().zip(1..).map(|(v, n)| (v.identity(), member(n))).collect();
    voters[0].form(members).await.unwrap();
    voters
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < Duration::from_secs(20), "never: {what}");
        sleep(Duration::from_millis(5)).await;
    }
}

/// One that leads by what these say.
async fn leader(voters: &[Voter<Line>]) -> usize {
    let mut found = None;
    until("a leader", || {
        let mut leaders = voters.iter().map(|v| v.known().leader);
        let first = leaders.next().flatten();
        found = voters.iter().position(|v| Some(v.identity()) == first);
        leaders.all(|l| l == first) && found.is_some()
    })
    .await;
    found.unwrap()
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { timeout(Duration::from_secs(60), test).await.expect("it ends") });
}

async fn done(voter: &Voter<Line>, version: u64) {
    let changed = voter.change(POOL, before(version), value(version, version as u32)).await;
    assert_eq!(changed, Changed::Done(Version(version)));
}

async fn reads(voter: &Voter<Line>, version: u64) {
    let standing = voter.read(POOL).await.unwrap();
    assert_eq!(standing.map(|(v, _)| v.0), (version > 0).then_some(version));
}

#[test]
fn registers_are_changed_and_read_at_any_voter() {
    run(async {
        let (dir, hub) = (Dir::new(), Arc::default());
        let voters = three(&dir, &hub, times()).await;
        leader(&voters).await;
        reads(&voters[1], 0).await;
        let watching = voters[2].clone();
        let watch = tokio::spawn(async move { watching.newer(POOL, Some(Version(1))).await });
        for version in 1..=6 {
            done(&voters[version as usize % 3], version).await;
            reads(&voters[(version as usize + 1) % 3], version).await;
        }
        assert!(watch.await.unwrap().unwrap().0 > Version(1));
        // Another that expects what is over; the same again; and one that cannot follow.
        let other = voters[0].change(POOL, Some(Version(3)), value(4, 99)).await;
        assert_eq!(other, Changed::Other(Some((Version(6), value(6, 6)))));
        let again = voters[1].change(POOL, Some(Version(5)), value(6, 6)).await;
        assert_eq!(again, Changed::Done(Version(6)));
        let refused = voters[0].change(POOL, Some(Version(6)), value(8, 9)).await;
        assert!(matches!(refused, Changed::Refused(_)));
        reads(&voters[2], 6).await;
    });
}

#[test]
fn a_leader_that_is_cut_off_answers_nothing_and_takes_no_doubt_for_failure() {
    run(async {
        let (dir, hub) = (Dir::new(), Arc::default());
        let voters = three(&dir, &hub, times()).await;
        let old = leader(&voters).await;
        done(&voters[old], 1).await;
        hub.isolate(voters[old].identity());
        let mine = value(2, 77);
        let doubt = voters[old].change(POOL, Some(Version(1)), mine).await;
        assert_eq!(doubt, Changed::InDoubt);
        let rest: Vec<Voter<Line>> =
            voters.iter().filter(|v| v.identity() != voters[old].identity()).cloned().collect();
        let id = voters[old].identity();
        until("another leader", || rest.iter().all(|v| v.known().leader.is_some_and(|l| l != id)))
            .await;
        done(&rest[0], 2).await;
        assert_eq!(voters[old].read(POOL).await, Err(ReadError::NoMajority));
        hub.heal();
        let settled = settle(&voters[old], POOL, Some(Version(1)), mine).await;
        assert_eq!(settled, Settled::Lost((Version(2), value(2, 2))));
        reads(&voters[old], 2).await;
    });
}

#[test]
fn a_doubt_is_settled_by_asking_again() {
    run(async {
        let (dir, hub) = (Dir::new(), Arc::default());
        let voters = three(&dir, &hub, times()).await;
        let at = leader(&voters).await;
        done(&voters[at], 1).await;
        // Its followers hear of the change, and it hears nothing of them.
        let me = voters[at].identity();
        let others = voters.iter().map(|v| v.identity()).filter(|o| *o != me);
        hub.cut.lock().unwrap().extend(others.map(|o| (o, me)));
        let mine = value(2, 2);
        assert_eq!(voters[at].change(POOL, Some(Version(1)), mine).await, Changed::InDoubt);
        hub.heal();
        assert_eq!(settle(&voters[at], POOL, Some(Version(1)), mine).await, Settled::Done);
        reads(&voters[(at + 1) % 3], 2).await;
    });
}

#[test]
fn what_was_answered_is_there_after_all_have_ended() {
    run(async {
        let (dir, hub) = (Dir::new(), Arc::<Hub>::default());
        let voters = three(&dir, &hub, times()).await;
        leader(&voters).await;
        for version in 1..=3 {
            done(&voters[0], version).await;
        }
        let ids: Vec<Identity> = voters.iter().map(|v| v.identity()).collect();
        hub.voters.lock().unwrap().clear();
        for voter in voters {
            voter.stop().await;
            assert_eq!(voter.read(POOL).await, Err(ReadError::Ended));
            drop(voter);
        }
        let mut voters = Vec::new();
        for n in 1..=3 {
            let file = reopen(&dir.file(&n.to_string())).await;
            assert_eq!(file.identity(), ids[n - 1]);
            voters.push(begin(file, &hub, times()).await);
        }
        leader(&voters).await;
        reads(&voters[1], 3).await;
        done(&voters[2], 4).await;
    });
}

/// Whether a leader that was stopped leads again at once, with the others out of its reach.
async fn leads_without_election() -> bool {
    let (dir, hub) = (Dir::new(), Arc::<Hub>::default());
    let mut voters = three(&dir, &hub, times()).await;
    let at = leader(&voters).await;
    done(&voters[at], 1).await;
    let old = voters.remove(at);
    hub.isolate(old.identity());
    hub.voters.lock().unwrap().remove(&old.identity());
    old.stop().await;
    drop(old);
    let again = begin(reopen(&dir.file(&(at + 1).to_string())).await, &hub, times()).await;
    until("it knows its cluster", || again.known().voters.len() == 3).await;
    let leads = again.known().leader == Some(again.identity());
    hub.heal();
    voters.push(again);
    leader(&voters).await;
    reads(&voters[2], 1).await;
    leads
}

#[test]
fn a_leader_that_starts_again_is_elected_anew() {
    run(async { assert!(!leads_without_election().await) });
    #[cfg(feature = "planted")]
    {
        use crate::planted::{Bug, plant};
        plant(Some(Bug::LeadKept));
        run(async { assert!(leads_without_election().await) });
        plant(None);
    }
}

/// Opens the file of a voter that has been stopped, when the last task of its engine is gone.
async fn reopen(path: &Path) -> File {
    for _ in 0..1000 {
        if let Ok(file) = File::open(path) {
            return file;
        }
        sleep(Duration::from_millis(5)).await;
    }
    File::open(path).unwrap()
}

#[test]
fn a_follower_that_was_away_for_long_gets_a_snapshot() {
    run(async {
        let (dir, hub) = (Dir::new(), Arc::default());
        let short = Times { snapshot_after: 10, ..times() };
        let voters = three(&dir, &hub, short).await;
        let at = leader(&voters).await;
        let away = (at + 1) % 3;
        hub.isolate(voters[away].identity());
        for version in 1..=40 {
            done(&voters[at], version).await;
        }
        assert_eq!(voters[away].newer_now(), None);
        hub.heal();
        until("the follower has it", || voters[away].newer_now() == Some(Version(40))).await;
        reads(&voters[away], 40).await;
    });
}

impl Voter<Line> {
    /// What this voter knows of by itself.
    fn newer_now(&self) -> Option<Version> {
        let newer = std::pin::pin!(self.newer(POOL, None));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match newer.poll(&mut context) {
            std::task::Poll::Ready(standing) => standing.map(|(v, _)| v),
            std::task::Poll::Pending => None,
        }
    }
}

#[test]
fn a_lost_file_is_another_voter_which_takes_the_place_of_the_old() {
    run(async {
        let (dir, hub) = (Dir::new(), Arc::<Hub>::default());
        let mut voters = three(&dir, &hub, times()).await;
        leader(&voters).await;
        done(&voters[0], 1).await;
        let lost = voters.pop().unwrap();
        let gone = lost.identity();
        hub.voters.lock().unwrap().remove(&gone);
        lost.stop().await;
        drop(lost);
        std::fs::remove_file(dir.file("3")).unwrap();
        // It does not come back by itself.
        assert!(matches!(File::open(&dir.file("3")), Err(FileError::Missing(_))));
        let new = begin(File::create(&dir.file("3")).unwrap(), &hub, times()).await;
        assert_ne!(new.identity(), gone);
        // Nor can it form a cluster with members of the old one.
        let all: BTreeMap<Identity, Member> = [&new, &voters[0], &voters[1]]
            .into_iter()
            .zip(1..)
            .map(|(v, n)| (v.identity(), member(n)))
            .collect();
        assert!(matches!(new.form(all).await, Err(FormError::Member(_))));
        assert!(new.known().voters.is_empty());
        let at = leader(&voters).await;
        let follower = &voters[1 - at];
        let refused = follower.replace(Some(gone), None).await;
        assert!(matches!(refused, Err(ReplaceError::NotLeader(Some(_)))));
        voters[at].replace(Some(gone), Some((new.identity(), member(3)))).await.unwrap();
        let mut want: Vec<Identity> =
            vec![voters[0].identity(), voters[1].identity(), new.identity()];
        want.sort_unstable();
        until("it votes", || new.known().voters == want).await;
        reads(&new, 1).await;
        // It counts: another may go.
        hub.isolate(voters[1 - at].identity());
        done(&voters[at], 2).await;
        reads(&new, 2).await;
    });
}

#[test]
fn files_are_what_they_say() {
    let dir = Dir::new();
    let path = dir.file("a");
    let identity = File::create(&path).unwrap().identity();
    assert!(matches!(File::create(&path), Err(FileError::Exists(_))));
    assert_eq!(File::open(&path).unwrap().identity(), identity);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let open = File::open(&path).unwrap();
    assert!(matches!(File::open(&path), Err(FileError::Database(_))), "it is in use");
    drop(open);
    // One that ended while it was being made left no file.
    std::fs::write(dir.file("b.new"), b"half").unwrap();
    assert!(matches!(File::open(&dir.file("b")), Err(FileError::Missing(_))));
    assert_ne!(File::create(&dir.file("b")).unwrap().identity(), identity);
    std::fs::write(dir.file("c"), b"something else").unwrap();
    assert!(matches!(File::open(&dir.file("c")), Err(FileError::Database(_))));
}

/// Clients beside each other while leaders are cut off; what they saw.
async fn troubled(events: u32) -> Vec<Op> {
    let (dir, hub) = (Dir::new(), Arc::<Hub>::default());
    let voters = three(&dir, &hub, times()).await;
    leader(&voters).await;
    let zero = Instant::now();
    let stop = Arc::new(AtomicU64::new(0));
    let clients: Vec<_> = (0..4)
        .map(|n| tokio::spawn(client(n, voters[n as usize % 3].clone(), zero, stop.clone())))
        .collect();
    let version = || voters.iter().filter_map(Voter::newer_now).max().map_or(0, |v| v.0);
    for _ in 0..events {
        let at_first = version();
        until("changes", || version() > at_first + 5).await;
        let at = leader(&voters).await;
        let id = voters[at].identity();
        hub.isolate(id);
        until("another leader", || {
            let others = voters.iter().filter(|v| v.identity() != id);
            others.into_iter().all(|v| v.known().leader.is_some_and(|l| l != id))
        })
        .await;
        sleep(Duration::from_millis(200)).await;
        let meanwhile = version();
        until("changes by the others", || version() > meanwhile + 2).await;
        hub.heal();
        leader(&voters).await;
    }
    stop.store(1, Ordering::Relaxed);
    let mut ops = Vec::new();
    for client in clients {
        ops.extend(client.await.unwrap());
    }
    ops
}

async fn client(number: u32, voter: Voter<Line>, zero: Instant, stop: Arc<AtomicU64>) -> Vec<Op> {
    let mut chance = Prng::new(u64::from(number));
    let now = || zero.elapsed().as_nanos() as u64;
    let (mut ops, mut known, mut n) = (Vec::new(), None, number * 1_000_000);
    while stop.load(Ordering::Relaxed) == 0 {
        let begin = now();
        let what = if chance.chance(1, 2) {
            let Ok(standing) = voter.read(POOL).await else { continue };
            known = standing.map(|(v, _)| v);
            What::Read(standing)
        } else {
            n += 1;
            let new = value(known.map_or(1, |v: Version| v.0 + 1), n);
            let changed = voter.change(POOL, known, new).await;
            match changed {
                Changed::Done(v) => known = Some(v),
                Changed::Other(standing) => known = standing.map(|(v, _)| v),
                _ => {}
            }
            What::Change(before(new.version.0), new, changed)
        };
        ops.push(Op { client: number, pool: POOL, begin, end: now(), what });
        sleep(Duration::from_millis(chance.below(4))).await;
    }
    ops
}

#[test]
fn histories_are_linearizable_while_leaders_are_cut_off() {
    run(async {
        let ops = troubled(3).await;
        let summary = check(&ops).unwrap_or_else(|v| panic!("{v:#?}"));
        println!("{summary:?}");
        assert!(summary.done > 10, "{summary:?}");
    });
}

#[cfg(feature = "planted")]
#[test]
fn planted_bugs_are_seen_in_histories() {
    use crate::planted::{Bug, plant};
    for bug in Bug::ALL.iter().filter(|b| !Bug::KILLS.contains(b) && !Bug::TESTS.contains(b)) {
        plant(Some(*bug));
        let mut caught = false;
        run(async {
            for _ in 0..5 {
                caught = caught || check(&troubled(2).await).is_err();
            }
        });
        plant(None);
        assert!(caught, "{bug:?} is not caught");
    }
}

/// The engine's own tests of what it is stored in.
#[test]
fn log_and_registers_are_what_the_engine_wants() {
    use super::log::Log;
    use super::machine::Machine;
    use super::types::Types;
    use openraft::StorageError;
    use openraft::testing::{StoreBuilder, Suite};

    struct Builder;

    impl StoreBuilder<Types, Log, Machine, Dir> for Builder {
        async fn build(&self) -> Result<(Dir, Log, Machine), StorageError<Identity>> {
            let dir = Dir::new();
            let file = File::create(&dir.file("voter")).unwrap();
            let mut machine = Machine::load(file.clone()).unwrap();
            machine.fill().await.unwrap();
            Ok((dir, Log(file), machine))
        }
    }
    Suite::test_all(Builder).unwrap();
}
