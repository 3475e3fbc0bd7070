//! What passes a layer: counts, bytes, errors, latency; per core, gathered without a lock on the path.

mod counters;
mod histogram;
mod metered;
mod meters;

pub use counters::{Counters, Op, OpFigures, Snapshot};
pub use histogram::Histogram;
pub use metered::Metered;
pub(crate) use meters::below;
pub use meters::{Meters, Rate, Rates, Watch};

#[cfg(test)]
mod tests;
