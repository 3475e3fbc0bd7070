//! Which hosts come and go at a target port, as it is told: now and then, whatever they do meanwhile.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How often one host is told of, and how often the others are.
const EVERY: Duration = Duration::from_secs(60);
/// Hosts that are told of one by one in that time. Others are told of together.
const MOST: usize = 32;

/// What a host did, for an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Coming {
    /// The host; empty where it is several, or one that nobody knows.
    pub host: String,
    /// It has channels now.
    pub is_here: bool,
    /// The same in words.
    pub text: String,
}

#[derive(Default)]
struct Host {
    channels: u64,
    /// Channels that came and went since it was told of.
    came: u64,
    went: u64,
    /// Where the last one came from.
    from: String,
    told: Option<Instant>,
}

/// Channels by host.
#[derive(Default)]
pub(crate) struct Comings {
    hosts: BTreeMap<String, Host>,
    /// Hosts told of since.
    told: usize,
    since: Option<Instant>,
    /// Other hosts, and their channels that came and went.
    others: (u64, u64, u64),
}

fn channels(n: u64) -> String {
    if n == 1 { "1 channel".into() } else { format!("{n} channels") }
}

impl Comings {
    pub(crate) fn came(&mut self, host: &str, from: &str) {
        let h = match self.hosts.get_mut(host) {
            Some(h) => h,
            None => self.hosts.entry(host.to_owned()).or_default(),
        };
        h.channels += 1;
        h.came += 1;
        h.from.clear();
        h.from.push_str(from);
    }

    pub(crate) fn went(&mut self, host: &str) {
        if let Some(h) = self.hosts.get_mut(host) {
            h.channels = h.channels.saturating_sub(1);
            h.went += 1;
        }
    }

    pub(crate) fn take(&mut self, now: Instant) -> Vec<Coming> {
        let is_due =
            |t: Option<Instant>| t.is_none_or(|t| now.saturating_duration_since(t) >= EVERY);
        let mut all = Vec::new();
        if is_due(self.since) {
            (self.since, self.told) = (Some(now), 0);
            let (hosts, came, went) = std::mem::take(&mut self.others);
            if hosts > 0 {
                let text =
                    format!("{hosts} other hosts: {} have come, {went} have ended", channels(came));
                all.push(Coming { host: String::new(), is_here: true, text });
            }
        }
        self.hosts.retain(|_, h| h.channels + h.came + h.went > 0 || !is_due(h.told));
        for (name, h) in &mut self.hosts {
            if h.came + h.went == 0 || !is_due(h.told) {
                continue;
            }
            h.told = Some(now);
            let (came, went) = (std::mem::take(&mut h.came), std::mem::take(&mut h.went));
            if self.told == MOST {
                let (hosts, c, w) = self.others;
                self.others = (hosts + 1, c + came, w + went);
                continue;
            }
            self.told += 1;
            all.push(Coming {
                host: name.clone(),
                is_here: h.channels > 0,
                text: said(name, h, came, went),
            });
        }
        all
    }
}

fn said(name: &str, h: &Host, came: u64, went: u64) -> String {
    let who =
        if name.is_empty() { "hosts that are not known".into() } else { format!("host `{name}`") };
    let left = match h.channels {
        0 => "none is left".into(),
        n => format!("{n} now"),
    };
    match (came, went) {
        (came, 0) => format!("{who}: login by {} from {}, {left}", channels(came), h.from),
        (0, went) => format!("{who}: {} ended, {left}", channels(went)),
        _ => {
            format!("{who}: login by {} from {}, and {went} ended, {left}", channels(came), h.from)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(c: &mut Comings, now: Instant) -> Vec<String> {
        c.take(now).into_iter().map(|c| c.text).collect()
    }

    #[test]
    fn a_host_is_told_of_once_a_minute_with_a_count() {
        let (mut c, begun) = (Comings::default(), Instant::now());
        (0..4).for_each(|_| c.came("db", "192.0.2.7"));
        let told = c.take(begun);
        let text = "host `db`: login by 4 channels from 192.0.2.7, 4 now";
        assert_eq!((told.len(), told[0].text.as_str(), told[0].is_here), (1, text, true));
        assert_eq!(texts(&mut c, begun + 2 * EVERY), [""; 0], "nothing new");
        for _ in 0..1000 {
            c.came("db", "192.0.2.8");
            c.went("db");
        }
        let late = begun + 2 * EVERY;
        let text = "host `db`: login by 1000 channels from 192.0.2.8, and 1000 ended, 4 now";
        assert_eq!(texts(&mut c, late), [text]);
        (0..4).for_each(|_| c.went("db"));
        assert_eq!(texts(&mut c, late + EVERY / 2), [""; 0], "so soon after that");
        let told = c.take(late + EVERY);
        let text = "host `db`: 4 channels ended, none is left";
        assert_eq!((told.len(), told[0].text.as_str(), told[0].is_here), (1, text, false));
        c.take(late + 2 * EVERY);
        assert!(c.hosts.is_empty(), "it is forgotten");
    }

    #[test]
    fn a_crowd_is_some_lines() {
        let (mut c, begun) = (Comings::default(), Instant::now());
        let mut told = 0;
        for i in 0..1000 {
            c.came(&i.to_string(), "192.0.2.7");
            told += c.take(begun).len();
        }
        assert_eq!(told, MOST);
        let text = "968 other hosts: 968 channels have come, 0 have ended";
        assert_eq!(texts(&mut c, begun + EVERY), [text]);
    }
}
