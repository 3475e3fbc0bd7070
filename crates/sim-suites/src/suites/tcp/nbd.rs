//! An NBD client.

use super::link::{Link, exactly};
use crate::load::Io;
use std::rc::Rc;
use weir_base::{IoError, IoResult};
use weir_mem::Slice;
use weir_proto_nbd::{Op, REPLY, Request};
use weir_reactor::LocalFuture;
use weir_stream::Stream;

pub(super) struct Nbd {
    pub(super) link: Link,
    owner: u32,
}

impl Nbd {
    /// Goes through the handshake. `None`: the connection was lost, or the export is not there.
    pub(super) async fn connect(
        stream: Box<dyn Stream>,
        export: &str,
        owner: u32,
    ) -> Option<Rc<Nbd>> {
        exactly(&*stream, 18).await?;
        let mut m = 3u32.to_be_bytes().to_vec();
        m.extend(b"IHAVEOPT");
        m.extend(7u32.to_be_bytes());
        m.extend((export.len() as u32 + 6).to_be_bytes());
        m.extend((export.len() as u32).to_be_bytes());
        m.extend(export.as_bytes());
        m.extend([0, 0]);
        stream.send_all(&m).await.ok()?;
        loop {
            let head = exactly(&*stream, 20).await?;
            let word = |at: usize| {
                u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]])
            };
            exactly(&*stream, word(16) as usize).await?;
            match word(12) {
                1 => return Some(Rc::new(Nbd { link: Link::new(stream), owner })),
                3 => {}
                _ => return None,
            }
        }
    }

    /// Takes replies until the connection ends. `Err`: what comes is no reply to anything.
    pub(super) async fn serve(&self) -> Result<(), String> {
        let stream = self.link.stream.clone();
        while let Some(head) = exactly(&*stream, REPLY).await {
            let error = u32::from_be_bytes([head[4], head[5], head[6], head[7]]);
            let tag = u64::from_be_bytes(head[8..16].try_into().unwrap_or_default());
            let Some(w) = self.link.find(tag) else {
                return Err(format!("a reply to {tag}, which nobody asked"));
            };
            if let Some(buf) = w.buf.as_ref().filter(|_| error == 0) {
                let Some(data) = exactly(&*stream, buf.len()).await else { break };
                buf.write_at(0, &data);
            }
            let done = match error {
                0 => Ok(()),
                // The volume is not there any more, or the target stops.
                108 => Err(IoError::Offline),
                e => return Err(format!("error {e}, where nothing is wrong")),
            };
            self.link.answer(tag, done);
        }
        self.link.die();
        Ok(())
    }

    /// Leaves as the protocol has it: the target ends the connection when what came before is answered.
    pub(super) async fn leave(&self) {
        let r = Request { op: Op::Disconnect, cookie: [0; 8], at: 0, len: 0 };
        self.link.send_last(|| r.encode().to_vec()).await;
        self.link.ended().await;
    }

    async fn ask(
        &self,
        op: Op,
        at: u64,
        len: u32,
        buf: Option<Slice>,
        data: Option<Slice>,
    ) -> IoResult {
        let (tag, w) = self.link.begin(buf, None);
        let r = Request { op, cookie: tag.to_be_bytes(), at, len };
        let mut bytes = r.encode().to_vec();
        if let Some(d) = data {
            bytes.extend(d.to_vec());
        }
        self.link.send(&bytes).await;
        self.link.wait(&w).await
    }
}

impl Io for Nbd {
    fn read(&self, at: u64, buf: Slice) -> LocalFuture<'_, IoResult> {
        let len = buf.len() as u32;
        Box::pin(self.ask(Op::Read, at, len, Some(buf), None))
    }
    fn write(&self, at: u64, buf: Slice, fua: bool) -> LocalFuture<'_, IoResult> {
        let len = buf.len() as u32;
        Box::pin(self.ask(Op::Write { fua }, at, len, None, Some(buf)))
    }
    fn flush(&self) -> LocalFuture<'_, IoResult> {
        Box::pin(self.ask(Op::Flush, 0, 0, None, None))
    }
    fn zero(&self, at: u64, len: u64) -> LocalFuture<'_, IoResult> {
        let op = Op::WriteZeroes { fua: false, unmap: true };
        Box::pin(self.ask(op, at, len as u32, None, None))
    }
    fn owner(&self) -> u32 {
        self.owner
    }
}
