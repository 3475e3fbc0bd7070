//! Completions on their way out. What ends in one turn leaves in as few messages as the session allows.

use crate::channel::Channel;
use crate::port::Port;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use weir_fabric::SendFlags;
use weir_mem::{BufPool, Slice};
use weir_proto_brp::command::SUM;
use weir_proto_brp::completion::{COMPLETION, Completion, Layout, flag};
use weir_proto_brp::control::Event;
use weir_proto_brp::message::{ENOUGH, HEADER, seal};
use weir_proto_brp::sums;
use weir_reactor::{Token, contained, spawn_task};

/// One completion.
pub(crate) struct Reply {
    completion: Completion,
    /// Inline data, and where on the volume it lies.
    data: Option<Slice>,
    offset: u64,
    /// Nobody else writes to that data: it may be sent from where it is.
    stable: bool,
    /// It may share a message with others, where the session allows that: its command did.
    together: bool,
    /// Checksums that it has in its message. Reckoned once, for whoever makes room and for whoever fills it.
    sums: usize,
}

impl Reply {
    /// A completion; `rdma_sums` are checksums that were taken before it.
    #[inline]
    pub(crate) fn new(completion: Completion, together: bool) -> Reply {
        let sums = completion.sums();
        Reply { completion, data: None, offset: 0, stable: true, together, sums }
    }

    /// With inline data from `offset` of a volume on. Its checksums go with it where that was agreed to.
    #[inline]
    pub(crate) fn with_data(
        self,
        data: Slice,
        offset: u64,
        stable: bool,
        integrity: bool,
    ) -> Reply {
        let sums = if integrity { sums::count(offset, data.len() as u64) } else { 0 };
        Reply { data: Some(data), offset, stable, sums, ..self }
    }
}

/// A channel's completions, in the order in which they came about.
#[derive(Default)]
pub(crate) struct Replies {
    queue: RefCell<VecDeque<Reply>>,
    /// Checksums that were taken before, in that order: of data that went by RDMA, or was read into a buffer.
    sums: RefCell<VecDeque<u32>>,
    dirty: std::cell::Cell<bool>,
}

impl Replies {
    /// All have been given to the connection.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.borrow().is_empty()
    }

    /// There is nobody to tell.
    pub(crate) fn clear(&self) {
        self.queue.borrow_mut().clear();
        self.sums.borrow_mut().clear();
    }
}

/// The data of a message in one piece, for a provider that turned out to take no other.
#[cold]
fn gathered(list: &mut Vec<Slice>) -> Slice {
    let len = list.iter().map(Slice::len).sum();
    let all = Slice::heap(len).sub(0, len);
    let mut at = 0;
    for d in list.drain(..) {
        all.copy_from(at, &d, 0, d.len());
        at += d.len();
    }
    all
}

/// What goes into one message.
struct Batch {
    layout: Layout,
    data: usize,
    /// Completions with inline data, and whether that of the only one may go as it is.
    pieces: usize,
    stable: bool,
}

impl Channel {
    /// Adds a completion.
    #[inline]
    pub(crate) fn reply(self: &Rc<Self>, reply: Reply, rdma_sums: &[u32]) {
        if !rdma_sums.is_empty() {
            self.replies.sums.borrow_mut().extend(rdma_sums);
        }
        self.replies.queue.borrow_mut().push_back(reply);
        self.make_dirty();
    }

    /// Something is to be sent at the end of the turn.
    #[inline]
    pub(crate) fn make_dirty(self: &Rc<Self>) {
        if self.port.is_stopped() {
            // Nobody sends it any more.
            return self.replies.clear();
        }
        if !self.replies.dirty.replace(true) {
            let port = &self.port;
            let mut all = port.dirty.borrow_mut();
            all.push(self.clone());
            if all.len() == 1 && !port.harvesting.get() {
                port.flusher.signal();
            }
        }
    }

    /// How many of the completions fit into one message.
    fn batch(&self) -> Batch {
        let agreed = self.agreed.get();
        let mut b = Batch { layout: Layout::default(), data: 0, pieces: 0, stable: true };
        // What came alone goes alone: an initiator that does not merge, at this load, has found that to be faster.
        let mut open = true;
        for r in self.replies.queue.borrow().iter() {
            if b.layout.completions > 0 && !(open && r.together) {
                break;
            }
            open = agreed.coalesce && r.together;
            let len = r.data.as_ref().map_or(0, Slice::len);
            let next =
                Layout { completions: b.layout.completions + 1, sums: b.layout.sums + r.sums };
            let room = if len > 0 { agreed.max_message.min(ENOUGH) } else { agreed.max_message };
            let fits = next.control() + b.data + len <= room;
            if b.layout.completions > 0 && !fits {
                break;
            }
            b.layout = next;
            b.data += len;
            if len > 0 {
                b.pieces += 1;
                b.stable &= r.stable;
            }
        }
        b
    }

    /// Sends what there is. What cannot go now goes as soon as it can.
    pub(crate) fn flush(self: &Rc<Self>) {
        self.replies.dirty.set(false);
        if self.stuck.get() {
            return;
        }
        let Some(conn) = self.conn() else { return self.replies.clear() };
        loop {
            let b = self.batch();
            let credits = self.owed.get();
            let due = credits * 2 >= self.agreed.get().credits && credits > 0;
            if b.layout.completions == 0 && !due {
                break;
            }
            // From where the data lies, if the provider can do that; else by way of a buffer.
            let alone = b.pieces == 1 && (b.stable || !conn.needs_stable_data());
            let gather = b.pieces > 1 && self.gathers.get();
            let buf = match b.pieces {
                0 => None,
                _ if alone || gather => None,
                _ => match self.buffers() {
                    Some(all) => match all.try_alloc(b.data) {
                        Some(buf) => Some(buf),
                        None => return self.unstick(Some((all, b.data))),
                    },
                    None => Some(Slice::heap(b.data).sub(0, b.data)),
                },
            };
            if !conn.send_slots().try_wait() {
                return self.unstick(None);
            }
            self.owed.set(0);
            let mut head = self.port.head.borrow_mut();
            let mut list = self.port.list.borrow_mut();
            list.clear();
            self.write(&mut head, &b, credits, buf.as_ref(), &mut list);
            let flags = SendFlags::default();
            match buf {
                Some(_) => conn.send(&head, buf, flags, Token::NONE),
                None if list.len() > 1 => {
                    if !conn.send_gathered(&head, &mut list, flags, Token::NONE) {
                        self.gathers.set(false);
                        conn.send(&head, Some(gathered(&mut list)), flags, Token::NONE);
                    }
                }
                None => conn.send(&head, list.pop(), flags, Token::NONE),
            }
        }
        self.tell(&*conn);
    }

    /// Writes the control part; copies the data into `buf`, or lists it.
    fn write(
        &self,
        head: &mut Vec<u8>,
        b: &Batch,
        credits: u16,
        buf: Option<&Slice>,
        list: &mut Vec<Slice>,
    ) {
        let integrity = self.agreed.get().integrity;
        let layout = &b.layout;
        head.clear();
        head.resize(layout.control(), 0);
        head[..HEADER].copy_from_slice(&layout.header(credits, b.data as u32).encode());
        let (mut at, mut sum_at, mut data_at) = (HEADER, layout.sums_at(), 0);
        let mut queue = self.replies.queue.borrow_mut();
        for _ in 0..layout.completions {
            let Some(mut r) = queue.pop_front() else { break };
            // The room that was made for it, and no more.
            let places = head.get_mut(sum_at..).unwrap_or_default().chunks_exact_mut(SUM);
            let mut places = places.take(r.sums);
            let mut put = |s: u32| {
                if let Some(place) = places.next() {
                    place.copy_from_slice(&s.to_le_bytes());
                }
            };
            let before = r.completion.flags & flag::SUMS != 0;
            if before {
                // Taken when it was read.
                let mut all = self.replies.sums.borrow_mut();
                (0..r.sums).for_each(|_| put(all.pop_front().unwrap_or(0)));
            }
            if let Some(d) = r.data.take() {
                r.completion.inline = d.len() as u32;
                let d = match buf {
                    Some(buf) => {
                        let part = buf.sub(data_at, d.len());
                        part.copy_from(0, &d, 0, d.len());
                        data_at += d.len();
                        part
                    }
                    None => d,
                };
                if r.sums > 0 && !before {
                    // SAFETY: the data is ours alone, or lent memory that others may write to: then some mix
                    // of old and new bytes is summed, which the initiator finds out.
                    sums::each(r.offset, unsafe { d.bytes() }, &mut put);
                }
                if buf.is_none() && !d.is_empty() {
                    if !r.stable {
                        r.completion.flags |= flag::LENT;
                    }
                    list.push(d);
                }
            }
            sum_at += r.sums * SUM;
            if r.sums > 0 {
                r.completion.flags |= flag::SUMS;
                r.completion.detail = r.sums as u32;
            }
            head[at..at + COMPLETION].copy_from_slice(&r.completion.encode());
            at += COMPLETION;
        }
        if integrity {
            seal(head);
        }
    }

    /// Waits for a send buffer or a place in the send queue, then goes on.
    #[cold]
    fn unstick(self: &Rc<Self>, buffer: Option<(BufPool, usize)>) {
        self.stuck.set(true);
        let me = self.clone();
        spawn_task(async move {
            if let Some((all, len)) = buffer {
                drop(all.alloc(len).await);
            } else if let Some(conn) = me.conn() {
                conn.send_slots().wait().await;
                conn.send_slots().signal();
            }
            me.stuck.set(false);
            // Perhaps by another connection now, whose answers waited too.
            me.make_dirty();
        });
    }

    /// Tells the next events, if the last ones were taken note of.
    fn tell(&self, conn: &dyn weir_fabric::Connection) {
        let all_heard = self.told.borrow().is_empty();
        if !all_heard || self.events.borrow().is_empty() || !conn.send_slots().try_wait() {
            return;
        }
        let events = self.events.take();
        self.told.borrow_mut().clone_from(&events);
        let credits = self.owed.replace(0);
        let m = Event::message(&events, credits, self.agreed.get().integrity);
        conn.send(&m, None, SendFlags::default(), Token::NONE);
    }
}

impl Port {
    /// Sends what has come about in this turn.
    pub(crate) fn flush_all(&self) {
        loop {
            let Some(c) = self.dirty.borrow_mut().pop() else { return };
            if let Err(p) = contained(|| c.flush()) {
                c.broke(&p);
            }
        }
    }
}

/// Sends completions of commands that ended outside the harvest.
pub(crate) async fn flush_later(port: Rc<Port>) {
    loop {
        port.flusher.wait().await;
        port.flush_all();
    }
}
