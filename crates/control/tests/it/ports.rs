//! Target ports that take each other's addresses.

use crate::fake::Fake;
use crate::support::*;
use std::sync::Arc;
use std::time::Duration;
use weir_control::Controller;
use weir_control::controller::ApplyReport;
use weir_control::declare::Desired;
use weir_control::model::TargetSpec;

fn at(addresses: &[(&str, u16)]) -> Desired {
    let one = |(name, port): &(&str, u16)| target(name, &format!("127.0.0.1:{port}"));
    Desired { targets: addresses.iter().map(one).collect(), ..Desired::default() }
}

/// Where ports really listen.
fn listening(fake: &Fake) -> Vec<(String, String)> {
    let state = fake.state();
    state.targets.values().map(|t| (t.name.clone(), t.listen.join(" "))).collect()
}

fn wanted(addresses: &[(&str, u16)]) -> Vec<(String, String)> {
    addresses.iter().map(|(name, port)| (name.to_string(), format!("127.0.0.1:{port}"))).collect()
}

async fn faults(c: &Controller) -> Vec<String> {
    c.status().await.expect("a status").faults.into_iter().map(|f| f.object).collect()
}

async fn start(dir: &Scratch, fake: &Arc<Fake>, declared: &Desired) -> Arc<Controller> {
    let targets: Vec<TargetSpec> = declared.targets.clone();
    let c = Controller::start_declared(dir.path(), fake.clone(), Vec::new(), targets).await;
    let c = c.expect("a controller");
    c.declare_at_start(declared.clone()).await;
    c
}

/// By one further, by one back, and each where the other was.
const MOVES: [[(&str, u16); 2]; 4] = [
    [("brp0", 5556), ("srp0", 5555)],
    [("brp0", 5557), ("srp0", 5556)],
    [("brp0", 5556), ("srp0", 5555)],
    [("brp0", 5555), ("srp0", 5556)],
];

#[tokio::test]
async fn ports_take_each_others_addresses() {
    let dir = Scratch::new();
    let fake = Arc::new(Fake::default());
    let c = Controller::start(dir.path(), fake.clone()).await.expect("a controller");
    for (n, addresses) in MOVES.iter().enumerate() {
        let calls = fake.state().calls.len();
        let r: ApplyReport = c.apply(at(addresses).into()).await.expect("a report");
        assert_eq!((r.failed.len(), r.applied.len()), (0, 2), "{addresses:?}: {r:?}");
        assert_eq!(listening(&fake), wanted(addresses));
        let calls = fake.state().calls[calls..].to_vec();
        let first = calls.iter().position(|c| c.starts_with("start_target")).expect("it starts");
        let late = calls[first..].iter().any(|c| c.starts_with("stop_target"));
        assert!(!late || n == 0, "a port is closed after another listens: {calls:?}");
    }
}

#[tokio::test]
async fn ports_begin_where_the_file_of_a_start_has_them() {
    let dir = Scratch::new();
    for addresses in &MOVES {
        let fake = Arc::new(Fake::default());
        let c = start(&dir, &fake, &at(addresses)).await;
        assert_eq!(listening(&fake), wanted(addresses));
        assert_eq!(faults(&c).await, Vec::<String>::new());
        let starts = fake.state().calls.iter().filter(|c| c.starts_with("start_target")).count();
        assert_eq!(starts, 2, "none listens twice: {:?}", fake.state().calls);
        c.shutdown().await.expect("an end");
    }
}

#[tokio::test]
async fn a_port_that_cannot_listen_is_a_fault_of_its_own() {
    let dir = Scratch::new();
    let fake = Arc::new(Fake::default());
    let c = Controller::start(dir.path(), fake.clone()).await.expect("a controller");
    c.apply(at(&MOVES[0]).into()).await.expect("a report");
    fake.break_call("start_target brp0");
    let r = c.apply(at(&MOVES[1]).into()).await.expect("a report");
    let failed: Vec<&str> = r.failed.iter().map(|f| f.object.as_str()).collect();
    assert_eq!((failed, r.applied.len()), (vec!["target/brp0"], 1));
    assert_eq!(listening(&fake), wanted(&MOVES[1][1..]));
    assert_eq!(faults(&c).await, ["target/brp0"]);
    // Applied again, it is told again.
    assert_eq!(c.apply(at(&MOVES[1]).into()).await.expect("a report").failed.len(), 1);
    fake.mend();
    let begun = std::time::Instant::now();
    while listening(&fake) != wanted(&MOVES[1]) {
        assert!(begun.elapsed() < Duration::from_secs(120), "it is not tried again");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// One of three that is nonsense leaves the others to move.
#[tokio::test]
async fn an_address_that_is_none_keeps_no_other_port_where_it_is() {
    let dir = Scratch::new();
    let fake = Arc::new(Fake::default());
    let c = Controller::start(dir.path(), fake.clone()).await.expect("a controller");
    c.apply(at(&MOVES[0]).into()).await.expect("a report");
    let mut file = at(&MOVES[1]);
    file.targets.insert(0, target("no", "nowhere"));
    let r = c.apply(file.into()).await.map(|r| (r.failed.len(), r.applied.len()));
    assert_eq!(r.expect("a report"), (1, 2));
    assert_eq!(listening(&fake), wanted(&MOVES[1]));
}
