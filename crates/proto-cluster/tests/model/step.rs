//! Everything that may happen next, and what comes of it.

use weir_proto_cluster::gate::Event;
use weir_proto_cluster::{
    Action, Epoch, Gate, Input, Login, Message, Nodes, Outcome, Register, Session,
};

use crate::world::{
    Change, Command, Engine, NOW, OFF, Read, Rules, Run, TIMES, Way, World, Write, epoch_of, node,
};

/// One thing that happens; the number is that of a node, from 0, or of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The clocks go on by so much each.
    Time(u8, u8),
    /// The machine is told of the time.
    Wake(u8),
    Beat(u8),
    Grant(u8),
    /// The register decides a change.
    Decide(u8),
    Answer(u8),
    /// The answer is *in doubt*.
    Doubt(u8),
    /// A change that was in doubt happens after all.
    Float(u8),
    Take(u8),
    Told(u8),
    Watch(u8),
    Login(u8),
    GateReads(u8),
    GateTold(u8),
    OpenAlone(u8),
    OpenBoth(u8),
    OpenThere(u8),
    OpenFails(u8),
    Closed(u8),
    Synced(u8),
    Cut(u8),
    Begin(u8),
    Arrive(u8),
    Execute(u8),
    Done(u8),
    Acknowledge(u8),
    Move(u8),
    Fail(u8),
    Crash(u8),
    Start(u8),
}

/// When a beat was sent by a clock that does not go any more: it may seem to be any time.
const ANY: u64 = 2 * NOW;

type Right = Result<(), String>;

impl World {
    /// All that may happen now.
    pub(crate) fn steps(&self, steps: &mut Vec<Step>) {
        steps.clear();
        let w = self;
        for i in 0..2u8 {
            let s = &w.sides[usize::from(i)];
            let other = &w.sides[usize::from(1 - i)];
            let mut may = |yes: bool, step: Step| {
                if yes {
                    steps.push(step);
                }
            };
            let engine = &s.engine;
            if let Some(pair) = &s.pair {
                may(true, Step::Wake(i));
                may(s.beat.is_some(), Step::Beat(i));
                may(s.grant.is_some(), Step::Grant(i));
                may(s.change != Change::None, Step::Answer(i));
                may(s.change != Change::None && w.budget.doubts > 0, Step::Doubt(i));
                // That a read is late matters where something may be in doubt.
                may(s.read == Read::Sent && w.budget.late_reads, Step::Take(i));
                may(s.read != Read::None, Step::Told(i));
                let behind = pair.known().is_none_or(|k| k.version < w.register.version);
                may(behind, Step::Watch(i));
                may(s.attach.is_some() && other.pair.is_some(), Step::Login(i));
                may(s.gate.asks() && s.gate_read.is_none(), Step::GateReads(i));
                may(s.gate.asks() && s.gate_read.is_some(), Step::GateTold(i));
                let opening = matches!(engine.run, Run::Opening(_));
                let there =
                    engine.session.is_some() && !other.device.broken && other.pair.is_some();
                may(opening && !s.device.broken, Step::OpenAlone(i));
                may(opening && !s.device.broken && there, Step::OpenBoth(i));
                may(opening && s.device.broken && there, Step::OpenThere(i));
                may(opening && s.device.broken, Step::OpenFails(i));
                let closes = matches!(engine.run, Run::Closing(_)) && engine.write.is_none();
                may(closes || matches!(engine.run, Run::Dropping(_)), Step::Closed(i));
                let syncs = engine.sync.is_some() && engine.sync == engine.session;
                // Nothing older is under way in the session.
                let older = |c: &Command| {
                    let of_it =
                        Some(c.session) == engine.session && epoch_of(engine) == Some(c.epoch);
                    let newest = engine.write.is_some_and(|x| x.id == c.id);
                    c.from == i && c.way != Way::Done && of_it && !newest && !c.given_up
                };
                let clear = !w.commands.iter().flatten().any(older);
                let whole = !s.device.broken && !other.device.broken;
                may(syncs && clear && whole && other.pair.is_some(), Step::Synced(i));
                may(engine.session.is_some() && w.budget.cuts > 0, Step::Cut(i));
                let room = w.commands.iter().any(Option::is_none);
                let on = matches!(engine.run, Run::On(_)) && !s.held;
                let writes = w.begun < w.budget.writes && engine.write.is_none() && room;
                may(on && writes, Step::Begin(i));
                let may_ack = engine.write.is_some_and(|x| pair.may_acknowledge(copies(i, &x)));
                may(may_ack, Step::Acknowledge(i));
                may(on && w.budget.moves > 0, Step::Move(i));
                may(w.budget.crashes > 0, Step::Crash(i));
            } else {
                may(true, Step::Start(i));
            }
            may(matches!(s.change, Change::Sent(_)), Step::Decide(i));
            may(s.float.is_some(), Step::Float(i));
            let fails = w.budget.fails > 0 && !s.device.broken && !other.device.broken;
            may(fails, Step::Fail(i));
        }
        for (n, c) in w.commands.iter().enumerate() {
            let Some(c) = c else { continue };
            let up = w.sides[usize::from(1 - c.from)].pair.is_some();
            match c.way {
                Way::Net if up => steps.push(Step::Arrive(n as u8)),
                Way::Begun => steps.push(Step::Execute(n as u8)),
                Way::Done => steps.push(Step::Done(n as u8)),
                Way::Net => {}
            }
        }
        steps.push(Step::Time(1, 1));
        if w.budget.rates {
            steps.extend([Step::Time(2, 1), Step::Time(1, 2)]);
        }
    }

    /// Has `step` happen.
    pub(crate) fn take(&mut self, step: Step, rules: &Rules) -> Right {
        match step {
            Step::Time(a, b) => self.pass([u64::from(a), u64::from(b)]),
            Step::Wake(i) => self.input(i, Input::Tick)?,
            Step::Beat(i) => {
                if let Some(beat) = self.side(i).beat.take() {
                    self.input(i, Input::Message(Message::Beat(beat)))?;
                }
            }
            Step::Grant(i) => {
                if let Some(mut beat) = self.side(i).grant.take() {
                    if beat.sent == ANY {
                        beat.sent = NOW;
                    }
                    self.input(i, Input::Message(Message::Grant(beat)))?;
                }
            }
            Step::Decide(i) => self.decide(i),
            Step::Answer(i) => {
                self.decide(i);
                if let Change::Decided(n, outcome) = self.side(i).change {
                    self.side(i).change = Change::None;
                    self.input(i, Input::Changed(n, outcome))?;
                }
            }
            Step::Doubt(i) => self.leave_in_doubt(i)?,
            Step::Float(i) => {
                if let Some(value) = self.side(i).float.take() {
                    self.compare_and_set(value);
                }
            }
            Step::Take(i) => self.side(i).read = Read::Taken(self.register),
            Step::Told(i) => {
                let register = match self.side(i).read {
                    Read::Taken(register) => register,
                    _ => self.register,
                };
                self.side(i).read = Read::None;
                self.input(i, Input::Read(register))?;
            }
            Step::Watch(i) => self.input(i, Input::Seen(self.register))?,
            Step::Login(i) => {
                if let Some((epoch, session)) = self.side(i).attach {
                    let login = Login { epoch, owner: node(usize::from(i)), session };
                    self.side(1 - i).gate.login(login);
                    self.gate(1 - i)?;
                }
            }
            Step::GateReads(i) => {
                self.side(i).gate_read = Some((self.register.epoch, self.register.owner));
            }
            Step::GateTold(i) => {
                if let Some((epoch, owner)) = self.side(i).gate_read.take() {
                    let register = Register { epoch, owner, ..self.register };
                    self.side(i).gate.registered(&register);
                    self.gate(i)?;
                }
            }
            Step::OpenAlone(i) => self.open(i, Nodes::only(node(usize::from(i))))?,
            Step::OpenBoth(i) => self.open(i, World::both())?,
            Step::OpenThere(i) => self.open(i, Nodes::only(node(usize::from(1 - i))))?,
            Step::OpenFails(i) => {
                if let Run::Opening(epoch) = self.side(i).engine.run {
                    self.end_engine(i, Input::OpenFailed(epoch))?;
                }
            }
            Step::Closed(i) => {
                if let Some(epoch) = epoch_of(&self.side(i).engine) {
                    self.end_engine(i, Input::Closed(epoch))?;
                }
            }
            Step::Synced(i) => self.synced(i)?,
            Step::Cut(i) => {
                self.budget.cuts -= 1;
                self.cut(i)?;
            }
            Step::Begin(i) => self.begin(i),
            Step::Arrive(n) => self.arrive(usize::from(n)),
            Step::Execute(n) => self.execute(usize::from(n))?,
            Step::Done(n) => self.done(usize::from(n)),
            Step::Acknowledge(i) => self.acknowledge(i)?,
            Step::Move(i) => {
                self.budget.moves -= 1;
                self.input(i, Input::Move)?;
            }
            Step::Fail(i) => self.fail(i)?,
            Step::Crash(i) => self.crash(i),
            Step::Start(i) => {
                let life = self.side(i).life + 1;
                let side = self.side(i);
                side.life = life;
                side.pair = Some(rules.machine(usize::from(i), life));
                self.carry_out(usize::from(i))?;
                // The node may have started anew as a whole, so that its clock shows what it likes.
                for beat in self.side(i).grant.iter_mut() {
                    beat.sent = ANY;
                }
                for beat in self.side(1 - i).beat.iter_mut() {
                    beat.sent = ANY;
                }
            }
        }
        self.tidy();
        self.check()
    }

    fn side(&mut self, i: u8) -> &mut crate::world::Side {
        &mut self.sides[usize::from(i)]
    }

    /// The clocks go on; what was sent longer ago than a lease is all alike.
    fn pass(&mut self, by: [u64; 2]) {
        for (i, by) in by.into_iter().enumerate() {
            if let Some(pair) = &mut self.sides[i].pair {
                pair.rebase(by, NOW);
            }
            let older = |t: u64| if t == ANY { t } else { (t - by).max(NOW - TIMES.lease) };
            for beat in [&mut self.sides[1 - i].beat].into_iter().flatten() {
                beat.sent = older(beat.sent);
            }
            for beat in [&mut self.sides[i].grant].into_iter().flatten() {
                beat.sent = older(beat.sent);
            }
        }
    }

    fn input(&mut self, i: u8, input: Input) -> Right {
        if let Some(pair) = &mut self.side(i).pair {
            pair.input(NOW, input);
            self.carry_out(usize::from(i))?;
        }
        Ok(())
    }

    /// Does what the machine of node `i` wants.
    pub(crate) fn carry_out(&mut self, i: usize) -> Right {
        while let Some(action) = self.sides[i].pair.as_mut().and_then(|p| p.poll()) {
            let side = &mut self.sides[i];
            match action {
                Action::Send(message) => {
                    let to = &mut self.sides[1 - i];
                    // One of a kind is on its way; what was before it is lost.
                    match message {
                        Message::Beat(beat) => to.beat = Some(beat),
                        Message::Grant(beat) => to.grant = Some(beat),
                    }
                }
                Action::Read => side.read = Read::Sent,
                Action::Change(value) => side.change = Change::Sent(value),
                Action::Fence(epoch) => {
                    side.gate.fence(epoch);
                    self.gate(i as u8)?;
                }
                Action::Open(epoch, _) => {
                    if self.opened & 1 << epoch.0 != 0 {
                        return Err(format!("P1: epoch {} is opened twice", epoch.0));
                    }
                    self.opened |= 1 << epoch.0;
                    side.engine = Engine { run: Run::Opening(epoch), ..OFF };
                    if !side.gate.open_engine(epoch) {
                        side.engine = OFF;
                        self.input(i as u8, Input::OpenFailed(epoch))?;
                    }
                }
                Action::Close(epoch) => side.engine.run = Run::Closing(epoch),
                Action::DropEngine(epoch) => side.engine.run = Run::Dropping(epoch),
                Action::Attach(epoch, session) => side.attach = Some((epoch, session)),
                Action::Detach(session) => {
                    side.attach = side.attach.filter(|a| a.1 != session);
                    if side.engine.session == Some(session) {
                        side.engine.session = None;
                        side.engine.sync = None;
                    }
                }
                Action::Resync(session) => {
                    side.engine.sync = Some(session);
                    // What was sent before the devices failed is nobody's any more.
                    for c in self.commands.iter_mut().flatten() {
                        c.given_up |= usize::from(c.from) == i && c.session == session;
                    }
                }
                Action::Hold => side.held = true,
                Action::Release => side.held = false,
                Action::Ports(_) | Action::Tell(_) => {}
            }
        }
        Ok(())
    }

    /// Does what the gate of node `i` tells.
    fn gate(&mut self, i: u8) -> Right {
        while let Some(event) = self.side(i).gate.poll() {
            match event {
                Event::Admitted(login) => {
                    self.side(i).device.rid = (login.epoch, login.session);
                    let owner = self.side(1 - i);
                    if owner.attach == Some((login.epoch, login.session)) {
                        owner.attach = None;
                        owner.engine.session = Some(login.session);
                        self.input(1 - i, Input::SessionUp(login.session))?;
                    }
                }
                Event::Refused(login) => {
                    let owner = self.side(1 - i);
                    if owner.attach == Some((login.epoch, login.session)) {
                        owner.attach = None;
                        self.input(1 - i, Input::SessionDown(login.session))?;
                    }
                }
                Event::Drained(epoch) => {
                    self.side(i).device.rid = (epoch, Session(0));
                    self.input(i, Input::Drained(epoch))?;
                }
            }
        }
        if !self.side(i).gate.asks() {
            self.side(i).gate_read = None;
        }
        Ok(())
    }

    fn compare_and_set(&mut self, value: Register) -> Outcome {
        if value.version.0 == self.register.version.0 + 1 {
            self.register = value;
            Outcome::Done
        } else {
            Outcome::Other(self.register)
        }
    }

    fn decide(&mut self, i: u8) {
        if let Change::Sent(value) = self.side(i).change {
            let outcome = self.compare_and_set(value);
            self.side(i).change = Change::Decided(value.writer.n, outcome);
        }
    }

    fn leave_in_doubt(&mut self, i: u8) -> Right {
        self.budget.doubts -= 1;
        let n = match self.side(i).change {
            Change::Sent(value) => {
                self.side(i).float = Some(value);
                value.writer.n
            }
            Change::Decided(n, _) => n,
            Change::None => return Ok(()),
        };
        self.side(i).change = Change::None;
        self.input(i, Input::Changed(n, Outcome::InDoubt))
    }

    /// A command of node `i`'s engine, under its epoch and session, at the other node's gate.
    fn may_command(&mut self, i: u8) -> bool {
        let engine = self.side(i).engine;
        match (epoch_of(&engine), engine.session) {
            (Some(epoch), Some(session)) => {
                let gate: &mut Gate = &mut self.side(1 - i).gate;
                let right = gate.begin(epoch, session);
                if right {
                    gate.end();
                }
                right
            }
            _ => false,
        }
    }

    fn open(&mut self, i: u8, with: Nodes) -> Right {
        let Run::Opening(epoch) = self.side(i).engine.run else { return Ok(()) };
        let mut data = 0;
        if with.has(node(usize::from(1 - i))) {
            if !self.may_command(i) {
                return self.cut(i);
            }
            self.gate(1 - i)?;
        }
        for j in (0..2).filter(|j| with.has(node(*j))) {
            data = data.max(self.sides[j].device.data);
        }
        for j in (0..2).filter(|j| with.has(node(*j))) {
            let device = &mut self.sides[j].device;
            if device.epoch >= epoch {
                let had = device.epoch.0;
                return Err(format!("P1: epoch {} after {had} on {}", epoch.0, node(j)));
            }
            // Recovery brings to each what the other has.
            device.epoch = epoch;
            device.data = data;
        }
        let engine = &mut self.side(i).engine;
        engine.run = Run::On(epoch);
        engine.visible = data;
        self.input(i, Input::Opened(epoch, with))
    }

    fn end_engine(&mut self, i: u8, input: Input) -> Right {
        self.side(i).engine = OFF;
        self.side(i).gate.engine_closed();
        self.gate(i)?;
        self.input(i, input)
    }

    /// A session is lost; what was sent in it is still on its way.
    fn cut(&mut self, i: u8) -> Right {
        self.side(i).engine.sync = None;
        match self.side(i).engine.session.take() {
            Some(session) => self.input(i, Input::SessionDown(session)),
            None => Ok(()),
        }
    }

    fn synced(&mut self, i: u8) -> Right {
        if !self.may_command(i) {
            return self.cut(i);
        }
        self.gate(1 - i)?;
        let data = self.side(i).device.data;
        let engine = &mut self.sides[usize::from(i)].engine;
        let (Some(session), Some(epoch)) = (engine.sync.take(), epoch_of(engine)) else {
            return Ok(());
        };
        if let Some(write) = &mut engine.write {
            // The second walk found what was written before the session; what was sent in it has an answer of its own.
            let sent = |c: &Command| c.from == i && c.session == session && c.epoch == epoch;
            let sent = self.commands.iter().flatten().any(|c| sent(c) && c.id == write.id);
            write.there |= data == write.id && !sent;
        }
        let there = &mut self.side(1 - i).device;
        there.data = data;
        there.epoch = epoch;
        self.input(i, Input::InSync(session))
    }

    fn begin(&mut self, i: u8) {
        self.begun += 1;
        let id = self.begun;
        let side = &mut self.sides[usize::from(i)];
        let here = !side.device.broken;
        if here {
            side.device.data = id;
        }
        side.engine.write = Some(Write { id, here, there: false });
        if let (Some(session), Some(epoch)) = (side.engine.session, epoch_of(&side.engine)) {
            let command = Command { from: i, epoch, session, id, way: Way::Net, given_up: false };
            if let Some(slot) = self.commands.iter_mut().find(|c| c.is_none()) {
                *slot = Some(command);
            }
        }
    }

    fn arrive(&mut self, n: usize) {
        let Some(mut c) = self.commands[n] else { return };
        let right = self.side(1 - c.from).gate.begin(c.epoch, c.session);
        c.way = Way::Begun;
        self.commands[n] = right.then_some(c);
    }

    fn execute(&mut self, n: usize) -> Right {
        let Some(mut c) = self.commands[n] else { return Ok(()) };
        let device = &mut self.side(1 - c.from).device;
        if (c.epoch, c.session) < device.rid {
            return Err(format!(
                "P4: write {} of epoch {} lands after the gate was drained",
                c.id, c.epoch.0
            ));
        }
        if !device.broken {
            device.data = c.id;
        }
        c.way = Way::Done;
        self.commands[n] = (!device.broken).then_some(c);
        self.side(1 - c.from).gate.end();
        self.gate(1 - c.from)
    }

    fn done(&mut self, n: usize) {
        let Some(c) = self.commands[n].take() else { return };
        if let Some(write) = &mut self.side(c.from).engine.write {
            write.there |= !c.given_up;
        }
    }

    fn acknowledge(&mut self, i: u8) -> Right {
        let Some(write) = self.side(i).engine.write.take() else { return Ok(()) };
        let copies = copies(i, &write);
        if !copies.covers(self.register.able) {
            return Err(format!(
                "P3: write {} is acknowledged with {copies:?}, the register promises {:?}",
                write.id, self.register.able
            ));
        }
        self.side(i).engine.visible = write.id;
        self.acked = self.acked.max(write.id);
        Ok(())
    }

    fn fail(&mut self, i: u8) -> Right {
        self.budget.fails -= 1;
        self.side(i).device.broken = true;
        if epoch_of(&self.side(i).engine).is_some() {
            if let Some(write) = &mut self.side(i).engine.write {
                write.here = false;
            }
            self.input(i, Input::DeviceFailed(node(usize::from(i))))?;
        }
        if let Some(write) = &mut self.side(1 - i).engine.write {
            write.there = false;
        }
        if self.side(1 - i).engine.session.is_some() {
            self.input(1 - i, Input::DeviceFailed(node(usize::from(i))))?;
        }
        Ok(())
    }

    /// The node's program ends, and what it had begun with it.
    fn crash(&mut self, i: u8) {
        self.budget.crashes -= 1;
        let side = &mut self.sides[usize::from(i)];
        if let Change::Sent(value) = side.change {
            side.float = side.float.or(Some(value));
        }
        side.pair = None;
        side.change = Change::None;
        side.read = Read::None;
        side.attach = None;
        side.engine = OFF;
        side.gate = Gate::new(node(usize::from(i)));
        side.gate_read = None;
        side.held = true;
        side.device.rid = (Epoch(0), Session(0));
        for slot in &mut self.commands {
            if slot.is_some_and(|c| c.from != i && c.way == Way::Begun) {
                *slot = None;
            }
        }
    }
}

/// Where a write is.
fn copies(i: u8, write: &Write) -> Nodes {
    let mut copies = Nodes::NONE;
    if write.here {
        copies = copies.with(node(usize::from(i)));
    }
    if write.there {
        copies = copies.with(node(usize::from(1 - i)));
    }
    copies
}
