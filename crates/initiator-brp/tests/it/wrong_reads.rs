//! Wrong answers to the RDMA READs by which the target fetches data: requests and buffers come back.

use crate::common::{on_reactor, session_config};
use crate::hostile::ends_whole;
use crate::peer::{command, list, login, message};
use crate::raw::{Came, Raw, crowd};
use crate::target::{config, serve};
use weir_base::Prng;
use weir_initiator_brp::Session;
use weir_mem::Slice;
use weir_proto_brp::command::{Command, Descriptor};
use weir_proto_brp::completion::Completions;
use weir_proto_brp::{Features, Header, Kind, LoginRequest, LoginResponse, Op, PortId, VolumeInfo};

/// Completions in a message, with their inline data.
fn completions(m: &[u8]) -> Vec<Vec<u8>> {
    let header = Header::decode(m, false).unwrap();
    if header.kind != Kind::Completions {
        return Vec::new();
    }
    Completions::decode(&header, m, false).unwrap().iter().map(|i| i.data.to_vec()).collect()
}

/// Writes on a connection whose READs are answered anyhow, until all are answered or the connection has ended.
fn round(address: &str, host: u64, rng: &mut Prng) -> Raw {
    let mut initiator = [9; 16];
    initiator[8..].copy_from_slice(&host.to_be_bytes());
    let features = Features::USUAL.without(Features::INTEGRITY);
    let (initiator, session) = (PortId(initiator), rng.next_u64());
    let login = LoginRequest { features, initiator, session, ..login() };
    let (mut raw, granted) = Raw::enter(address, &login.encode());
    assert!(!LoginResponse::decode(&granted).unwrap().features.has(Features::INTEGRITY));
    raw.say(&message(&[(list(), &[], &[])], false));
    let guard = loop {
        let Came::Message(m) = raw.next() else { panic!("the volumes are told") };
        if let Some(data) = completions(&m).first() {
            break VolumeInfo::decode(data).unwrap().guard;
        }
    };
    let mut left = rng.between(1, 11);
    for tag in 1..=left as u16 {
        let len = [4096, 8192, 64 << 10, 1 << 20][rng.below(4) as usize];
        let parts = [1, 1, 2, 5][rng.below(4) as usize];
        let each = len / parts / 512 * 512;
        let of = |i| if i + 1 < parts { each } else { len - each * (parts - 1) };
        let data: Vec<_> =
            (0..parts).map(|i| Descriptor { addr: 0, key: 0x77, len: of(i) }).collect();
        let c = Command { len, guard, segments: parts as u16, ..command(Op::Write, tag) };
        raw.say(&message(&[(c, &data, &[])], false));
    }
    while left > 0 && !rng.chance(1, 50) {
        match raw.next() {
            Came::Read(r) => raw.answer(r, rng),
            Came::Message(m) => left -= completions(&m).len() as u64,
            Came::End => break,
        }
    }
    raw
}

#[test]
fn wrong_answers_to_reads_leave_nothing_behind() {
    on_reactor(|p| async move {
        let t = serve(p.clone(), "127.0.0.1:0", config(), &Slice::heap(1 << 20));
        let address = t.addr.clone();
        let answered = crowd(40, move |host, rng| round(&address, host, rng)).await;
        assert!(answered.iter().all(|n| *n > 0), "every kind was there: {answered:?}");
        // Others are served as ever.
        let s = Session::connect(p.clone(), session_config(&t)).await.unwrap();
        let name = s.queue().list().await.unwrap()[0].name.clone();
        let disk = s.queue().open(&name).await.unwrap();
        let data = Slice::heap(1 << 20);
        disk.write(0, data.clone(), false).await.unwrap();
        disk.read(0, data).await.unwrap();
        s.close().await;
        ends_whole(&t).await;
    });
}
