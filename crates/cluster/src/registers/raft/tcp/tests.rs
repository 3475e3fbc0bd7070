//! Strangers, wrong frames and deadlines.

use super::*;

fn secret(of: &str) -> Secret {
    Secret::new(of.as_bytes()).unwrap()
}

async fn pair(
    calls: &Secret,
    called: &Secret,
    to: Identity,
) -> (io::Result<Session>, io::Result<Session>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let accept = async {
        let (stream, _) = listener.accept().await.unwrap();
        timeout(STEP, Session::called(called, 7, stream)).await?
    };
    tokio::join!(Session::call(calls, to, address), accept)
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { timeout(Duration::from_secs(20), test).await.expect("it ends") });
}

#[test]
fn frames_go_both_ways() {
    run(async {
        let s = secret("a secret of a cluster");
        let (calls, called) = pair(&s, &s, 7).await;
        let (mut calls, mut called) = (calls.unwrap(), called.unwrap());
        for n in 0..3 {
            calls.send(&[n; 5]).await.unwrap();
            assert_eq!(called.receive(STEP).await.unwrap(), [n; 5]);
            called.send(&[]).await.unwrap();
            assert!(calls.receive(STEP).await.unwrap().is_empty());
        }
        assert!(calls.is_quiet());
        let long = vec![3; MAX_FRAME];
        let (sent, got) = tokio::join!(calls.send(&long), called.receive(STEP));
        sent.unwrap();
        assert_eq!(got.unwrap(), long);
        assert!(calls.send(&vec![0; MAX_FRAME + 1]).await.is_err());
        drop(called);
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!calls.is_quiet());
    });
}

#[test]
fn strangers_are_neither_heard_nor_believed() {
    run(async {
        let (ours, theirs) = (secret("a secret of a cluster"), secret("another, of another"));
        let (calls, called) = pair(&theirs, &ours, 7).await;
        assert!(calls.unwrap_err().to_string().contains("secret"));
        assert!(called.is_err());
        // One who does not look at the answer, and proves nothing.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stranger = async {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let mut hello = [0; HELLO];
            hello[..8].copy_from_slice(&MAGIC);
            hello[8] = 7;
            stream.write_all(&hello).await.unwrap();
            stream.write_all(&[0; CODE]).await.unwrap();
            let mut all = Vec::new();
            let _ = stream.read_to_end(&mut all).await;
            assert!(all.len() <= REPLY + CODE);
        };
        let accept = async {
            let (stream, _) = listener.accept().await.unwrap();
            Session::called(&ours, 7, stream).await.unwrap_err()
        };
        let ((), error) = tokio::join!(stranger, accept);
        assert!(error.to_string().contains("secret"));
        assert_eq!(Secret::new(b"short").unwrap_err(), TooShort);
    });
}

#[test]
fn another_voter_at_the_address_is_not_taken_for_the_one() {
    run(async {
        let s = secret("a secret of a cluster");
        let (calls, called) = pair(&s, &s, 8).await;
        assert!(calls.unwrap_err().to_string().contains("another voter"));
        assert!(called.is_err());
    });
}

#[test]
fn changed_and_repeated_frames_are_refused() {
    run(async {
        let s = secret("a secret of a cluster");
        let (calls, called) = pair(&s, &s, 7).await;
        let (mut calls, mut called) = (calls.unwrap(), called.unwrap());
        // The same frame again has the same code, and another number.
        calls.send(b"one").await.unwrap();
        called.receive(STEP).await.unwrap();
        calls.out.count = 0;
        calls.send(b"one").await.unwrap();
        assert!(called.receive(STEP).await.unwrap_err().to_string().contains("wrong code"));
        let (calls, called) = pair(&s, &s, 7).await;
        let (mut calls, mut called) = (calls.unwrap(), called.unwrap());
        calls.stream.write_all(&u32::MAX.to_le_bytes()).await.unwrap();
        assert!(called.receive(STEP).await.unwrap_err().to_string().contains("too long"));
    });
}

#[test]
fn a_frame_that_does_not_end_is_not_waited_for() {
    run(async {
        let s = secret("a secret of a cluster");
        let (calls, called) = pair(&s, &s, 7).await;
        let (mut calls, mut called) = (calls.unwrap(), called.unwrap());
        calls.stream.write_all(&[5, 0, 0, 0, 1]).await.unwrap();
        let error = called.receive(IDLE).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    });
}

#[test]
fn nobody_there_is_certainly_not_sent() {
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let tcp = Tcp::new(secret("a secret of a cluster"));
        let member = Member { node: 1, address };
        // It is connected, but nobody answers.
        let limit = Duration::from_millis(100);
        let silent = tcp.ask(7, &member, vec![1], limit).await;
        assert!(matches!(silent, Err(PeerError::NotSent(_))), "{silent:?}");
        drop(listener);
        let refused = tcp.ask(7, &member, vec![1], limit).await;
        assert!(matches!(refused, Err(PeerError::NotSent(_))), "{refused:?}");
    });
}
