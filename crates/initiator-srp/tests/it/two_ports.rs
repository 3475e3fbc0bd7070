//! Two target ports of one node before the same unit, as multipath has them.

use crate::target::{BLOCK, Served, config, medium, serve_ports};
use std::rc::Rc;
use weir_base::SECONDS;
use weir_fabric::Provider;
use weir_initiator_srp::{Queue, Session, SessionConfig};
use weir_mem::Slice;
use weir_proto_scsi::Lun;
use weir_proto_scsi::cdb::PrOut;
use weir_proto_scsi::initiator as build;
use weir_proto_scsi::pr::PrType;
use weir_proto_srp::PortId;
use weir_sim::{Node, World};
use weir_target_srp::TargetConfig;

/// A target port and what to call it.
type Port = (String, PortId);

/// Two ports on a node.
fn two(node: &Node, medium: &crate::target::Medium) -> (Vec<Served>, [Port; 2]) {
    let second = TargetConfig { port_id: PortId::new(2, 2), relative_port: 2, ..config() };
    let configs = [config(), second];
    let ids = [configs[0].port_id, configs[1].port_id];
    let addrs = [node.addr(5555), node.addr(5556)];
    let [one, two] = configs;
    let served =
        node.enter(|| serve_ports(node.provider(), [(&*addrs[0], one), (&*addrs[1], two)], medium));
    let port = |i: usize| (served[i].addr.clone(), ids[i]);
    let ports = [port(0), port(1)];
    (served, ports)
}

async fn login(provider: Rc<dyn Provider>, port: &Port, host: u64) -> Session {
    let config = SessionConfig::new(&port.0, port.1, PortId::new(host, 1));
    Session::connect(provider, SessionConfig { channels: 1, ..config }).await.unwrap()
}

/// PERSISTENT RESERVE OUT of a type for which only the holder may read and write.
async fn reserve_out(q: &Queue, action: PrOut, key: u64, action_key: u64) {
    let mut list = [0; 24];
    list[..8].copy_from_slice(&key.to_be_bytes());
    list[8..16].copy_from_slice(&action_key.to_be_bytes());
    let cdb = build::pr_out(action, Some(PrType::ExclusiveAccess), list.len() as u32);
    q.execute(Lun::ZERO, &cdb, &[Slice::copy_of(&list)], &[]).await.unwrap();
}

fn block(byte: u8) -> Slice {
    let b = Slice::heap(BLOCK);
    b.fill(byte);
    b
}

/// A reservation through one port keeps out a host at the other, and that host's end takes nothing from the holder.
#[test]
fn a_reservation_holds_at_both_ports() {
    let w = World::new(1);
    let (t, a, b) = (w.node("target"), w.node("a"), w.node("b"));
    let m = medium(256 << 10);
    let (_served, [first, second]) = two(&t, &m);
    let provider = a.provider();
    let holder = w.run(&a, 60 * SECONDS, async move {
        let s = login(provider, &first, 0xa).await;
        reserve_out(&s.queue(), PrOut::Register, 0, 0xaaaa).await;
        reserve_out(&s.queue(), PrOut::Reserve, 0xaaaa, 0).await;
        s
    });
    let holder = holder.unwrap();
    let provider = b.provider();
    let other = w.run(&b, 60 * SECONDS, async move {
        let s = login(provider, &second, 0xb).await;
        let r = s.queue().write(Lun::ZERO, 0, block(0x66), false).await;
        s.close().await;
        r
    });
    assert!(other.unwrap().is_err(), "a host without a registration wrote");
    w.run_for(SECONDS);
    let again = w.run(&a, 60 * SECONDS, async move {
        holder.queue().write(Lun::ZERO, 0, block(0x77), false).await
    });
    again.unwrap().unwrap();
    assert_eq!(m.lock().unwrap()[0], 0x77);
}
