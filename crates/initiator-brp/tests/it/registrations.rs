//! Memory that cannot be registered, for a command that the target counts already.

use crate::common::slice;
use crate::target::{HOST, Served, config, serve};
use std::cell::Cell;
use std::rc::Rc;
use weir_base::{MILLIS, SECONDS};
use weir_initiator_brp::{Disk, Error, Session, SessionConfig};
use weir_mem::Slice;
use weir_sim::{Cut, Node, World};

const PORT: u16 = 5555;
const LEN: usize = 1 << 20;
/// Too long for a message.
const LONG: usize = 128 << 10;

struct Lab {
    world: World,
    host: Node,
    disk: Rc<Disk>,
    served: Served,
    _session: Session,
}

/// A host with one slot, so that every command takes it.
fn lab(seed: u64) -> Lab {
    let world = World::new(seed);
    let (target, host) = (world.node("target"), world.node("host"));
    let memory = Slice::heap(LEN).sub(0, LEN);
    let addr = target.addr(PORT);
    let served = target.enter(|| serve(target.provider(), &addr, config(), &memory));
    served.mood.direct.set(false);
    let config = SessionConfig {
        depth: 1,
        command_timeout: 0,
        keep_alive: 2 * SECONDS,
        reconnect_max: 200 * MILLIS,
        fast_io_fail: 1000 * SECONDS,
        ..SessionConfig::new(&addr, HOST)
    };
    let provider = host.provider();
    let opened = world.run(&host, 60 * SECONDS, async move {
        let s = Session::connect(provider, config).await.unwrap();
        let d = s.queue().open("v").await.unwrap();
        (s, Rc::new(d))
    });
    let (session, disk) = opened.unwrap();
    Lab { world, host, disk, served, _session: session }
}

impl Lab {
    /// Begins `f`, loses the connection under it, lets the next one register nothing for a while, and gives how it ended.
    fn unregistered<F>(&self, reaches: bool, f: impl FnOnce(Rc<Disk>) -> F) -> Result<(), Error>
    where
        F: Future<Output = Result<(), Error>> + 'static,
    {
        let (net, target) = (self.world.net(), 0);
        self.served.mood.stall.set(reaches);
        if !reaches {
            net.partition_one_way(self.host.number(), target);
        }
        let ended: Rc<Cell<Option<Result<(), Error>>>> = Rc::default();
        let (out, work) = (ended.clone(), f(self.disk.clone()));
        drop(self.host.spawn(async move { out.set(Some(work.await)) }));
        self.world.run_for(100 * MILLIS);
        net.set_config(|c| c.max_registrations = 0);
        net.cut_between(self.host.number(), target, Cut::Both);
        net.heal_all();
        self.served.mood.stall.set(false);
        self.world.run_for(20 * SECONDS);
        net.set_config(|c| c.max_registrations = 4096);
        self.world.run_for(20 * SECONDS);
        ended.take().expect("it ends")
    }

    fn write(&self, byte: u8) -> Result<(), Error> {
        let d = self.disk.clone();
        let done = self.world.run(&self.host, 60 * SECONDS, async move {
            d.write(0, slice(&[byte; LONG]), false).await
        });
        done.unwrap()
    }
}

#[test]
fn a_slot_goes_on_after_a_command_in_doubt_could_not_be_sent_again() {
    for (seed, reaches) in (0..10).flat_map(|s| [(s, false), (s, true)]) {
        let lab = lab(seed);
        assert_eq!(lab.write(1), Ok(()));
        let long = async |d: Rc<Disk>| d.write(0, slice(&[2; LONG]), false).await;
        let lost = lab.unregistered(reaches, long);
        assert!(lost.is_err(), "{lost:?}");
        assert_eq!(lab.write(3), Ok(()), "seed {seed}: the target counts as the host does");
        assert_eq!(lab.write(4), Ok(()));
    }
}

#[test]
fn a_compare_and_write_that_could_not_be_sent_again_is_in_doubt() {
    for seed in 0..10 {
        let lab = lab(seed);
        // Too long for a message as well: two halves.
        let both = async |d: Rc<Disk>| d.compare_and_write(0, slice(&[0; LONG])).await;
        let lost = lab.unregistered(true, both);
        assert_eq!(lost, Err(Error::InDoubt), "seed {seed}");
        assert_eq!(lab.write(3), Ok(()));
    }
}
