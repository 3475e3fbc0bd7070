use proptest::prelude::*;

use super::*;

/// Command length, buffer length, bytes moved → bytes to transfer, residual.
const MATRIX: [(u64, u32, u32, u32, Residual); 16] = [
    // No data at all.
    (0, 0, 0, 0, Residual::None),
    // Exactly as asked.
    (4096, 4096, 4096, 4096, Residual::None),
    // A buffer for a command that moves nothing.
    (0, 4096, 0, 0, Residual::Under(4096)),
    // The buffer is longer than the command.
    (512, 4096, 512, 512, Residual::Under(3584)),
    // INQUIRY: 96 bytes returned of an allocation of 255.
    (96, 255, 96, 96, Residual::Under(159)),
    // The buffer is shorter than the command.
    (4096, 512, 512, 512, Residual::Over(3584)),
    // No buffer for a command that moves data.
    (4096, 0, 0, 0, Residual::Over(4096)),
    // Failed before the first byte, in the middle, and before the last.
    (4096, 4096, 0, 4096, Residual::Under(4096)),
    (4096, 4096, 1024, 4096, Residual::Under(3072)),
    (4096, 4096, 4095, 4096, Residual::Under(1)),
    // Failed early with a long buffer: all of it that is not valid.
    (512, 4096, 100, 512, Residual::Under(3996)),
    // Failed early with a short buffer: the initiator must learn what is valid.
    (4096, 512, 100, 512, Residual::Under(412)),
    // More was moved than could be: counted as all.
    (512, 4096, 600, 512, Residual::Under(3584)),
    // Counts at the edge of their 32 bits.
    (u64::MAX, 0, 0, 0, Residual::Over(u32::MAX)),
    (u64::MAX, u32::MAX, u32::MAX, u32::MAX, Residual::Over(u32::MAX)),
    (u32::MAX as u64, u32::MAX, u32::MAX, u32::MAX, Residual::None),
];

#[test]
fn the_matrix() {
    for (command, buffer, moved, transfer, residual) in MATRIX {
        let l = Lengths { command, buffer };
        assert_eq!(l.transfer(), transfer, "{l:?}");
        assert_eq!(l.residual(moved), residual, "{l:?}, moved {moved}");
    }
}

#[test]
fn directions_are_independent() {
    for (co, bo, mo, _, ro) in MATRIX {
        for (ci, bi, mi, _, ri) in MATRIX {
            let t = Transfer {
                data_out: Lengths { command: co, buffer: bo },
                data_in: Lengths { command: ci, buffer: bi },
            };
            assert_eq!(t.residuals(mo, mi), Residuals { data_out: ro, data_in: ri });
        }
    }
}

proptest! {
    /// What was moved and what is reported add up.
    #[test]
    fn sums(
        command in prop_oneof![0u64..100, any::<u64>()],
        buffer in prop_oneof![0u32..100, any::<u32>()],
        moved in any::<u32>(),
    ) {
        let l = Lengths { command, buffer };
        let transfer = l.transfer();
        prop_assert!(transfer <= buffer && u64::from(transfer) <= command);
        let moved = if transfer == u32::MAX { moved } else { moved % (transfer + 1) };
        match l.residual(moved) {
            Residual::None => prop_assert!(moved == buffer && command == u64::from(buffer)),
            Residual::Under(n) => prop_assert!(n > 0 && moved + n == buffer),
            Residual::Over(n) => {
                prop_assert_eq!(moved, buffer);
                let over = command - u64::from(buffer);
                prop_assert!(over > 0 && u64::from(n) == over.min(u32::MAX.into()));
            }
        }
    }
}
