//! The load goes straight to a volume in the memory of this process: what no protocol can beat.

use crate::client::{BlockClient, ClientError, ConnectError, ConnectKind, Geometry};
use crate::engine::{Connector, Place};
use std::rc::Rc;
use weir_block::{BuildContext, DiskSpec, Graph, GraphSpec, Metering, NodeSpec, Shared, Volume};
use weir_disk::Disk;
use weir_mem::{BufPool, PoolConfig, Slice};

/// A volume of this process, as one reactor reaches it.
pub struct LocalDisk {
    volume: Rc<dyn Volume>,
    /// Keeps what the volume is made of.
    _graph: Option<Graph>,
}

impl LocalDisk {
    /// A volume of the present reactor.
    pub fn of(volume: Rc<dyn Volume>) -> LocalDisk {
        LocalDisk { volume, _graph: None }
    }
}

impl BlockClient for LocalDisk {
    fn geometry(&self) -> Geometry {
        let g = self.volume.geometry();
        Geometry { len: g.len, block_size: g.block_size }
    }

    #[inline]
    async fn read(&self, at: u64, buf: Slice) -> Result<(), ClientError> {
        self.volume.read(at, buf).await.map_err(ClientError::Io)
    }

    #[inline]
    async fn write(&self, at: u64, buf: Slice) -> Result<(), ClientError> {
        self.volume.write(at, buf, false).await.map_err(ClientError::Io)
    }

    async fn flush(&self) -> Result<(), ClientError> {
        self.volume.flush().await.map_err(ClientError::Io)
    }

    async fn trim(&self, at: u64, len: u64, _scratch: Slice) -> Result<(), ClientError> {
        self.volume.discard(at, len).await.map_err(ClientError::Io)
    }

    async fn nop(&self) -> Result<(), ClientError> {
        Ok(())
    }
}

/// A volume in memory that all reactors of the load share.
pub struct Local {
    len: u64,
    shared: Shared,
}

impl Local {
    /// A volume of `len` bytes.
    pub fn new(len: u64) -> Local {
        Local { len, shared: Shared::new() }
    }

    fn open(&self) -> Result<LocalDisk, ConnectError> {
        let failed = |e: &dyn std::fmt::Display| {
            let message = "a volume in memory cannot be made";
            ConnectError::new(ConnectKind::Failed, message, e, "use a smaller one")
        };
        let node = NodeSpec::new("top", "ram").param("len", self.len);
        let spec = GraphSpec::new("local", "top").with(node);
        let pool = BufPool::new(&PoolConfig { classes: vec![(4096, 16)] });
        let pool = pool.map_err(|e| failed(&e))?;
        let registry = weir_layers::registry();
        let no_disk = |_: &DiskSpec| -> std::io::Result<Rc<dyn Disk>> {
            Err(std::io::ErrorKind::Unsupported.into())
        };
        let graph = Graph::build(
            spec,
            &BuildContext {
                registry: &registry,
                shared: &self.shared,
                open_disk: &no_disk,
                pool: &pool,
                metering: Metering::Top,
            },
        );
        let graph = graph.map_err(|e| failed(&e))?;
        Ok(LocalDisk { volume: graph.top(), _graph: Some(graph) })
    }
}

impl Connector for Local {
    type Client = LocalDisk;

    fn volumes(&self) -> usize {
        1
    }

    async fn connect(
        &self,
        _place: &Place,
        jobs: &[(u32, Vec<usize>)],
    ) -> Result<Vec<Vec<Rc<LocalDisk>>>, ConnectError> {
        let disk = Rc::new(self.open()?);
        Ok(jobs.iter().map(|(_, v)| v.iter().map(|_| disk.clone()).collect()).collect())
    }

    async fn disconnect(&self, _place: &Place) {}
}
