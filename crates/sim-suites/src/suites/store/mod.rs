//! The pool store through lives that end by kill or power cut, also inside recovery, on devices that
//! lose, misdirect, rot, fail, stall, vanish and run full, and that come, go and are replaced.
//!
//! One seed is one story: a pool, volumes under verified load, one kind of trouble. In the end everything is
//! read again, from all devices and with each one missing, and the offline verifier looks at the rest.

mod beside;
mod closing;
mod crashes;
mod director;
mod faults;
mod finish;
mod forms;
mod grow;
mod mends;
mod passing;
mod pool;
mod steward;
mod trouble;
mod verdict;

use crate::{Pass, Run, Wrong};
use pool::Story;
use trouble::Trouble;
use weir_base::{MICROS, MILLIS};

pub(super) fn run(run: &Run) -> Result<Pass, Wrong> {
    let s = Story::new(run)?;
    let about = s.about();
    tell(s).map_err(|Wrong(what)| Wrong(format!("{what}; {about}")))
}

fn tell(mut s: Story) -> Result<Pass, Wrong> {
    s.create()?;
    let lives = match s.trouble {
        // What is not as it should be after that must not be mended before it is counted.
        Trouble::Lies => 2,
        _ => s.rng.between(2, 5),
    };
    for life in 0..lives {
        // The first life ends on time, so that there is something to recover.
        if life > 0 && s.rng.chance(1, 2) && !s.unsummed {
            s.crash_while_opening()?;
        }
        s.open()?;
        s.check_snapshots()?;
        s.other_fails(life)?;
        s.start_load(life)?;
        s.start_trouble(life)?;
        s.outlast(life)?;
        let longest = match s.trouble {
            // Filling takes its time.
            Trouble::Away | Trouble::Devices | Trouble::Lies => 90 * MILLIS,
            _ => 25 * MILLIS,
        };
        let time = match s.rng.chance(1, 3) {
            // Power goes right after.
            _ if s.trouble == Trouble::OneThenOther => 0,
            // Before what recovery left to be done is done.
            true => s.rng.between(20 * MICROS, 3 * MILLIS),
            false => s.rng.between(MILLIS / 2, longest),
        };
        s.w.run_for(time);
        s.end_life()?;
        let pause = s.rng.between(10 * MICROS, MILLIS);
        s.w.run_for(pause);
    }
    s.finish()
}
