//! Disks that are made of another one, and change what becomes of some operations.

/// All that such a disk has from the other one, which is this field of it, but for operations.
macro_rules! is_like {
    ($disk:tt) => {
        fn len(&self) -> u64 {
            self.$disk.len()
        }
        fn block_size(&self) -> u32 {
            self.$disk.block_size()
        }
        fn volatile_cache(&self) -> bool {
            self.$disk.volatile_cache()
        }
        fn name(&self) -> &str {
            self.$disk.name()
        }
    };
}
pub(crate) use is_like;
