//! What became of a change in doubt.

use super::{Changed, Pool, Registers, Standing};
use core::time::Duration;
use weir_proto_cluster::{Register, Version};

/// What is known of a change from a register that was read after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It stands.
    Done,
    /// Another change has the version that it would have: it did not happen, and cannot.
    Lost(Standing),
    /// A newer version stands. It may have happened and is over; it cannot come any more.
    Over(Standing),
    /// An older version stands: it may come yet.
    Open,
}

/// What a register that was read says of the change to `value`.
pub fn judge(value: &Register, seen: Option<Standing>) -> Verdict {
    match seen {
        Some((_, register)) if register == *value => Verdict::Done,
        Some((version, register)) if version == value.version => Verdict::Lost((version, register)),
        Some((version, register)) if version > value.version => Verdict::Over((version, register)),
        _ => Verdict::Open,
    }
}

/// How a change ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// It stands, or stood when it was looked for.
    Done,
    /// It did not happen, and cannot: this has its version.
    Lost(Standing),
    /// A newer register stands. Whether the change happened before that is not known; it cannot come any more.
    Over(Standing),
}

/// How long is waited after a try that told nothing.
const PAUSE: Duration = Duration::from_millis(50);

/// Asks until the outcome of a change in doubt is known, for as long as it takes: who waits less drops the call.
///
/// Reading alone might never tell, as an attempt may have been lost or may be under way. So as long as the version before
/// it stands, the same change is asked for again. Only one change of that version can happen, so no harm comes from it.
pub async fn settle<R: Registers + ?Sized>(
    registers: &R,
    pool: Pool,
    expected: Option<Version>,
    value: Register,
) -> Settled {
    loop {
        if let Ok(seen) = registers.read(pool).await {
            match judge(&value, seen) {
                Verdict::Done => return Settled::Done,
                Verdict::Lost(standing) => return Settled::Lost(standing),
                Verdict::Over(standing) => return Settled::Over(standing),
                // What comes of it is told by the next read: another one may have come before it.
                Verdict::Open => {
                    if let Changed::Done(_) = registers.change(pool, expected, value).await {
                        return Settled::Done;
                    }
                }
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_proto_cluster::{Life, Node, Writer};

    #[test]
    fn what_stands_tells_what_became_of_a_change() {
        let [a, b] = [1, 2].map(|n| Node::new(n).unwrap());
        let of = |version, n| {
            let mut r = Register::made(1, [a, b], Writer { node: a, life: Life(1), n });
            r.version = Version(version);
            (Version(version), r)
        };
        let mine = of(2, 7).1;
        assert_eq!(judge(&mine, None), Verdict::Open);
        assert_eq!(judge(&mine, Some(of(1, 1))), Verdict::Open);
        assert_eq!(judge(&mine, Some(of(2, 7))), Verdict::Done);
        // Another change, though it may ask for the same.
        assert_eq!(judge(&mine, Some(of(2, 8))), Verdict::Lost(of(2, 8)));
        assert_eq!(judge(&mine, Some(of(3, 7))), Verdict::Over(of(3, 7)));
    }
}
