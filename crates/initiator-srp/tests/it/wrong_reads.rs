//! Wrong answers to the RDMA READs by which the target fetches data and tables: requests and buffers come back.

use crate::common::{L0, on_reactor, session_config};
use crate::hostile::ends_whole;
use crate::peer::{command, login, write10};
use crate::raw::{Came, Raw, crowd};
use crate::target::{config, medium, serve};
use weir_base::Prng;
use weir_initiator_srp::Session;
use weir_mem::Slice;
use weir_proto_srp::command_builder::BufferSpec;
use weir_proto_srp::iu::TargetIu;
use weir_proto_srp::{Descriptor, PortId};

/// Writes on a connection whose READs are answered anyhow, until all are answered or the connection has ended.
fn round(address: &str, host: u64, rng: &mut Prng) -> Raw {
    let (mut raw, _) = Raw::enter(address, &login(PortId::new(9, host)));
    // For the attention that every new nexus gets.
    raw.say(&command(0, &[0; 6], BufferSpec::None));
    let mut left = 1 + rng.between(1, 11);
    for tag in 1..left {
        let len = [4096, 8192, 64 << 10, 1 << 20][rng.below(4) as usize];
        let cdb = write10(0, (len / 512) as u16);
        let data = Descriptor { addr: 0, key: 0x77, len };
        let entries = [0, 0, 1, 2, 20, 300][rng.below(6) as usize];
        let table = Descriptor { len: 16 * entries, ..data };
        let data = match entries {
            0 => BufferSpec::Direct(data),
            _ => BufferSpec::Indirect { table, total: len, inline: &[] },
        };
        raw.say(&command(tag, &cdb, data));
    }
    while left > 0 && !rng.chance(1, 50) {
        match raw.next() {
            Came::Read(r) => raw.answer(r, rng),
            Came::Message(m) => match TargetIu::decode(&m) {
                Ok(TargetIu::Response(_)) => left -= 1,
                other => assert!(other.is_ok(), "{other:?}"),
            },
            Came::End => break,
        }
    }
    raw
}

#[test]
fn wrong_answers_to_reads_leave_nothing_behind() {
    on_reactor(|p| async move {
        let t = serve(p.clone(), "127.0.0.1:0", config(), &medium(1 << 20));
        let address = t.addr.clone();
        let answered = crowd(40, move |host, rng| round(&address, host, rng)).await;
        assert!(answered.iter().all(|n| *n > 0), "every kind was there: {answered:?}");
        // Others are served as ever.
        let s = Session::connect(p.clone(), session_config(&t)).await.unwrap();
        let q = s.queue();
        let data = Slice::heap(1 << 20);
        q.write(L0, 0, data.clone(), false).await.unwrap();
        q.read(L0, 0, data).await.unwrap();
        s.close().await;
        ends_whole(&t).await;
    });
}
