//! What the tests of the pool share.

use weir_base::IoError;
use weir_block::Volume;
use weir_mem::Slice;

pub(crate) fn filled(len: usize, value: u8) -> Slice {
    let s = Slice::heap(len);
    s.fill(value);
    s
}

pub(crate) async fn read(v: &dyn Volume, at: u64, len: usize) -> Result<Vec<u8>, IoError> {
    let buf = filled(len, 0xee);
    v.read(at, buf.clone()).await?;
    Ok(buf.to_vec())
}
