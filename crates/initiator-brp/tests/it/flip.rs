//! A provider that changes bits, as bad memory and bad wires do.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weir_fabric::{
    Access, Connected, Connection, FabricError, Listener, Params, Provider, RecvQueue, Remote,
    SendFlags, Tap,
};
use weir_mem::Slice;
use weir_reactor::{LocalFuture, Token, WaitChannel};

/// What is to be changed, and how often.
#[derive(Default)]
pub(crate) struct Plan {
    /// Data of messages, in the memory that they come from.
    pub(crate) memory: Cell<u32>,
    /// Data of messages, on their way to the target.
    pub(crate) data_out: Cell<u32>,
    /// Control parts of messages of commands, on their way to the target.
    pub(crate) control_out: Cell<u32>,
    /// The last byte of messages of completions with data, on their way from the target.
    pub(crate) data_in: Cell<u32>,
    /// A byte of the memory that was registered last, before the message that follows is looked at.
    pub(crate) placed: Cell<u32>,
    registered: RefCell<Option<Slice>>,
}

fn due(n: &Cell<u32>) -> bool {
    let left = n.get();
    n.set(left.saturating_sub(1));
    left > 0
}

fn flip(s: &Slice, at: usize) {
    let mut b = [0];
    s.read_at(at, &mut b);
    s.write_at(at, &[b[0] ^ 0x10]);
}

pub(crate) struct Flipping {
    pub(crate) inner: Rc<dyn Provider>,
    pub(crate) plan: Rc<Plan>,
}

impl Provider for Flipping {
    fn name(&self) -> &'static str {
        self.inner.name()
    }
    fn as_any(&self) -> &dyn Any {
        self.inner.as_any()
    }
    fn recv_queue(&self, depth: usize, len: usize) -> Result<Rc<dyn RecvQueue>, FabricError> {
        self.inner.recv_queue(depth, len)
    }
    fn register_region(&self, base: std::ptr::NonNull<u8>, len: usize) -> Result<(), FabricError> {
        self.inner.register_region(base, len)
    }
    fn listen(&self, addr: &str) -> Result<Rc<dyn Listener>, FabricError> {
        self.inner.listen(addr)
    }
    fn connect<'a>(
        &'a self,
        addr: &'a str,
        params: Params,
    ) -> LocalFuture<'a, Result<Connected, FabricError>> {
        Box::pin(async move {
            let (c, data) = self.inner.connect(addr, params).await?;
            let plan = self.plan.clone();
            Ok((Rc::new(Flipped { inner: c, plan }) as Rc<dyn Connection>, data))
        })
    }
}

struct Flipped {
    inner: Rc<dyn Connection>,
    plan: Rc<Plan>,
}

struct FlippedTap {
    inner: Rc<dyn Tap>,
    plan: Rc<Plan>,
}

impl Tap for FlippedTap {
    fn message(&self, bytes: &[u8]) -> bool {
        let mut b = bytes.to_vec();
        // Byte 4 is the kind, bytes 12 to 15 are the length of inline data (docs/brp.md).
        let has_data = b.len() > 16 && b[4] == 0x81 && b[12..16] != [0; 4];
        if has_data && due(&self.plan.data_in) {
            *b.last_mut().unwrap() ^= 1;
        }
        if let Some(m) = self.plan.registered.borrow().as_ref()
            && b[4] == 0x81
            && due(&self.plan.placed)
        {
            flip(m, m.len() / 2);
        }
        self.inner.message(&b)
    }
}

impl Connection for Flipped {
    fn qp(&self) -> u32 {
        self.inner.qp()
    }
    fn peer(&self) -> String {
        self.inner.peer()
    }
    fn send_slots(&self) -> &WaitChannel {
        self.inner.send_slots()
    }
    fn read_slots(&self) -> &WaitChannel {
        self.inner.read_slots()
    }
    fn last_life(&self) -> weir_base::Nanos {
        self.inner.last_life()
    }
    fn reads_out(&self) -> u16 {
        self.inner.reads_out()
    }
    fn send(&self, head: &[u8], data: Option<Slice>, flags: SendFlags, token: Token) {
        let mut head = head.to_vec();
        if head.len() > 16 && head[4] == 1 && due(&self.plan.control_out) {
            head[20] ^= 4;
        }
        let data = data.map(|d| {
            if due(&self.plan.memory) {
                flip(&d, 5);
            }
            if due(&self.plan.data_out) {
                let copy = Slice::copy_of(&d.to_vec()).sub(0, d.len());
                flip(&copy, d.len() - 1);
                return copy;
            }
            d
        });
        self.inner.send(&head, data, flags, token);
    }
    fn write(&self, local: Slice, remote: Remote, token: Token) {
        self.inner.write(local, remote, token);
    }
    fn read(&self, local: Slice, remote: Remote, token: Token) {
        self.inner.read(local, remote, token);
    }
    fn register(&self, local: &Slice, access: Access) -> Result<Remote, FabricError> {
        *self.plan.registered.borrow_mut() = Some(local.clone());
        if access == Access::RemoteRead && due(&self.plan.data_out) {
            // The target fetches something else than what is there.
            let copy = Slice::copy_of(&local.to_vec()).sub(0, local.len());
            flip(&copy, 7);
            return self.inner.register(&copy, access);
        }
        if access == Access::RemoteRead && due(&self.plan.memory) {
            flip(local, 7);
        }
        self.inner.register(local, access)
    }
    fn deregister(&self, key: u32) {
        self.inner.deregister(key);
    }
    fn set_tap(&self, tap: Option<Rc<dyn Tap>>) -> bool {
        let plan = self.plan.clone();
        let tap = tap.map(|inner| Rc::new(FlippedTap { inner, plan }) as Rc<dyn Tap>);
        self.inner.set_tap(tap)
    }
    fn disconnect(&self, now: bool) {
        self.inner.disconnect(now);
    }
    fn needs_stable_data(&self) -> bool {
        self.inner.needs_stable_data()
    }
    fn is_open(&self) -> bool {
        self.inner.is_open()
    }
    fn on_closed(&self, token: Token) {
        self.inner.on_closed(token);
    }
    fn close_reason(&self) -> String {
        self.inner.close_reason()
    }
}
