//! The handshake: who the client is, and which export it wants.

use crate::execute::LONGEST;
use crate::nexuses::{Initiator, address};
use crate::planted::{Bug, has};
use crate::port::Port;
use std::rc::Rc;
use weir_base::SECONDS;
use weir_proto_nbd::flags;
use weir_proto_nbd::{Agreed, Export, Handshake, Step};
use weir_proto_scsi::lun::Lun;
use weir_reactor::timeout;
use weir_stream::Stream;
use weir_target_core::{HostRule, Seat, Secret, address_key};

/// How long a handshake may take.
const PATIENCE: u64 = 10 * SECONDS;
/// What is written best at once, at least.
const PREFERRED: u32 = 4096;

/// Who has been let in, and to what.
pub(crate) struct Greeted {
    pub(crate) peer: String,
    pub(crate) initiator: Initiator,
    /// The volume, by its number in the access map, and by what it is.
    pub(crate) lun: Lun,
    pub(crate) naa: [u8; 16],
    pub(crate) seat: Seat,
    pub(crate) agreed: Agreed,
    /// What came behind the handshake.
    pub(crate) rest: Vec<u8>,
}

/// A client as the access map has it.
struct Guest<'a> {
    port: &'a Rc<Port>,
    peer: &'a str,
    initiator: Initiator,
}

impl Guest<'_> {
    /// Its rule; none, if nobody has made it known, or it is to prove what NBD cannot.
    fn rule(&self) -> Option<HostRule> {
        let map = self.port.shared.access.map();
        map.host(&self.initiator).filter(|h| h.secret == Secret::None).cloned()
    }

    /// The volumes that it sees and that are there.
    fn volumes(&self) -> Vec<(Lun, String)> {
        let all = self.rule().map(|h| h.luns).unwrap_or_default();
        let is_there = |v: &String| self.port.units.get(v).is_some();
        let all = all.into_iter().filter(|(_, v)| is_there(v));
        all.filter_map(|(n, v)| Some((Lun::from_index(n)?, v))).collect()
    }

    /// The volume of this name; without one the only one that the map shows it. Of several never the one that happens to be
    /// there: a client that comes again would take it for another.
    fn find(&self, name: &str) -> Option<(Lun, [u8; 16], Export)> {
        let only = self.rule().is_some_and(|h| h.luns.len() == 1);
        let mut all = self.volumes();
        if has(Bug::HiddenIsExported) && self.port.units.get(name).is_some() {
            all.extend(Lun::from_index(0).map(|l| (l, name.to_owned())));
        }
        let found = match (name, &all[..]) {
            ("", [one]) if only => Some(one),
            _ => all.iter().find(|(_, v)| v == name),
        };
        let (lun, name) = found?;
        let unit = self.port.units.get(name)?;
        let g = unit.volume().geometry();
        let (naa, protected) = unit.shared().with(|s| (s.identity().naa, s.write_protected()));
        let mut can = flags::HAS_FLAGS | flags::FLUSH | flags::FUA | flags::TRIM;
        can |= flags::WRITE_ZEROES | flags::MULTI_CONN | flags::CACHE;
        if g.read_only || protected {
            can |= flags::READ_ONLY;
        }
        let export = Export {
            name: name.clone(),
            len: g.len,
            flags: can,
            block: (g.block_size, g.block_size.max(PREFERRED), LONGEST),
            description: String::new(),
        };
        Some((*lun, naa, export))
    }

    /// The map shows it such a volume, which is not there (yet): its pool is being opened, say.
    fn is_absent(&self, name: &str) -> bool {
        let all = self.rule().map(|h| h.luns).unwrap_or_default();
        let is_it = |v: &str| v == name || name.is_empty() && all.len() == 1;
        all.iter().any(|(_, v)| is_it(v) && self.port.units.get(v).is_none())
    }

    fn refused(&self, why: &str) {
        let who = address(&self.initiator);
        self.port.shared.spread.counts().refused(self.peer, &who, &why);
    }
}

/// Goes through the handshake. `None`: the client has ended it, or was not let in.
pub(crate) async fn greet(port: &Rc<Port>, stream: &dyn Stream) -> Option<Greeted> {
    let peer = stream.peer()?;
    let who = Guest { port, peer: &peer.to_string(), initiator: address_key(peer.ip()) };
    if who.rule().is_none() {
        who.refused("no host has this address, or it is to prove a secret");
        return None;
    }
    match timeout(PATIENCE, talk(&who, stream)).await {
        Ok(greeted) => greeted,
        Err(_) => {
            port.shared.spread.counts().stranger(who.peer, &"no NBD handshake within 10 s");
            None
        }
    }
}

async fn talk(who: &Guest<'_>, stream: &dyn Stream) -> Option<Greeted> {
    let mut h = Handshake::new();
    let mut chosen = None;
    let mut part = [0; 1024];
    loop {
        match h.step() {
            Step::More => match stream.receive_some(&mut part).await {
                Ok(n) if n > 0 => h.feed(&part[..n]),
                _ => return None,
            },
            Step::Send(bytes) => stream.send_all(&bytes).await.ok()?,
            Step::List => {
                let all = who.volumes();
                let names: Vec<_> = all.iter().map(|(_, v)| (v.as_str(), "")).collect();
                h.list(&names);
            }
            Step::Export { name, go } => {
                let found = who.find(&name);
                if go && found.is_none() {
                    if who.is_absent(&name) {
                        // It may come anew: that there is no such export would be final.
                        return None;
                    }
                    who.refused("it sees no volume of the name that it asked for");
                }
                let shared = &who.port.shared;
                let seat = || {
                    let map = shared.access.map();
                    shared.spread.admit(shared.connections, &who.initiator, &map)
                };
                let seat = if go && found.is_some() { seat() } else { None };
                if go && found.is_some() && seat.is_none() {
                    who.refused("the port has as many connections as it may");
                    return None;
                }
                h.export(found.as_ref().map(|(.., e)| e));
                chosen = found.map(|(lun, naa, _)| (lun, naa)).zip(seat);
            }
            Step::Contexts { name } => {
                if who.find(&name).is_none() && who.is_absent(&name) {
                    return None;
                }
                h.contexts(who.find(&name).is_some());
            }
            Step::Begin => {
                let ((lun, naa), seat) = chosen?;
                let (peer, initiator) = (who.peer.to_owned(), who.initiator);
                let agreed = h.agreed();
                return Some(Greeted { peer, initiator, lun, naa, seat, agreed, rest: h.rest() });
            }
            Step::End(why) => {
                if let Some(why) = why {
                    who.port.shared.spread.counts().stranger(who.peer, &why);
                }
                return None;
            }
        }
    }
}
