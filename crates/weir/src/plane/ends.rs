//! The end of the data plane's ports and reactors.

use super::local::on;
use super::{Node, NodeConfig};
use std::io::{PipeWriter, Read};
use std::net::TcpStream;
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use weir_control::Code;
use weir_control::dataplane::DataPlane;
use weir_control::model::{Command, Model, TargetPort, TargetSpec};
use weir_reactor::PollMode;

fn node() -> Arc<Node> {
    let config = NodeConfig {
        cores: vec![None, None],
        poll: PollMode::Sleep,
        buffer_memory: 32 << 20,
        unsummed: [].into(),
        initiator: weir_control::model::InitiatorId([1; 16]),
        secret: None,
    };
    Node::start(&config).expect("two reactors")
}

fn port() -> TargetPort {
    let spec = TargetSpec {
        name: "t".into(),
        listen: vec!["127.0.0.1:0".into()],
        channels: Some(4),
        ..TargetSpec::default()
    };
    let mut m = Model::default();
    m.apply(Command::PutTarget(spec), 7).expect("a target port");
    m.target("t").expect("it").clone()
}

/// Holds a reactor up until what it gives is dropped.
fn hold(node: &Node, reactor: usize) -> PipeWriter {
    let (mut read, write) = std::io::pipe().expect("a pipe");
    let (tell, told) = channel();
    node.handles()[reactor].run(move || {
        weir_reactor::spawn_task(async move {
            tell.send(()).expect("somebody listens");
            drop(read.read(&mut [0]));
        });
    });
    told.recv_timeout(Duration::from_secs(60)).expect("it is held up");
    write
}

#[test]
fn a_reactor_that_is_held_up_keeps_no_other_and_is_named() {
    let node = node();
    let held = hold(&node, 0);
    let e = node.end().expect_err("one has not ended").to_string();
    assert!(e.contains("reactor 0: the task weir::plane::ends") && e.contains("in read of"), "{e}");
    assert!(!e.contains("reactor 1"), "{e}");
    // Who comes late is told so.
    let rt = tokio::runtime::Runtime::new().expect("a runtime");
    let handles = node.handles();
    rt.block_on(on(&handles[1], |_| Box::pin(async { Ok(()) }))).expect_err("it has ended");
    drop(held);
    node.end().expect("all reactors end");
    rt.block_on(node.listen(&port())).expect_err("there are no reactors");
    rt.block_on(node.stop("t")).expect("there is no such port");
}

#[test]
fn nobody_is_let_in_when_the_stop_begins() {
    let (node, port) = (node(), port());
    let rt = tokio::runtime::Runtime::new().expect("a runtime");
    let at = rt.block_on(node.listen(&port)).expect("it listens")[0];
    drop(TcpStream::connect(at).expect("it lets in"));
    node.let_nobody_in();
    let begun = Instant::now();
    while TcpStream::connect(at).is_ok() {
        assert!(begun.elapsed() < Duration::from_secs(60), "hosts are let in");
    }
    let e = rt.block_on(node.listen(&port)).expect_err("no port comes up");
    assert_eq!(e.code, Code::NotReady);
    rt.block_on(node.stop("t")).expect("it ends");
    node.end().expect("all reactors end");
}

/// The stop begins after a port has looked whether it has, and before the port can be seen by what closes all.
#[test]
fn a_port_that_is_being_started_when_the_stop_begins_does_not_come_up() {
    let (node, port) = (node(), port());
    let held = hold(&node, 0);
    let rt = tokio::runtime::Runtime::new().expect("a runtime");
    rt.block_on(async {
        let mut starts = pin!(node.listen(&port));
        tokio::select! {
            biased;
            done = &mut starts => panic!("it waits for a reactor: {done:?}"),
            () = std::future::ready(()) => {}
        }
        node.let_nobody_in();
        drop(held);
        let e = starts.await.expect_err("it does not come up");
        assert_eq!(e.code, Code::NotReady);
    });
    assert!(node.targets.lock().expect("nobody panics").is_empty());
    node.end().expect("all reactors end");
}
