//! Anything a host can say, with every feature, against the target as it is: its requests, and the answers that it builds.
//!
//! What decodes messages is fuzzed by itself. Here whatever passes that goes on to the end: each command is answered once, no
//! message is longer than the host receives, and what is said of checksums is true.

use crate::common::on_reactor;
use crate::peer::{Peer, ROOM, command, login};
use crate::target::{Served, config, serve};
use std::rc::Rc;
use weir_base::{MILLIS, Prng, SECONDS};
use weir_fabric::{Access, Provider, Remote};
use weir_mem::Slice;
use weir_proto_brp::command::{Command, Descriptor, flag};
use weir_proto_brp::login::units;
use weir_proto_brp::{Features, LoginRequest, Op, Status};
use weir_reactor::{sleep, timeout};
use weir_target_brp::TargetConfig;

const VOLUME: u64 = 4 << 20;

/// A number, mostly next to one that matters.
fn edge(rng: &mut Prng, edges: &[u64]) -> u64 {
    let e = edges[rng.below(edges.len() as u64) as usize];
    match rng.below(4) {
        0 => e,
        1 => e.wrapping_add(rng.below(3)).wrapping_sub(1),
        2 => e.wrapping_sub(rng.below(2000)),
        _ => rng.below(VOLUME / 512) * 512,
    }
}

/// One command with its descriptors and its inline data.
type Part = (Command, Vec<Descriptor>, Vec<u8>);

fn any_command(rng: &mut Prng, tag: u16, guard: u32, memory: Remote, most: usize) -> Part {
    let ops = [Op::Nop, Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes];
    let more = [Op::CompareAndWrite, Op::Geometry, Op::List, Op::Read, Op::Read];
    let all: Vec<Op> = ops.into_iter().chain(more).collect();
    let op = all[rng.below(all.len() as u64) as usize];
    let far = [0, 512, 4096, VOLUME, 1 << 32, 1 << 63, u64::MAX, u64::MAX - 4095];
    let long = [0, 192, 512, 4096, 16384, ROOM as u64, 1 << 20, u64::from(u32::MAX)];
    let mut c = Command {
        flags: rng.next_u64() as u8 & !flag::INLINE_OUT,
        offset: edge(rng, &far),
        len: edge(rng, &long) as u32,
        volume: if rng.chance(1, 10) { rng.below(5) as u16 } else { 0 },
        guard: if rng.chance(1, 20) { 0 } else { guard },
        ..command(op, tag)
    };
    if rng.chance(1, 30) {
        c.op = rng.below(256) as u8;
    }
    let mut data = Vec::new();
    if rng.chance(1, 2) {
        // Inline, and as long as there is room for it.
        c.len = c.len.min(rng.below(most as u64 / 2) as u32);
        c.flags |= flag::INLINE_OUT;
        data = vec![rng.below(256) as u8; c.data_out() as usize];
    }
    // No more checksums than a message holds.
    if c.sums_out() > 2000 {
        c.len = 512;
        data.truncate(c.inline() as usize);
    }
    let mut list = Vec::new();
    for _ in 0..rng.below(4) {
        let key = if rng.chance(1, 50) { rng.next_u64() as u32 } else { memory.key };
        let len = if rng.chance(1, 3) { c.len } else { edge(rng, &long) as u32 };
        list.push(Descriptor { addr: memory.addr + rng.below(4096), key, len });
    }
    if rng.chance(1, 2) && c.data_out() + c.data_in() <= 1 << 20 {
        let len = (c.data_out() + c.data_in()) as u32;
        list = vec![Descriptor { addr: memory.addr, key: memory.key, len }];
    }
    c.segments = list.len() as u16;
    (c, list, data)
}

/// Says a lot on one connection.
async fn round(p: &Rc<dyn Provider>, t: &Served, rng: &mut Prng, number: u64) -> usize {
    t.mood.direct.set(rng.chance(1, 2));
    // This host has no secret to prove.
    let all = Features::ALL.without(Features::SERIAL.or(Features::KEYED));
    let rest = Features(rng.next_u64() as u16).and(all);
    let features = match rng.below(3) {
        0 => all,
        1 => Features::INTEGRITY.or(Features::COALESCE).or(Features::JUMBO).or(rest),
        _ => rest,
    };
    let room = if rng.chance(1, 2) { ROOM } else { 1024 + rng.below(8000) as usize };
    let max_message = units(room);
    let login = LoginRequest { features, session: number, max_message, ..login() };
    let peer = Peer::enter(p, t, login, 4).await.unwrap();
    let v = peer.volume().await;
    let memory = Slice::heap(2 << 20);
    let right = if rng.chance(1, 2) { Access::RemoteRead } else { Access::RemoteWrite };
    let at = peer.conn.register(&memory, right).unwrap();
    let most = 60 << 10;
    let (mut tag, mut seen) = (1, 0);
    while tag < 50 && peer.conn.is_open() {
        let (mut parts, mut size): (Vec<Part>, usize) = (Vec::new(), 16);
        for _ in 0..1 + rng.below(12) {
            let part = any_command(rng, tag, v.guard, at, 16 << 10);
            size += 32 + 16 * part.1.len() + 4 * part.0.sums_out() + 8 + part.2.len();
            if size > most || tag >= 63 {
                break;
            }
            tag += 1;
            parts.push(part);
        }
        if rng.chance(1, 60) {
            // Not even a message.
            let mut junk = vec![0; rng.below(200) as usize];
            rng.fill(&mut junk);
            peer.say(&junk);
            break;
        }
        let all: Vec<Command> = parts.iter().map(|(c, ..)| *c).collect();
        let parts: Vec<_> = parts.iter().map(|(c, l, d)| (*c, &l[..], &d[..])).collect();
        peer.send(&parts);
        let Some(got) = peer.try_completions(all.len(), &all, room).await else { break };
        for (c, data) in got {
            let sent = all.iter().find(|s| (s.tag, s.seq) == (c.tag, c.seq)).expect("one of these");
            let whole = c.status == Status::Ok as u8 && sent.operation() == Some(Op::Read);
            if whole && sent.has(flag::INLINE_IN) {
                assert_eq!(data.len(), sent.len as usize);
            }
            seen += 1;
        }
    }
    seen
}

#[test]
fn whatever_is_said_is_answered_or_ends_its_connection_only() {
    on_reactor(|p| async move {
        let c = TargetConfig { credits: 16, requests: 8, ..config() };
        let t = serve(p.clone(), "127.0.0.1:0", c, &Slice::heap(VOLUME as usize));
        let mut seen = 0;
        for seed in 0..150 {
            seen += round(&p, &t, &mut Prng::new(seed), seed).await;
        }
        assert!(seen > 2000, "only {seen} commands were answered");
        let over = async {
            while t.port.census().requests_busy > 0 {
                sleep(MILLIS).await;
            }
        };
        assert!(timeout(20 * SECONDS, over).await.is_ok(), "commands have not ended");
        t.port.check_idle().unwrap();
        t.target.leave().await;
        let pool = t.port.census().data_pool;
        assert!(pool.iter().all(|c| c.free == c.total), "{pool:?}");
    });
}
