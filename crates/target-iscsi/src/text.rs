//! Text requests in the full-feature phase (RFC 7143 11.10, 11.11).

use weir_proto_iscsi::bhs::{Request, Response, Stat, be32, op, reject};
use weir_proto_iscsi::discovery::{Parts, Target, describe, means};
use weir_proto_iscsi::keys::{Offer, Params, answer};
use weir_proto_iscsi::text::{pairs, push};
use weir_proto_iscsi::{NO_TAG, TEXT};

/// The text of one session.
#[derive(Default)]
pub(crate) struct Texts {
    /// What came of a request that goes on.
    so_far: Vec<u8>,
    parts: Parts,
    tags: u32,
}

/// What a session may be told.
pub(crate) struct About<'a> {
    pub(crate) target: &'a Target,
    pub(crate) offer: &'a Offer,
    pub(crate) discovery: bool,
}

impl Texts {
    /// Takes a request; gives the response and its text. `params` may change: the initiator may declare another length.
    ///
    /// # Errors
    /// Why it is to be rejected, as in [`reject`].
    pub(crate) fn request(
        &mut self,
        r: &Request,
        data: &[u8],
        about: &About<'_>,
        params: &mut Params,
    ) -> Result<(Response, Vec<u8>), u8> {
        let asked = be32(&r.0, 20);
        self.tags = self.tags.wrapping_add(1) % NO_TAG;
        let (goes_on, most) = (r.flags() & 0x40 != 0, params.max_send);
        if goes_on && r.is_final() || self.so_far.len() + data.len() > TEXT {
            self.so_far.clear();
            return Err(reject::FIELD);
        }
        if asked == NO_TAG {
            // A new request ends what was left of the one before.
            self.parts.clear();
            self.so_far.clear();
        }
        let (text, next) = if asked != NO_TAG && data.is_empty() && self.so_far.is_empty() {
            self.parts.next(asked, most, self.tags).ok_or(reject::FIELD)?
        } else {
            self.so_far.extend_from_slice(data);
            if goes_on {
                (Vec::new(), Some(self.tags))
            } else {
                let text = std::mem::take(&mut self.so_far);
                let out = reply(&text, about, params)?;
                self.parts.begin(out, most, self.tags)
            }
        };
        // F ends it. Otherwise the initiator asks for more by the tag; C says that the text is cut there.
        let cut = next.is_some() && !goes_on;
        let flags = if next.is_none() {
            0x80
        } else if cut {
            0x40
        } else {
            0
        };
        let head = Response::new(op::TEXT_RESPONSE, flags, r.itt(), Stat::Takes);
        let head = head.with32(20, next.unwrap_or(NO_TAG)).with_data(text.len());
        Ok((head, text))
    }
}

fn reply(text: &[u8], about: &About<'_>, params: &mut Params) -> Result<Vec<u8>, u8> {
    let mut out = Vec::new();
    for (key, value) in pairs(text).map_err(|_| reject::PROTOCOL)? {
        match key {
            "SendTargets" if means(value, &about.target.name, about.discovery) => {
                describe(&mut out, about.target);
            }
            // Of others there is nothing to tell.
            "SendTargets" => {}
            "MaxRecvDataSegmentLength" => {
                let done = answer(params, about.offer, about.discovery, (key, value), &mut out);
                done.map_err(|_| reject::PROTOCOL)?;
            }
            _ => {
                // All other keys belong to the login, or are unknown.
                let mut told = Vec::new();
                let mut scratch = *params;
                let known = answer(&mut scratch, about.offer, false, (key, value), &mut told);
                let unknown = known.is_ok() && told.ends_with(b"=NotUnderstood\0");
                push(&mut out, key, if unknown { "NotUnderstood" } else { "Reject" });
            }
        }
    }
    if out.len() > TEXT { Err(reject::RESOURCES) } else { Ok(out) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_proto_iscsi::bhs::LEN;

    fn ask(t: &mut Texts, flags: u8, ttt: u32, data: &[u8]) -> Result<(Response, Vec<u8>), u8> {
        let mut h = [0; LEN];
        (h[0], h[1]) = (op::TEXT, flags);
        h[20..24].copy_from_slice(&ttt.to_be_bytes());
        let target =
            Target { name: "iqn.t".into(), portals: vec!["1.2.3.4:3260".into()], group: 1 };
        let offer = crate::greet::OFFER;
        let about = About { target: &target, offer: &offer, discovery: true };
        let mut params = Params { max_send: 20, ..Params::new(&offer) };
        t.request(&Request(h), data, &about, &mut params)
    }

    #[test]
    fn text_comes_and_goes_in_parts() {
        let mut t = Texts::default();
        let (r, text) = ask(&mut t, 0x40, NO_TAG, b"SendTar").unwrap();
        assert_eq!((r.bhs[1], text.len()), (0, 0));
        let tag = be32(&r.bhs, 20);
        let (mut r, mut all) = ask(&mut t, 0x80, tag, b"gets=All\0").unwrap();
        while r.bhs[1] & 0x80 == 0 {
            assert_eq!(r.bhs[1], 0x40, "the text goes on");
            let (next, part) = ask(&mut t, 0x80, be32(&r.bhs, 20), b"").unwrap();
            assert!(part.len() <= 20);
            (r, all) = (next, [all, part].concat());
        }
        assert_eq!(all, b"TargetName=iqn.t\0TargetAddress=1.2.3.4:3260,1\0");
        assert_eq!(ask(&mut t, 0x80, 5, b"").err(), Some(reject::FIELD));
        assert_eq!(ask(&mut t, 0xc0, NO_TAG, b"").err(), Some(reject::FIELD));
        assert_eq!(ask(&mut t, 0x80, NO_TAG, b"garbage\0").err(), Some(reject::PROTOCOL));
        let long = vec![b'x'; TEXT + 1];
        assert_eq!(ask(&mut t, 0x80, NO_TAG, &long).err(), Some(reject::FIELD));
        // Others' names, and keys of the login.
        assert_eq!(ask(&mut t, 0x80, NO_TAG, b"SendTargets=iqn.x\0").unwrap().1, b"");
        let (_, text) = ask(&mut t, 0x80, NO_TAG, b"X-a=1\0").unwrap();
        assert_eq!(text, b"X-a=NotUnderstood\0");
        let (_, text) = ask(&mut t, 0x80, NO_TAG, b"InitialR2T=No\0").unwrap();
        assert_eq!(text, b"InitialR2T=Reject\0");
    }
}
