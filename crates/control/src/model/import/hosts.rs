//! Who sees the volumes of a pool that is taken over.

use super::*;
use crate::planted::{Bug, has};

/// Why a host that is here is not, or may not be, the one of that name that the pool tells of. A name alone proves nothing.
fn differs(here: &Host, there: &Host) -> Option<&'static str> {
    let ports = |h: &Host| h.ports.iter().copied().collect::<BTreeSet<_>>();
    if ports(here) != ports(there) {
        return Some("the host of that name that is here has other ports");
    }
    match (here.allow_any, there.allow_any) {
        (true, false) => {
            return Some("here that name stands for every port that no other host names");
        }
        (false, true) => {
            return Some("there that name stood for every port that no other host names");
        }
        _ => {}
    }
    // Pools carry no secrets. One that was given to it here is asked for; none is less than what the pool asks.
    (there.keyed && !here.keyed)
        .then_some("the pool lets it in with a secret only, and here it has none")
}

impl Model {
    /// Hosts that are not there, and mappings to those, and to those that are there and the same. What does not fit is left out: it
    /// can be made by hand.
    pub(super) fn import_hosts(
        &mut self,
        done: &mut Import,
        spec: &ImportSpec,
        record: PoolRecord,
        known: &BTreeSet<(String, u16)>,
    ) {
        let mut same = BTreeSet::new();
        for host in &record.hosts {
            if self.import_host(done, host) {
                same.insert(host.name.clone());
            }
        }
        for m in record.maps {
            let is_same = same.contains(&m.host);
            self.import_map(done, spec, m, is_same, known);
        }
        // Volumes that were left out before, and now come.
        for (host, m) in record.aside {
            if done.volumes.iter().any(|v| v.name == format!("{}{}", spec.prefix, m.volume)) {
                let is_same = self.import_host(done, &host);
                self.import_map(done, spec, m, is_same, known);
            }
        }
    }

    /// Has a host be here, or says why the one of that name is another. True: it is the one.
    fn import_host(&mut self, done: &mut Import, host: &Host) -> bool {
        if let Some(here) = self.hosts.get(&host.name) {
            let Some(why) = differs(here, host).filter(|_| !has(Bug::HostsByName)) else {
                return true;
            };
            let text = format!("host `{}`: {why}", host.name);
            if !done.report.left_out.contains(&text) {
                done.report.left_out.push(text);
            }
            return false;
        }
        let wish = HostSpec {
            name: host.name.clone(),
            ports: host.ports.clone(),
            allow_any: host.allow_any,
            ..HostSpec::default()
        };
        match self.create_host(wish) {
            Ok(_) => {
                // Pools carry no secrets: nobody is let in as this host until it has been given one again.
                if let Some(h) = self.hosts.get_mut(&host.name) {
                    h.keyed = host.keyed;
                }
                done.report.hosts.push(host.name.clone());
                done.hosts.push(host.clone());
                true
            }
            Err(e) => {
                done.report.left_out.push(format!("host `{}`: {e}", host.name));
                false
            }
        }
    }

    fn import_map(
        &mut self,
        done: &mut Import,
        spec: &ImportSpec,
        m: Mapping,
        is_same: bool,
        known: &BTreeSet<(String, u16)>,
    ) {
        let volume = format!("{}{}", spec.prefix, m.volume);
        let made = MapSpec { host: m.host.clone(), volume, lun: Some(m.lun) };
        let m = Mapping { volume: made.volume.clone(), ..m };
        let mapped = match (is_same, known.contains(&(m.host.clone(), m.lun))) {
            (true, false) => self.create_map(made).map(drop).map_err(|e| e.to_string()),
            (true, true) => Err(format!("it knows another volume as LUN {}", m.lun)),
            (false, _) => Err("the host is left out".to_string()),
        };
        match mapped {
            Ok(()) => {
                done.report.maps.push((m.host.clone(), m.volume.clone()));
                done.maps.push(m);
            }
            Err(why) => {
                let text = format!("volume `{}` for host `{}`: {why}", m.volume, m.host);
                done.report.left_out.push(text);
            }
        }
    }
}
