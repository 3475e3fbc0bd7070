//! Hosts, mappings and target ports.

use super::apply::check_count;
use super::*;
use std::net::SocketAddr;

/// Most initiator ports of one host.
const MAX_HOST_PORTS: usize = 256;
/// Most channels of a target port.
const MAX_CHANNELS: u16 = 4096;
/// Channels of a target port unless it is told otherwise.
const DEFAULT_CHANNELS: u16 = 256;
/// Most listen addresses of a target port.
const MAX_LISTEN: usize = 16;

impl Model {
    pub(super) fn create_host(&mut self, spec: HostSpec) -> Result<Vec<Change>> {
        check_name("host", &spec.name)?;
        if self.hosts.contains_key(&spec.name) {
            return Err(Error::new(Code::HostExists, format!("host `{}` exists", spec.name))
                .hint("choose another name, or add ports with `weir host set`"));
        }
        check_count("host", self.hosts.len())?;
        let mut ports = spec.ports;
        ports.sort_unstable();
        ports.dedup();
        if let Some(file) = &spec.secret_file {
            return Err(Error::new(
                Code::InvalidRequest,
                format!("the secret of host `{}` is in a file", spec.name),
            )
            .because(format!("{} is to be read where the command is given", file.display()))
            .hint("send `secret`, or use `weir apply` or `weir host create --secret-file`"));
        }
        let (keyed, secret) = (spec.secret.is_some(), spec.secret);
        let host = Host { name: spec.name, ports, allow_any: spec.allow_any, keyed, secret };
        self.check_host(&host)?;
        let proof = if keyed { ", to prove a secret" } else { "" };
        let ports = host.ports.len();
        let text = format!("host `{}` created with {ports} port(s){proof}", host.name);
        let change = Change::new(ObjectKind::Host, Action::Created, &host.name, text);
        self.hosts.insert(host.name.clone(), host);
        Ok(vec![change])
    }

    fn check_host(&self, host: &Host) -> Result<()> {
        if host.ports.is_empty() && !host.allow_any {
            return Err(Error::new(
                Code::InvalidPort,
                format!("host `{}` has no initiator port", host.name),
            )
            .because("nobody could log in as it")
            .hint(
                "name its ports with --port: EXT:GUID for SRP and BRP, its initiator's name for iSCSI, its address for \
                 NBD; or let it stand for every unknown initiator with --allow-any",
            ));
        }
        if host.ports.len() > MAX_HOST_PORTS {
            return Err(Error::new(
                Code::TooMany,
                format!("host `{}` cannot have {} ports", host.name, host.ports.len()),
            )
            .because(format!("the most is {MAX_HOST_PORTS}"))
            .hint("make several hosts of it"));
        }
        for port in &host.ports {
            if *port == InitiatorPort::ANONYMOUS {
                return Err(Error::new(
                    Code::InvalidPort,
                    "the all-zero initiator port names no host in particular",
                )
                .because("every siw host without `initiator_ext` logs in with it")
                .hint("set a unique initiator_ext= in the host's add_target line and name that, or use --allow-any"));
            }
            let others = self.hosts.values().filter(|h| h.name != host.name);
            if let Some(owner) = others.into_iter().find(|h| h.ports.contains(port)) {
                return Err(Error::new(
                    Code::PortInUse,
                    format!("initiator port {port} belongs to host `{}`", owner.name),
                )
                .because("a port stands for one host")
                .hint(format!(
                    "take it away there first: weir host set {} --remove-port {port}",
                    owner.name
                )));
            }
        }
        if host.allow_any
            && let Some(other) = self.hosts.values().find(|h| h.allow_any && h.name != host.name)
        {
            return Err(Error::new(
                Code::PortInUse,
                format!("host `{}` stands for every unknown initiator already", other.name),
            )
            .hint(format!("change that first: weir host set {} --allow-any off", other.name)));
        }
        Ok(())
    }

    pub(super) fn patch_host(&mut self, name: &str, patch: HostPatch) -> Result<Vec<Change>> {
        let mut host = self.host(name)?.clone();
        for port in &patch.remove_ports {
            if !host.ports.contains(port) {
                return Err(Error::new(
                    Code::InvalidPort,
                    format!("host `{name}` has no port {port}"),
                )
                .hint("`weir host show` lists its ports"));
            }
        }
        host.ports.retain(|p| !patch.remove_ports.contains(p));
        host.ports.extend(&patch.add_ports);
        host.ports.sort_unstable();
        host.ports.dedup();
        host.allow_any = patch.allow_any.unwrap_or(host.allow_any);
        if patch.no_secret && patch.secret.is_some() {
            return Err(Error::new(
                Code::InvalidRequest,
                "a secret is to be set and taken away at once",
            )
            .hint("give one of the two"));
        }
        if patch.no_secret || patch.secret.is_some() {
            host.keyed = patch.secret.is_some();
            host.secret = patch.secret;
        }
        self.check_host(&host)?;
        if self.hosts.get(name) == Some(&host) {
            return Ok(Vec::new());
        }
        let before = self.hosts.get(name).map(|h| (h.keyed, h.secret.clone()));
        let proof = match before {
            Some(b) if b == (host.keyed, host.secret.clone()) => "",
            _ if host.keyed => ", another secret to prove",
            _ => ", no secret to prove",
        };
        let text = format!("host `{name}` has {} port(s){proof}", host.ports.len());
        self.hosts.insert(name.to_string(), host);
        Ok(vec![Change::new(ObjectKind::Host, Action::Updated, name, text)])
    }

    pub(super) fn delete_host(&mut self, name: &str) -> Result<Vec<Change>> {
        self.host(name)?;
        if let Some(m) = self.maps_of_host(name).next() {
            return Err(Error::new(Code::HostMapped, format!("host `{name}` still has mappings"))
                .because(format!("it sees volume `{}` as LUN {}", m.volume, m.lun))
                .hint(format!("unmap it first: weir map delete {name} {}", m.volume)));
        }
        self.hosts.remove(name);
        let text = format!("host `{name}` deleted");
        Ok(vec![Change::new(ObjectKind::Host, Action::Deleted, name, text)])
    }

    pub(super) fn create_map(&mut self, spec: MapSpec) -> Result<Vec<Change>> {
        self.host(&spec.host)?;
        self.usable(&spec.volume)?;
        if self.volume(&spec.volume)?.migration.as_ref().is_some_and(|m| m.detach) {
            self.check_still(&spec.volume)?;
        }
        check_count("mapping", self.maps.len())?;
        if let Some(m) = self.maps_of_host(&spec.host).find(|m| m.volume == spec.volume) {
            return Err(Error::new(
                Code::MapExists,
                format!("host `{}` sees volume `{}` already", spec.host, spec.volume),
            )
            .because(format!("it is LUN {}", m.lun))
            .hint("to change the LUN, unmap it first with `weir map delete`"));
        }
        let lun = match spec.lun {
            Some(lun) if lun > MAX_LUN => {
                return Err(Error::new(Code::InvalidLun, format!("{lun} cannot be a LUN"))
                    .because(format!("LUNs go from 0 to {MAX_LUN}"))
                    .hint("leave it out to get the lowest that is free"));
            }
            Some(lun) => {
                if let Some(m) = self.maps_of_host(&spec.host).find(|m| m.lun == lun) {
                    return Err(Error::new(
                        Code::LunInUse,
                        format!("LUN {lun} of host `{}` is taken", spec.host),
                    )
                    .because(format!("it is volume `{}`", m.volume))
                    .hint("name another LUN, or leave it out to get the lowest that is free"));
                }
                lun
            }
            None => self.free_lun(&spec.host)?,
        };
        let name = format!("{}/{}", spec.host, spec.volume);
        let text = format!("host `{}` sees volume `{}` as LUN {lun}", spec.host, spec.volume);
        self.maps.insert(Mapping { host: spec.host, lun, volume: spec.volume });
        Ok(vec![Change::new(ObjectKind::Map, Action::Created, &name, text)])
    }

    fn free_lun(&self, host: &str) -> Result<u16> {
        let mut lun = 0;
        for m in self.maps_of_host(host) {
            if m.lun != lun {
                break;
            }
            lun += 1;
        }
        if lun > MAX_LUN {
            return Err(Error::new(Code::TooMany, format!("host `{host}` has no free LUN"))
                .because(format!("all of 0 to {MAX_LUN} are taken"))
                .hint("unmap a volume first"));
        }
        Ok(lun)
    }

    pub(super) fn delete_map(&mut self, host: &str, volume: &str) -> Result<Vec<Change>> {
        let mapping = self.map(host, volume)?.clone();
        self.maps.remove(&mapping);
        let text = format!("host `{host}` no longer sees volume `{volume}`");
        let name = format!("{host}/{volume}");
        Ok(vec![Change::new(ObjectKind::Map, Action::Deleted, &name, text)])
    }

    pub(super) fn put_target(&mut self, spec: TargetSpec, entropy: u128) -> Result<Vec<Change>> {
        check_name("target", &spec.name)?;
        let present = self.targets.get(&spec.name);
        if present.is_none() {
            check_count("target", self.targets.len())?;
        }
        let mut listen = Vec::with_capacity(spec.listen.len());
        for text in &spec.listen {
            listen.push(self.check_listen(&spec.name, &listen, text)?);
        }
        if listen.is_empty() || listen.len() > MAX_LISTEN {
            return Err(Error::new(
                Code::InvalidAddress,
                format!("target `{}` has {} listen addresses", spec.name, listen.len()),
            )
            .because(format!("it must have 1 to {MAX_LISTEN}"))
            .hint("write e.g. listen = [\"0.0.0.0:5555\"]"));
        }
        let channels = spec.channels.or(present.map(|t| t.channels)).unwrap_or(DEFAULT_CHANNELS);
        if !(1..=MAX_CHANNELS).contains(&channels) {
            return Err(Error::new(
                Code::InvalidRequest,
                format!("target `{}` cannot have {channels} channels", spec.name),
            )
            .hint(format!("use 1 to {MAX_CHANNELS}")));
        }
        let transport = match (spec.protocol, spec.transport) {
            // The default of the file is for RDMA.
            (Protocol::Nbd | Protocol::Iscsi, Transport::Iwarp | Transport::Tcp) => Transport::Tcp,
            (Protocol::Srp | Protocol::Brp, t @ (Transport::Iwarp | Transport::Verbs)) => t,
            (protocol @ (Protocol::Nbd | Protocol::Iscsi), Transport::Verbs) => {
                let short = if protocol == Protocol::Nbd { "NBD" } else { "iSCSI" };
                let what = format!("target `{}` cannot speak {short} over RDMA", spec.name);
                return Err(Error::new(Code::InvalidRequest, what)
                    .because(format!("{short} goes by TCP"))
                    .hint("use transport = \"tcp\", or leave it out"));
            }
            (Protocol::Srp | Protocol::Brp, Transport::Tcp) => {
                let what = format!("target `{}` needs RDMA", spec.name);
                return Err(Error::new(Code::InvalidRequest, what)
                    .because("SRP and BRP go by RDMA")
                    .hint("use transport = \"iwarp\", which needs no adapter"));
            }
        };
        // Both halves non-zero: a zero identifier would match the one that carelessly set up initiators ask for.
        let fresh = |shift: u32| Hex64((entropy >> shift) as u64 | 1);
        let target = TargetPort {
            id_ext: spec.id_ext.or(present.map(|t| t.id_ext)).unwrap_or_else(|| fresh(64)),
            ioc_guid: spec.ioc_guid.or(present.map(|t| t.ioc_guid)).unwrap_or_else(|| fresh(0)),
            relative: present.map_or_else(|| self.free_relative(), |t| t.relative),
            listen,
            protocol: spec.protocol,
            transport,
            channels,
            cores: spec.cores,
            crc: spec.crc,
            name: spec.name,
        };
        let same_id = |t: &&TargetPort| (t.id_ext, t.ioc_guid) == (target.id_ext, target.ioc_guid);
        if let Some(other) = self.targets.values().filter(|t| t.name != target.name).find(same_id) {
            return Err(Error::new(
                Code::PortInUse,
                format!("target `{}` has the same identifier", other.name),
            )
            .because("Linux refuses a second login with equal id_ext and ioc_guid")
            .hint("give them different ioc_guid, or leave both out"));
        }
        if present == Some(&target) {
            return Ok(Vec::new());
        }
        let action = if present.is_some() { Action::Updated } else { Action::Created };
        let text = format!("target `{}` listens on {}", target.name, target.listen.join(", "));
        let change = Change::new(ObjectKind::Target, action, &target.name, text);
        self.targets.insert(target.name.clone(), target);
        Ok(vec![change])
    }

    /// Puts several at once, and takes those that are `gone` away: none stands in the way of another with an address that it
    /// leaves. An error says which of `specs` cannot be, by index; then all are as they were.
    pub(super) fn put_targets(
        &mut self,
        specs: &[TargetSpec],
        gone: &[String],
        entropy: u128,
    ) -> Result<Vec<Change>, (usize, Error)> {
        /// Draws apart what is made of one draw.
        const APART: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;
        let before = self.targets.clone();
        let mut changes = Vec::new();
        for name in gone.iter().filter(|n| specs.iter().all(|s| s.name != **n)) {
            if before.contains_key(name) {
                changes.extend(self.delete_target(name).unwrap_or_default());
            }
        }
        for spec in specs {
            if let Some(t) = self.targets.get_mut(&spec.name) {
                t.listen.clear();
            }
        }
        for (i, spec) in specs.iter().enumerate() {
            let own = entropy.wrapping_add(APART.wrapping_mul(i as u128));
            match self.put_target(spec.clone(), own) {
                Ok(done) => changes.extend(done),
                Err(e) => {
                    self.targets = before;
                    return Err((i, e));
                }
            }
        }
        // Of a port that is named twice the last one counts.
        changes.retain(|c: &Change| before.get(&c.name) != self.targets.get(&c.name));
        Ok(changes)
    }

    /// Which of these target ports can be put [at once](Command::PutTargets) when others are gone, and why the rest cannot.
    pub fn fitting_targets(
        &self,
        specs: &[TargetSpec],
        gone: &[String],
    ) -> (Vec<TargetSpec>, Vec<(String, Error)>) {
        let (mut fit, mut wrong) = (specs.to_vec(), Vec::new());
        while let Err((i, why)) = self.clone().put_targets(&fit, gone, 1) {
            wrong.push((fit.remove(i).name, why));
        }
        (fit, wrong)
    }

    /// The least relative target port identifier that no target has.
    fn free_relative(&self) -> u16 {
        let is_free = |n: &u16| self.targets.values().all(|t| t.relative != *n);
        (1..=u16::MAX).find(is_free).unwrap_or(u16::MAX)
    }

    /// Gives target ports of a configuration from before relative identifiers, in the order of their names, as they were
    /// counted then. True if there were any.
    pub fn number_targets(&mut self) -> bool {
        let without = |t: &&TargetPort| t.relative == 0;
        let names: Vec<String> =
            self.targets.values().filter(without).map(|t| t.name.clone()).collect();
        for name in &names {
            let relative = self.free_relative();
            if let Some(t) = self.targets.get_mut(name) {
                t.relative = relative;
            }
        }
        !names.is_empty()
    }

    /// The address in its usual spelling, if it is one and neither this nor another target has it.
    fn check_listen(&self, target: &str, before: &[String], text: &str) -> Result<String> {
        let address: SocketAddr = text.parse().map_err(|_| {
            Error::new(Code::InvalidAddress, format!("`{text}` is not an address to listen on"))
                .hint("write IP:PORT, e.g. 0.0.0.0:5555 or [::]:5555")
        })?;
        let usual = address.to_string();
        // Port 0 asks the system for a free port and clashes with nothing.
        let others = self.targets.values().filter(|t| t.name != target);
        if address.port() != 0
            && (before.contains(&usual) || others.into_iter().any(|t| t.listen.contains(&usual)))
        {
            return Err(Error::new(
                Code::PortInUse,
                format!("{usual} is named by another target or twice"),
            )
            .hint("use another port"));
        }
        Ok(usual)
    }

    pub(super) fn delete_target(&mut self, name: &str) -> Result<Vec<Change>> {
        self.target(name)?;
        self.targets.remove(name);
        let text = format!("target `{name}` deleted");
        Ok(vec![Change::new(ObjectKind::Target, Action::Deleted, name, text)])
    }
}
