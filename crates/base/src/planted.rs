//! The switch for bugs on purpose: what a test suite must catch, else it is blind.

/// Makes a crate's list of planted bugs: `Bug` with `Bug::ALL`, `plant` and `has`.
///
/// With the caller's feature `planted`, `plant` switches one bug on for the calling thread, or all off, and
/// `has` says whether a bug is on. A thread begins with that which the environment names: `WEIR_PLANTED=CRATE::BUG`.
/// Without it `has` is a constant `false`, and nothing of a bug is compiled in.
///
/// # Examples
/// ```
/// mod planted {
///     weir_base::planted_bugs! {
///         /// An answer is sent before its data.
///         AnswerFirst,
///     }
/// }
/// assert!(!planted::has(planted::Bug::AnswerFirst));
/// ```
#[macro_export]
macro_rules! planted_bugs {
    ($($(#[$doc:meta])* $bug:ident),+ $(,)?) => {
        /// A bug that can be switched on.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Bug {
            $($(#[$doc])* $bug,)+
        }

        impl Bug {
            /// All there are.
            pub const ALL: &[Bug] = &[$(Bug::$bug),+];
        }

        #[cfg(feature = "planted")]
        mod switch {
            use super::Bug;
            use std::cell::Cell;

            thread_local! {
                static ON: Cell<Option<Bug>> = Cell::new(from_outside());
            }

            /// The bug that a whole test program is run with: `WEIR_PLANTED=CRATE::BUG`.
            fn from_outside() -> Option<Bug> {
                let wanted = std::env::var("WEIR_PLANTED").ok()?;
                let name = |b: &Bug| format!(concat!(env!("CARGO_CRATE_NAME"), "::{:?}"), b);
                Bug::ALL.iter().copied().find(|b| name(b) == wanted)
            }

            /// Switches one bug on for this thread, or all off.
            pub fn plant(bug: Option<Bug>) {
                ON.with(|o| o.set(bug));
            }

            pub(crate) fn has(bug: Bug) -> bool {
                ON.with(|o| o.get() == Some(bug))
            }
        }

        #[cfg(not(feature = "planted"))]
        mod switch {
            /// There are no bugs on purpose in this build.
            #[inline(always)]
            pub(crate) const fn has(_bug: super::Bug) -> bool {
                false
            }
        }

        pub(crate) use switch::has;
        #[cfg(feature = "planted")]
        pub use switch::plant;
    };
}
