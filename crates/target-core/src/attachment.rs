//! What a nexus sees of the access map, and what it may see of it with what its host has proved.

use crate::access::{Access, HostRule, Secret};
use crate::fence::{Link, User, off_the_media};
use crate::planted::{Bug, has};
use crate::unit::{Attached, NO_GENERATION, Unit, Units};
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use weir_proto_scsi::lu::{Nexus, UaScope};
use weir_proto_scsi::lun::Lun;
use weir_proto_scsi::sense::Sense;
use weir_proto_scsi::transport_id::TransportId;

/// What one nexus sees: its logical units by LUN, kept up to date with the access map.
pub struct Attachment {
    nexus: Nexus,
    /// The initiator port in the front end's own form, as the access map names it.
    port: Vec<u8>,
    transport: TransportId,
    target_port: u16,
    generation: Cell<u64>,
    host: RefCell<String>,
    /// Whose writes wait for what is left behind here.
    writer: RefCell<Arc<str>>,
    luns: RefCell<Vec<(Lun, Rc<Attached>)>>,
    /// What the map shows to the host and is not there (yet).
    absent: RefCell<Vec<Lun>>,
    /// Views that were lost, of which commands may still run.
    lost: RefCell<Vec<Weak<Attached>>>,
    link: RefCell<Option<Weak<dyn Link>>>,
    /// The only number that it looks for.
    only: Cell<Option<u16>>,
    /// What the host has proved to know.
    proved: RefCell<Secret>,
    /// The map asks for another proof, or does not know the host: nothing is seen.
    barred: Cell<bool>,
    /// The channel has ended: nothing is seen any more.
    left: Cell<bool>,
}

impl Attachment {
    /// A nexus on one reactor.
    pub fn new(nexus: Nexus, port: Vec<u8>, transport: TransportId, target_port: u16) -> Self {
        Attachment {
            nexus,
            port,
            transport,
            target_port,
            generation: Cell::new(0),
            host: RefCell::default(),
            writer: RefCell::new(Arc::from("")),
            luns: RefCell::default(),
            absent: RefCell::default(),
            lost: RefCell::default(),
            link: RefCell::default(),
            only: Cell::new(None),
            proved: RefCell::default(),
            barred: Cell::new(false),
            left: Cell::new(false),
        }
    }

    /// The channel that looks through this; to be told before anything is looked for.
    pub fn set_link(&self, link: Weak<dyn Link>) {
        *self.link.borrow_mut() = Some(link);
    }

    /// Sees one unit at most, by this number: fences of others do not concern it. Comes before the first look.
    pub fn look_at_only(&self, lun: Lun) {
        self.only.set(lun.index());
    }

    /// What the host has proved to know with the connection that is served from here on; nothing, as long as this is not
    /// called. The access map is to be looked at afterwards.
    pub fn set_proved(&self, proved: Secret) {
        *self.proved.borrow_mut() = proved;
        // Whatever was found by the proof before; nothing has been before the first look.
        if self.generation.get() != 0 {
            self.generation.set(NO_GENERATION);
        }
    }

    /// The access map does not let its host in any more: that has been deleted since it was let in, or has a secret, or another one.
    pub fn is_barred(&self) -> bool {
        self.barred.get()
    }

    /// The nexus.
    pub fn nexus(&self) -> Nexus {
        self.nexus
    }

    /// Whether the access map did not know the initiator port when it was last looked at.
    pub fn is_unknown(&self) -> bool {
        self.host.borrow().is_empty()
    }

    /// The host's name; empty when no rule knows the initiator port.
    pub fn host(&self) -> String {
        self.host.borrow().clone()
    }

    /// Looks at the access map again if it has changed.
    #[inline]
    pub fn refresh(&self, access: &Access, units: &Units) {
        let now = access.generation();
        if self.generation.get() != now {
            self.reload(access, units);
            self.generation.set(now);
            let link = self.link.borrow().as_ref().and_then(Weak::upgrade);
            if let Some(l) = link.filter(|_| self.barred.get()) {
                l.bar();
            }
        }
    }

    #[cold]
    fn reload(&self, access: &Access, units: &Units) {
        if self.left.get() {
            return;
        }
        let map = access.map();
        let rule = map.host(&self.port);
        let proved = |r: &HostRule| r.secret == *self.proved.borrow() || has(Bug::ProofNotAsked);
        // Who is not known any more has no business here: no channel and no place.
        let unknown = !has(Bug::UnknownStay);
        self.barred.set(rule.map_or(unknown, |r| !proved(r)));
        let writer: Arc<str> = map.writer(&self.port).into();
        *self.writer.borrow_mut() = writer.clone();
        let luns = rule.filter(|_| !self.barred.get()).map_or(&[][..], |r| &r.luns);
        let old = self.luns.take();
        let (mut new, mut absent) = (Vec::new(), Vec::new());
        let mut changed = false;
        let only = self.only.get();
        for (index, volume) in luns.iter().filter(|(n, _)| only.is_none_or(|o| o == *n)) {
            let Some(lun) = Lun::from_index(*index) else { continue };
            let Some(unit) = units.get(volume) else {
                absent.push(lun);
                continue;
            };
            let same = |a: &Attached| Rc::ptr_eq(&a.unit, &unit) && !a.rounds.is_gone();
            let known = old.iter().find(|(l, a)| *l == lun && same(a));
            let known = known.inspect(|(_, a)| a.belongs_to(&writer));
            let attached = known.map(|(_, a)| a.clone()).unwrap_or_else(|| {
                changed = true;
                self.attach(access, unit)
            });
            new.push((lun, attached));
        }
        new.sort_by_key(|(l, _)| *l);
        let mut lost = self.lost.borrow_mut();
        lost.retain(|a| a.strong_count() > 0);
        for (_, a) in old.iter().filter(|(_, a)| !new.iter().any(|(_, n)| Rc::ptr_eq(a, n))) {
            // By another number it may have it yet.
            let unit = &a.unit.shared;
            if !new.iter().any(|(_, n)| Arc::ptr_eq(&n.unit.shared, unit)) {
                unit.parting().insert(self.nexus);
            }
            a.linger(self.nexus);
            lost.push(Rc::downgrade(a));
        }
        *self.host.borrow_mut() = rule.map_or_else(String::new, |r| r.host.clone());
        // A host that knew another list is told on the units that it kept (SPC-4: 3F/0E).
        if !old.is_empty() && (changed || new.len() != old.len()) {
            for (_, a) in &new {
                a.unit.shared.with(|s| {
                    s.raise_ua(UaScope::Only(self.nexus), Sense::REPORT_LUNS_CHANGED);
                });
            }
        }
        *self.luns.borrow_mut() = new;
        *self.absent.borrow_mut() = absent;
    }

    fn attach(&self, access: &Access, unit: Rc<Unit>) -> Rc<Attached> {
        unit.shared.parting().remove(&self.nexus);
        let (generation, geometry, fast) = unit.shared.with(|s| {
            match s.ports_of(self.nexus) {
                // Every unit is made with the port identifiers of all front ends; an unknown one would
                // only make its commands fail.
                None => {
                    access.known.add(self.nexus, &unit.shared);
                    let _ = s.nexus_added(self.nexus, self.transport.clone(), self.target_port);
                }
                // Another reactor has made the nexus known already. It must be the same one: reservations are kept
                // and taken by this number.
                Some(who) => {
                    assert_eq!(
                        who,
                        (&self.transport, self.target_port),
                        "two nexuses of a unit have the number {:x}",
                        self.nexus.0
                    );
                    // The host knew another unit by this number, or none: it is told before it uses this one.
                    if self.generation.get() != 0 {
                        s.raise_ua(UaScope::Only(self.nexus), Sense::REPORT_LUNS_CHANGED);
                    }
                }
            }
            let fast = unit.shared.rules(s, self.nexus, &self.writer.borrow());
            (s.generation(), s.geometry(), fast)
        });
        let writer = self.writer();
        let who = (self.nexus, self.transport.clone());
        let attached = Attached::new(unit, who, writer, generation, geometry, fast);
        let attached = Rc::new(attached);
        let user = User::new(self.nexus, &attached, self.link.borrow().clone());
        attached.unit.add_user(user);
        attached
    }

    /// The channel has ended: nothing of its commands that has not begun will have an effect, and no unit is seen any
    /// more. As long as writes that have begun are not over, later writes of its host to that unit wait.
    pub fn leave(&self) {
        self.left.set(true);
        self.absent.borrow_mut().clear();
        let mut lost = self.lost.borrow_mut();
        for (_, a) in self.luns.take() {
            a.linger(self.nexus);
            lost.push(Rc::downgrade(&a));
        }
    }

    /// Waits until nothing of the commands of a channel that has [left](Attachment::leave) can have an effect.
    pub async fn left(&self) {
        let lost: Vec<_> = self.lost.borrow().iter().filter_map(Weak::upgrade).collect();
        off_the_media(lost).await;
    }

    /// The views of what is seen.
    pub(crate) fn views(&self) -> Vec<Rc<Attached>> {
        self.luns.borrow().iter().map(|(_, a)| a.clone()).collect()
    }

    /// The host has given the command with this tag up, whatever it was for.
    pub fn given_up(&self, tag: u64) {
        self.luns.borrow().iter().for_each(|(_, a)| a.gives_up(Some(tag)));
    }

    /// Whose writes wait for what is left behind here.
    pub(crate) fn writer(&self) -> Arc<str> {
        self.writer.borrow().clone()
    }

    /// Initiator port and relative target port.
    pub(crate) fn ports(&self) -> (&TransportId, u16) {
        (&self.transport, self.target_port)
    }

    /// The unit behind a LUN.
    #[inline]
    pub fn find(&self, lun: Lun) -> Option<Rc<Attached>> {
        let luns = self.luns.borrow();
        let found = luns.iter().find(|(l, _)| *l == lun);
        match found {
            Some((_, a)) => Some(a.clone()),
            // The same number may be written in another addressing method.
            None => {
                let index = lun.index()?;
                luns.iter().find(|(l, _)| l.index() == Some(index)).map(|(_, a)| a.clone())
            }
        }
    }

    /// Whether the map shows the nexus a volume by this number which is not there (yet): its pool is being opened, say.
    pub fn is_absent(&self, lun: Lun) -> bool {
        let same = |l: &Lun| *l == lun || lun.index().is_some() && l.index() == lun.index();
        self.absent.borrow().iter().any(same) && !has(Bug::AbsentIsUnknown)
    }

    /// The LUNs that the nexus sees, ascending.
    pub fn luns(&self) -> Vec<Lun> {
        self.luns.borrow().iter().map(|(l, _)| *l).collect()
    }
}
