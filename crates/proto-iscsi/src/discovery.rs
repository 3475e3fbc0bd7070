//! SendTargets (RFC 7143 appendix C), and text answers that take several PDUs (RFC 7143 11.11).

use crate::text::push;
use std::collections::VecDeque;

/// A target and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Its iSCSI name.
    pub name: String,
    /// `address:port` of each portal, IPv6 in brackets.
    pub portals: Vec<String>,
    /// Target portal group of them all.
    pub group: u16,
}

/// What SendTargets asks for is this target.
pub fn means(value: &str, target: &str, discovery: bool) -> bool {
    match value {
        // All that there are: in discovery sessions only (appendix C).
        "All" => discovery,
        "" => !discovery,
        name => name == target,
    }
}

/// Adds a target to an answer.
pub fn describe(out: &mut Vec<u8>, t: &Target) {
    push(out, "TargetName", &t.name);
    for p in &t.portals {
        push(out, "TargetAddress", &format!("{p},{}", t.group));
    }
}

/// An answer that goes in parts, each asked for by the initiator.
#[derive(Debug, Clone, Default)]
pub struct Parts {
    left: VecDeque<u8>,
    /// By which the next part is asked for.
    ttt: Option<u32>,
}

impl Parts {
    /// Begins an answer; gives its first part, and the tag for the next one unless that is all.
    pub fn begin(&mut self, text: Vec<u8>, most: u32, ttt: u32) -> (Vec<u8>, Option<u32>) {
        self.left = text.into();
        self.part(most, ttt)
    }

    /// The next part, asked for by this tag. `None`: nothing is left that has it.
    pub fn next(&mut self, asked: u32, most: u32, ttt: u32) -> Option<(Vec<u8>, Option<u32>)> {
        (self.ttt == Some(asked)).then(|| self.part(most, ttt))
    }

    fn part(&mut self, most: u32, ttt: u32) -> (Vec<u8>, Option<u32>) {
        let n = self.left.len().min(most as usize);
        let part = self.left.drain(..n).collect();
        self.ttt = (!self.left.is_empty()).then_some(ttt);
        (part, self.ttt)
    }

    /// Forgets what is left.
    pub fn clear(&mut self) {
        *self = Parts::default();
    }
}
