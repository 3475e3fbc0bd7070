use std::collections::BTreeSet;

/// Every state can be reached from the start and leads back to it; nothing follows itself; names are
/// unique and as the document writes them.
macro_rules! check_machine {
    ($test:ident, $t:ident) => {
        #[test]
        fn $test() {
            use super::$t;
            assert!($t::ALL.len() <= 32, "one bit per state");
            let index = |s: $t| s as usize;
            let reach = |from: $t, edge: &dyn Fn($t, $t) -> bool| {
                let mut seen = BTreeSet::from([index(from)]);
                let mut todo = vec![from];
                while let Some(s) = todo.pop() {
                    for &n in $t::ALL {
                        if edge(s, n) && seen.insert(index(n)) {
                            todo.push(n);
                        }
                    }
                }
                seen
            };
            let forth = reach($t::START, &|a, b| a.may_follow(b));
            let back = reach($t::START, &|a, b| b.may_follow(a));
            let mut names = BTreeSet::new();
            for &s in $t::ALL {
                assert!(forth.contains(&index(s)), "{s} is never reached");
                assert!(back.contains(&index(s)), "{s} never ends");
                assert!(!s.may_follow(s), "{s} follows itself");
                assert!(!s.successors().is_empty(), "{s} has no way out");
                assert!(names.insert(s.name()), "{s} is there twice");
                assert_eq!(s.to_string(), s.name());
                // The document's style, derived from the variant's name.
                let mut want = String::new();
                for c in format!("{s:?}").chars() {
                    if c.is_uppercase() && !want.is_empty() {
                        want.push(' ');
                    }
                    want.push(c.to_ascii_uppercase());
                }
                assert_eq!(s.name(), want);
                for &n in $t::ALL {
                    assert_eq!(s.may_follow(n), s.successors().contains(&n), "{s} to {n}");
                }
            }
        }
    };
}

check_machine!(channel_is_connected, ChannelState);
check_machine!(nexus_is_connected, NexusState);
check_machine!(request_is_connected, RequestState);
check_machine!(bdt_is_connected, BdtState);
check_machine!(dma_is_connected, DmaState);

macro_rules! walk {
    ($t:ident: $($s:ident)+) => {{
        use super::$t;
        let path = [$($t::$s),+];
        for w in path.windows(2) {
            assert!(w[0].may_follow(w[1]), "{} to {}", w[0], w[1]);
        }
    }};
}

/// The life of requests as the paper tells it.
#[test]
fn the_documents_paths() {
    walk!(RequestState: Free RecvBufferWait RecvWait SubmitWait PartialsWait Active DmaDrainWait
        SendQueueWait SendBufferWait CompletionQueueWait BdtWait Free);
    walk!(DmaState: Idle BdtWait SqrWait CqrWait SqrWait CqrWait XferWait Idle);
    // Zero length, or aborted before the start.
    walk!(DmaState: Idle BdtWait AsyncWait Idle);
    walk!(BdtState: Free BufferWait Ready Free);
    walk!(BdtState: Free BufferWait SqrWait CqrWait SqrWait CqrWait FetchWait Ready Free);
    walk!(NexusState: Free Active TerminateWait Active LossWait Free);
    walk!(ChannelState: Free ResourceWait NexusWait AcceptWait Established LogoutWait
        DisconnectWait FlushWait DrainWait Free);
    walk!(ChannelState: Free ResourceWait NexusWait RejectWait Free);
}

#[test]
fn what_must_not_happen() {
    use super::{DmaState, RequestState as R};
    // No answer before all RDMA has ended, no work before the command is submitted.
    for s in [R::SubmitWait, R::PartialsWait, R::Active, R::Datc] {
        assert!(!s.may_follow(R::SendQueueWait), "{s}");
    }
    assert!(!R::RecvWait.may_follow(R::Active));
    assert!(!R::Active.may_follow(R::Free));
    assert!(!DmaState::XferWait.may_follow(DmaState::AsyncWait));
    assert!(!DmaState::AsyncWait.may_follow(DmaState::XferWait));
}
