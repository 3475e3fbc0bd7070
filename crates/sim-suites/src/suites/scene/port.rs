//! Target ports as a scene needs them.

use std::rc::Rc;
use weir_base::Nanos;
use weir_fabric::{FabricError, Provider};
use weir_mem::BufPool;
use weir_reactor::LocalFuture;
use weir_target_core::Units;

/// A target port of any protocol, as its node sees it. Where it says *here*, the present reactor is meant.
pub(crate) trait Port: Clone + 'static {
    /// Serves `units` here.
    fn serve(
        &self,
        provider: Rc<dyn Provider>,
        units: Rc<Units>,
        pool: BufPool,
    ) -> Result<(), FabricError>;
    /// Takes logins here.
    fn take_logins(&self, provider: &dyn Provider, addr: &str) -> Result<(), FabricError>;
    /// Channels here.
    fn channels_here(&self) -> usize;
    /// What is held here although nothing happens.
    fn check_here(&self) -> Result<(), String>;
    /// Lets nobody in any more, and begins to end what is here.
    fn close_here(&self);
    /// Ends what is here.
    fn leave_here(&self) -> LocalFuture<'_, ()>;
    /// The same, in so many nanoseconds. False when hosts' commands had not ended by then.
    fn leave_here_within(&self, patience: Nanos) -> LocalFuture<'_, bool>;
    /// Initiator ports, or their sessions, that it knows.
    fn known(&self) -> Vec<String>;
}

/// Target ports of all protocols have the same methods, and share no trait in the product.
macro_rules! port {
    ($target:ty, $known:ident) => {
        impl Port for $target {
            fn serve(
                &self,
                provider: Rc<dyn Provider>,
                units: Rc<Units>,
                pool: BufPool,
            ) -> Result<(), FabricError> {
                self.join(provider, units, pool).map(drop)
            }
            fn take_logins(&self, provider: &dyn Provider, addr: &str) -> Result<(), FabricError> {
                self.listen(provider, addr).map(drop)
            }
            fn channels_here(&self) -> usize {
                self.local_channels().len()
            }
            fn check_here(&self) -> Result<(), String> {
                self.local_port().ok_or("the port is gone")?.check_idle()
            }
            fn close_here(&self) {
                self.close();
            }
            fn leave_here(&self) -> LocalFuture<'_, ()> {
                Box::pin(self.leave())
            }
            fn leave_here_within(&self, patience: Nanos) -> LocalFuture<'_, bool> {
                Box::pin(self.leave_within(patience))
            }
            fn known(&self) -> Vec<String> {
                self.$known().iter().map(|n| format!("{n:?}")).collect()
            }
        }
    };
}

port!(weir_target_srp::Target, nexuses);
port!(weir_target_brp::Target, sessions);
