//! From a command to its IU: registration of its data and their description.

use super::slot::{Slot, State};
use super::{Channel, IMMEDIATE_OFFSET, MAX_TABLE, Unfinished};
use weir_fabric::{Access, FabricError, SendFlags};
use weir_mem::Slice;
use weir_proto_srp::command_builder::{BufferSpec, CommandBuilder, direct_in};
use weir_proto_srp::initiator_tag::InitiatorTag;
use weir_proto_srp::types::DESCRIPTOR_LEN;
use weir_proto_srp::{Descriptor, Tag};
use weir_reactor::{Token, now};

/// Longest IU that is written in one piece: a command with a whole inline table, or with copied immediate
/// data.
const LONG: usize = IMMEDIATE_OFFSET as usize + 8192;

impl Channel {
    /// Sends a command; a slot, a credit and a place in the send queue were taken for it. On an error they
    /// are given back.
    #[inline]
    pub(super) fn submit(
        &self,
        lun: u64,
        cdb: &[u8],
        data_out: &[Slice],
        data_in: &[Slice],
    ) -> Result<u16, Unfinished> {
        let mut t = self.table.borrow_mut();
        #[expect(clippy::expect_used, reason = "units are given back with their slots only")]
        let index = t.free.pop().expect("a unit was taken for this slot");
        let s = &mut t.slots[usize::from(index)];
        s.state = State::Sent;
        s.number += 1;
        s.waker = None;
        s.lun = lun;
        s.started = now();
        s.expired = false;
        let tag = InitiatorTag::Command { queue: self.config.queue, index }.tag();
        let sent = match (data_out, data_in) {
            ([] | [_], [] | [_]) => {
                self.send_plain(s, tag, lun, cdb, data_out.first(), data_in.first())
            }
            _ => self.send_table(s, tag, lun, cdb, data_out, data_in),
        };
        match sent {
            Ok(()) => {
                drop(t);
                if self.ladder_idle.get() {
                    self.wake_ladder();
                }
                Ok(index)
            }
            Err(e) => {
                for key in s.keys.drain(..) {
                    self.conn.deregister(key);
                }
                t.set_free(index);
                drop(t);
                self.conn.send_slots().signal();
                self.refund();
                self.slot_units.signal();
                Err(e)
            }
        }
    }

    #[inline]
    fn register(&self, s: &mut Slot, d: &Slice, access: Access) -> Result<Descriptor, Unfinished> {
        match self.conn.register(d, access) {
            Ok(r) => {
                s.keys.push(r.key);
                Ok(Descriptor { addr: r.addr, key: r.key, len: d.len() as u32 })
            }
            Err(e) => Err(self.refused(e)),
        }
    }

    #[cold]
    fn refused(&self, e: FabricError) -> Unfinished {
        if self.conn.is_open() { Unfinished::Fabric(e) } else { Unfinished::NotSent }
    }

    /// At most one piece of data each way.
    #[inline]
    fn send_plain(
        &self,
        s: &mut Slot,
        tag: Tag,
        lun: u64,
        cdb: &[u8],
        data_out: Option<&Slice>,
        data_in: Option<&Slice>,
    ) -> Result<(), Unfinished> {
        if let (None, Some(d), Ok(cdb)) = (data_out, data_in, cdb.try_into())
            && !d.is_empty()
        {
            let place = self.register(s, d, Access::RemoteWrite)?;
            let iu = direct_in(tag, lun, cdb, place);
            self.conn.send(&iu, None, SendFlags::default(), Token::NONE);
            return Ok(());
        }
        let mut builder = CommandBuilder::new(tag, lun, cdb);
        let mut immediate = None;
        if let Some(d) = data_out
            && !d.is_empty()
        {
            builder.data_out = if d.len() <= self.immediate as usize && cdb.len() <= 16 {
                immediate = Some(d.clone());
                BufferSpec::ImmediateGather { offset: IMMEDIATE_OFFSET, len: d.len() as u32 }
            } else {
                BufferSpec::Direct(self.register(s, d, Access::RemoteRead)?)
            };
        }
        if let Some(d) = data_in
            && !d.is_empty()
        {
            let d = self.register(s, d, Access::RemoteWrite)?;
            if immediate.is_some() {
                // There is no room for a descriptor below the offset of immediate data.
                immediate = None;
                if let Some(out) = data_out {
                    let out = self.register(s, out, Access::RemoteRead)?;
                    builder.data_out = BufferSpec::Direct(out);
                }
            }
            builder.data_in = BufferSpec::Direct(d);
        }
        let mut iu = [0; 128];
        let mut n = builder.encode(&mut iu).map_err(|_| CDB_TOO_LONG)?;
        if immediate.is_some() {
            // The rest of the IU is gathered from where it lies.
            n = usize::from(IMMEDIATE_OFFSET);
        }
        self.conn.send(&iu[..n], immediate, SendFlags::default(), Token::NONE);
        Ok(())
    }

    /// Data in several pieces: small writes are copied behind the command, others are described by a table,
    /// of which a part may have to be fetched by the target.
    #[cold]
    fn send_table(
        &self,
        s: &mut Slot,
        tag: Tag,
        lun: u64,
        cdb: &[u8],
        data_out: &[Slice],
        data_in: &[Slice],
    ) -> Result<(), Unfinished> {
        let (pieces, access) = match (data_out, data_in) {
            (d, []) => (d, Access::RemoteRead),
            ([], d) => (d, Access::RemoteWrite),
            _ => return Err(Unfinished::Invalid("data in several pieces goes one way only")),
        };
        let mut iu = [0; LONG];
        let total: usize = pieces.iter().map(Slice::len).sum();
        let builder = CommandBuilder::new(tag, lun, cdb);
        let fits =
            total <= self.immediate as usize && total <= LONG - usize::from(IMMEDIATE_OFFSET);
        if access == Access::RemoteRead && total > 0 && fits && cdb.len() <= 16 {
            let spec = BufferSpec::ImmediateGather { offset: IMMEDIATE_OFFSET, len: total as u32 };
            builder.data_out(spec).encode(&mut iu).map_err(|_| CDB_TOO_LONG)?;
            let mut at = usize::from(IMMEDIATE_OFFSET);
            for d in pieces {
                d.read_at(0, &mut iu[at..at + d.len()]);
                at += d.len();
            }
            self.conn.send(&iu[..at], None, SendFlags::default(), Token::NONE);
            return Ok(());
        }
        let total = u32::try_from(total)
            .map_err(|_| Unfinished::Invalid("one command moves less than 4 GiB"))?;
        let mut list = self.scratch.borrow_mut();
        list.clear();
        for d in pieces.iter().filter(|d| !d.is_empty()) {
            if list.len() == MAX_TABLE {
                return Err(Unfinished::Invalid("data in more than 256 pieces"));
            }
            list.push(self.register(s, d, access)?);
        }
        let spec = match list.as_slice() {
            [] => BufferSpec::None,
            [d] => BufferSpec::Direct(*d),
            _ => self.table_of(s, &list, total)?,
        };
        let builder = match access {
            Access::RemoteRead => builder.data_out(spec),
            Access::RemoteWrite => builder.data_in(spec),
        };
        let n = builder.encode(&mut iu).map_err(|_| CDB_TOO_LONG)?;
        self.conn.send(&iu[..n], None, SendFlags::default(), Token::NONE);
        Ok(())
    }

    /// The whole table in the IU if there is room, else in registered memory with its beginning in the IU.
    fn table_of<'a>(
        &self,
        s: &mut Slot,
        list: &'a [Descriptor],
        total: u32,
    ) -> Result<BufferSpec<'a>, Unfinished> {
        let len = (list.len() * DESCRIPTOR_LEN) as u32;
        let inline = list.len().min(self.max_inline);
        let mut table = Descriptor { addr: 0, key: 0, len };
        if inline < list.len() {
            let memory = s.table.get_or_insert_with(|| Slice::heap(MAX_TABLE * DESCRIPTOR_LEN));
            for (i, d) in list.iter().enumerate() {
                memory.write_at(i * DESCRIPTOR_LEN, &d.to_bytes());
            }
            let memory = memory.sub(0, len as usize);
            table = self.register(s, &memory, Access::RemoteRead)?;
        }
        Ok(BufferSpec::Indirect { table, total, inline: &list[..inline] })
    }
}

const CDB_TOO_LONG: Unfinished = Unfinished::Invalid("the CDB does not fit into the command");
