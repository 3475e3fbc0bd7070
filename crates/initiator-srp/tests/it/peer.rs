//! A host that speaks SRP by hand, so that it can say what no initiator of ours would.

use crate::target::{HOST, Served};
use std::rc::Rc;
use weir_base::SECONDS;
use weir_fabric::{Connection, FabricError, Params, Provider, RecvQueue, SendFlags};
use weir_mem::Slice;
use weir_proto_srp::command_builder::{BufferSpec, CommandBuilder};
use weir_proto_srp::iu::TargetIu;
use weir_proto_srp::login::{BufferFormats, MultiChannelAction};
use weir_proto_srp::misc::LogoutReason;
use weir_proto_srp::{
    Form, LoginRequest, LoginResponse, PortId, RspCode, Solicit, Tag, TaskAttribute, TaskFunction,
    TaskManagement,
};
use weir_reactor::{CompletionQueue, Token, timeout};

/// Where immediate data begins in a message.
const OFFSET: u16 = 80;

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Status(u8),
    Code(RspCode),
}

/// A login as this initiator port.
pub(crate) fn login(initiator: PortId) -> Vec<u8> {
    login_to(initiator, MultiChannelAction::Independent, false)
}

fn login_to(initiator: PortId, action: MultiChannelAction, event_solicited: bool) -> Vec<u8> {
    let login = LoginRequest {
        tag: Tag(0),
        request_iu_len: 8192,
        formats: BufferFormats::BOTH,
        action,
        logout_solicited: false,
        credit_solicited: false,
        event_solicited,
        immediate: true,
        immediate_offset: OFFSET,
        initiator,
        target: PortId::default(),
    };
    let mut private_data = vec![0; 64];
    let n = login.encode(Form::RdmaCm, &mut private_data).unwrap();
    private_data.truncate(n);
    private_data
}

/// A command to LUN 0.
pub(crate) fn command(tag: u64, cdb: &[u8], data_out: BufferSpec<'_>) -> Vec<u8> {
    let c = CommandBuilder {
        tag: Tag(tag),
        lun: 0,
        attribute: TaskAttribute::Simple,
        cdb,
        data_out,
        data_in: BufferSpec::None,
        solicit: Solicit::default(),
    };
    let mut iu = vec![0; 8192];
    let n = c.encode(&mut iu).unwrap();
    iu.truncate(n);
    iu
}

/// WRITE(10) of so many blocks at block `lba`.
pub(crate) fn write10(lba: u32, blocks: u16) -> [u8; 10] {
    let mut cdb = [0; 10];
    cdb[0] = 0x2A;
    cdb[2..6].copy_from_slice(&lba.to_be_bytes());
    cdb[7..9].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

/// A channel of its own making.
pub(crate) struct Peer {
    pub(crate) conn: Rc<dyn Connection>,
    pub(crate) granted: LoginResponse,
    queue: Rc<dyn RecvQueue>,
    cq: CompletionQueue,
    buffers: Vec<Slice>,
}

/// Gone is gone: what was under way is lost.
impl Drop for Peer {
    fn drop(&mut self) {
        self.conn.disconnect(true);
    }
}

impl Peer {
    /// Logs in and joins the channels that there are; serves so many RDMA READs at once.
    pub(crate) async fn enter(p: &Rc<dyn Provider>, t: &Served, reads: u16) -> Peer {
        Peer::enter_as(p, t, HOST, reads).await.unwrap()
    }

    /// As this initiator port.
    pub(crate) async fn enter_as(
        p: &Rc<dyn Provider>,
        t: &Served,
        initiator: PortId,
        reads: u16,
    ) -> Result<Peer, FabricError> {
        Peer::enter_by(p, t, login(initiator), reads).await
    }

    /// Logs in from an initiator port whose other channels that ends.
    pub(crate) async fn enter_instead(
        p: &Rc<dyn Provider>,
        t: &Served,
        initiator: PortId,
    ) -> Result<Peer, FabricError> {
        let login = login_to(initiator, MultiChannelAction::Terminate, false);
        Peer::enter_by(p, t, login, 0).await
    }

    /// Logs in and asks for asynchronous events, which it does not answer.
    pub(crate) async fn enter_for_events(p: &Rc<dyn Provider>, t: &Served) -> Peer {
        let login = login_to(HOST, MultiChannelAction::Independent, true);
        Peer::enter_by(p, t, login, 0).await.unwrap()
    }

    async fn enter_by(
        p: &Rc<dyn Provider>,
        t: &Served,
        private_data: Vec<u8>,
        reads: u16,
    ) -> Result<Peer, FabricError> {
        let queue = p.recv_queue(300, 512).unwrap();
        let cq = CompletionQueue::new();
        let buffers: Vec<Slice> = (0..300).map(|_| Slice::heap(512)).collect();
        for (i, b) in buffers.iter().enumerate() {
            queue.post(b.clone(), cq.token(i as u32));
        }
        let recv_queue = queue.clone();
        let params = Params { private_data, recv_queue, reads_out: 0, reads_in: reads };
        let (conn, data) = p.connect(&t.addr, params).await?;
        let granted = LoginResponse::decode(&data).unwrap();
        Ok(Peer { conn, granted, queue, cq, buffers })
    }

    /// Sends a command to LUN 0.
    pub(crate) fn send(&self, tag: u64, cdb: &[u8], data_out: BufferSpec<'_>) {
        assert!(self.conn.send_slots().try_wait(), "a place in the send queue");
        let iu = command(tag, cdb, data_out);
        self.conn.send(&iu, None, SendFlags::default(), Token::NONE);
    }

    /// Sends a command whose data descriptor is of a kind that there is not.
    pub(crate) fn nonsense(&self, tag: u64) {
        let c = CommandBuilder {
            tag: Tag(tag),
            lun: 0,
            attribute: TaskAttribute::Simple,
            cdb: &[0; 6],
            data_out: BufferSpec::None,
            data_in: BufferSpec::None,
            solicit: Solicit::default(),
        };
        let mut iu = vec![0; 512];
        let n = c.encode(&mut iu).unwrap();
        iu[5] = 0x70;
        assert!(self.conn.send_slots().try_wait(), "a place in the send queue");
        self.conn.send(&iu[..n], None, SendFlags::default(), Token::NONE);
    }

    /// WRITE(10) of so many blocks at block `lba`.
    pub(crate) fn write(&self, tag: u64, lba: u32, blocks: u16, data_out: BufferSpec<'_>) {
        self.send(tag, &write10(lba, blocks), data_out);
    }

    /// A task management function at LUN 0.
    pub(crate) fn manage(&self, tag: u64, function: TaskFunction, task: u64) {
        let (tag, task_tag) = (Tag(tag), Tag(task));
        let t = TaskManagement { tag, lun: 0, function, task_tag, solicit: Solicit::default() };
        let mut iu = [0; 64];
        let n = t.encode(&mut iu).unwrap();
        assert!(self.conn.send_slots().try_wait(), "a place in the send queue");
        self.conn.send(&iu[..n], None, SendFlags::default(), Token::NONE);
    }

    /// Data in the message itself.
    pub(crate) fn immediate(data: &[u8]) -> BufferSpec<'_> {
        BufferSpec::Immediate { offset: OFFSET, data }
    }

    async fn message(&self) -> Vec<u8> {
        let (i, c) = timeout(20 * SECONDS, self.cq.next()).await.expect("a message");
        assert!(c.is_ok(), "the connection has ended: {}", self.conn.close_reason());
        let bytes = self.buffers[i as usize].to_vec()[..c.len as usize].to_vec();
        self.queue.post(self.buffers[i as usize].clone(), self.cq.token(i));
        bytes
    }

    /// The next answer.
    pub(crate) async fn next(&self) -> (u64, End) {
        match TargetIu::decode(&self.message().await).unwrap() {
            TargetIu::Response(r) => (r.tag.0, r.code.map_or(End::Status(r.status), End::Code)),
            other => panic!("a response is due: {other:?}"),
        }
    }

    /// Says nothing until the target ends the channel, and why that does.
    pub(crate) async fn logout(&self) -> LogoutReason {
        loop {
            match TargetIu::decode(&self.message().await).unwrap() {
                TargetIu::TargetLogout(l) => return l.reason,
                TargetIu::CreditRequest(_) => {}
                other => panic!("nothing else is due: {other:?}"),
            }
        }
    }

    /// Takes the attention that every new nexus gets.
    pub(crate) async fn attention(&self) {
        self.send(u64::MAX, &[0; 6], BufferSpec::None);
        assert_eq!(self.next().await, (u64::MAX, End::Status(2)));
    }
}
