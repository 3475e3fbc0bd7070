//! Keys of a login, one by one.

use super::{Login, OPERATIONAL, SECURITY, status};
use crate::keys;
use crate::text::push;

impl Login {
    /// Takes one key; what it is answered with is added to `out`.
    pub(super) fn key(&mut self, (key, value): (&str, &str), out: &mut Vec<u8>) -> Result<(), u16> {
        let Some(claim) = &self.claim else { return Err(status::TARGET_ERROR) };
        let still = |same: bool| if same { Ok(()) } else { Err(status::INITIATOR_ERROR) };
        match key {
            "InitiatorName" => return still(claim.initiator == value),
            "TargetName" => return still(claim.target.as_deref().is_none_or(|t| t == value)),
            "SessionType" => {
                return still((value == "Discovery") == claim.discovery);
            }
            "InitiatorAlias" => return Ok(()),
            // What a target has been asked, or has asked itself, is not negotiated again (RFC 7143 6.2).
            _ if self.seen.iter().any(|k| k == key) => return Err(status::INITIATOR_ERROR),
            _ => self.seen.push(key.to_owned()),
        }
        let discovery = claim.discovery;
        match key {
            "AuthMethod" | "CHAP_A" | "CHAP_N" | "CHAP_R" | "CHAP_I" | "CHAP_C" => {
                if self.stage != SECURITY {
                    return Err(status::INITIATOR_ERROR);
                }
                self.auth.key(key, value)
            }
            _ => {
                let all = (&mut self.params, &self.offer);
                let done = keys::answer(all.0, all.1, discovery, (key, value), out);
                done.map_err(|_| status::INITIATOR_ERROR)
            }
        }
    }

    /// Adds what a target says by itself, once: its portal group in the first response of a session for commands (RFC 7143 13.9),
    /// and what it takes in one PDU.
    pub(super) fn own_keys(&mut self, out: &mut Vec<u8>) {
        let normal = self.claim.as_ref().is_some_and(|c| !c.discovery);
        if normal && !self.told_group {
            self.told_group = true;
            push(out, "TargetPortalGroupTag", &self.group.to_string());
        }
        if self.stage == OPERATIONAL && !self.told_length {
            self.told_length = true;
            push(out, "MaxRecvDataSegmentLength", &self.offer.max_recv.to_string());
        }
    }
}
