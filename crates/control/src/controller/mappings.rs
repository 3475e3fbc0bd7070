//! What mappings mean to hosts that are logged in: nothing is taken away under them, and no number that they know stands
//! for something else.

use super::known::{AWAY, Guest, MOST_PORTS, Number, key, logged_in, put, same_views, written};
use super::{Controller, blocking, finish, known};
use crate::error::{Code, Error, Result};
use crate::live::LiveStatus;
use crate::model::{Command, InitiatorPort, Model};
use crate::planted::{Bug, has};
use crate::platform::{Instant, sleep};
use std::sync::Arc;
use std::time::Duration;

/// How often it is looked whether a host has gone that was about to, and how far apart.
pub(super) const LOOKS: u32 = 20;
pub(super) const PAUSE: Duration = Duration::from_millis(50);

impl Controller {
    /// Whether a host has a connection now, by another port than `but`, as far as is known: a reactor that is held up does not
    /// tell whose are there.
    async fn is_logged_in(&self, host: &str, but: Option<InitiatorPort>) -> Result<bool> {
        Ok(has_login(&self.plane.status().await?, host, but))
    }

    /// Mappings of a pool's volumes whose hosts are logged in: host and volume. A pool that is not up serves nobody.
    pub(super) async fn users_of(&self, pool: &str) -> Result<Vec<(String, String)>> {
        if !self.up().pools.contains(pool) || has(Bug::ReleasedInUse) {
            return Ok(Vec::new());
        }
        let (model, live) = (self.model(), self.plane.status().await?);
        let is_in = |volume: &str| model.volumes.get(volume).is_some_and(|v| v.pool == pool);
        let maps = model.maps.iter().filter(|m| is_in(&m.volume));
        let used = maps.filter(|m| has_login(&live, &m.host, None));
        Ok(used.map(|m| (m.host.clone(), m.volume.clone())).collect())
    }

    /// Takes a mapping away. A host that is logged in keeps its volume, unless by `force`.
    pub async fn delete_map(
        self: &Arc<Self>,
        host: String,
        volume: String,
        force: bool,
    ) -> Result<Arc<Model>> {
        if force {
            return self.execute(Command::DeleteMap { host, volume }).await;
        }
        self.unmap(host, volume, None, false).await.map_err(|e| match e.code {
            Code::VolumeMapped => e.hint(
                "end the use there and log it out first; --force takes the volume away under it",
            ),
            _ => e,
        })
    }

    /// Takes a mapping away whose user had it by one initiator port. Whoever logs in as that host by another keeps it, also while
    /// they may be about to come back. By `force` it is taken from under that port.
    pub async fn delete_map_of(
        self: &Arc<Self>,
        host: String,
        volume: String,
        port: InitiatorPort,
        force: bool,
    ) -> Result<Arc<Model>> {
        let by_hand = format!("weir map delete {host} {volume}");
        self.unmap(host, volume, Some(port), force).await.map_err(|e| match e.code {
            Code::VolumeMapped => e.hint(format!(
                "try again when it has been gone for ten minutes; or, if nothing uses it there: {by_hand}"
            )),
            _ => e,
        })
    }

    /// Takes a mapping away from a host that is not logged in; for a moment it is waited for. Given its user's port, that one's
    /// logins of the past do not count, nor by `force` those of now, and all others must have gone.
    async fn unmap(
        self: &Arc<Self>,
        host: String,
        volume: String,
        user: Option<InitiatorPort>,
        force: bool,
    ) -> Result<Arc<Model>> {
        self.model().map(&host, &volume)?;
        let but = user.filter(|_| force);
        for _ in 0..LOOKS {
            let (me, host, volume) = (self.clone(), host.clone(), volume.clone());
            let done = finish(super::spawn(async move {
                // Whoever logs in before it is done is seen.
                let _one = me.settled_turn().await?;
                if me.is_logged_in(&host, but).await? {
                    return Ok(None);
                }
                if user.is_some() {
                    me.check_away(&host, &volume, user)?;
                }
                me.change(Command::DeleteMap { host, volume }).await.map(Some)
            }));
            if let Some(now) = done.await? {
                return Ok(now);
            }
            sleep(PAUSE).await;
        }
        Err(may_be_used(&host, &volume).because("it is logged in"))
    }

    /// Refuses to take a mapping from a host that is logged in, or was not long ago: it may be about to come back.
    pub(super) async fn check_gone(&self, host: &str, volume: &str) -> Result<()> {
        let by_force = format!("weir map delete {host} {volume}");
        if self.is_logged_in(host, None).await? {
            return Err(may_be_used(host, volume).because("it is logged in").hint(format!(
                "end the use there and log it out first; or take it away under it: {by_force} --force"
            )));
        }
        self.check_away(host, volume, None).map_err(|e| e.hint(format!(
            "apply the file again when it has been gone for ten minutes; or, if nothing uses it there: {by_force}"
        )))
    }

    /// Refuses to take a mapping from a host that was logged in not long ago by another port than `but`.
    fn check_away(&self, host: &str, volume: &str, but: Option<InitiatorPort>) -> Result<()> {
        let model = self.model();
        let viewer = model.viewers();
        let is_it = |port: &InitiatorPort| {
            Some(*port) != but && viewer(port).is_some_and(|h| h.name == host)
        };
        let seen = self.known.with(|k| {
            let mine = k.iter().filter(|(port, _)| is_it(port)).map(|(_, g)| g.seen.elapsed());
            mine.min().filter(|ago| *ago < known::AWAY && !has(Bug::AwayIsGone))
        });
        match seen {
            None => Ok(()),
            Some(ago) => Err(may_be_used(host, volume).because(format!(
                "it was logged in {} s ago, and may be about to come back",
                ago.as_secs()
            ))),
        }
    }

    /// Refuses a declared change of a host by which initiator ports that are logged in have volumes no more, or by other numbers:
    /// such a port may be one of its own, or one that nobody named yet and a host has that anybody may use.
    pub(super) async fn check_ports_free(&self, command: &Command, model: &Model) -> Result<()> {
        if !matches!(command, Command::PatchHost { .. } | Command::CreateHost(_)) {
            return Ok(());
        }
        let mut new = model.clone();
        // What does not fit is told by the change itself.
        if new.apply(command.clone(), 0).is_err() || known::same_views(model, &new) {
            return Ok(());
        }
        let (earlier, later) = (model.viewers(), new.viewers());
        for port in known::logged_in(&self.plane.status().await?) {
            let Some(host) = earlier(&port) else { continue };
            let is = new.seen_by(later(&port));
            let was = model.seen_by(Some(host)).into_iter();
            let mut lost = was.filter(|(lun, v)| is.get(lun).is_none_or(|i| i.naa != v.naa));
            let Some((_, volume)) = lost.next().filter(|_| !has(Bug::PortsTakenInUse)) else {
                continue;
            };
            let name = &host.name;
            let by_hand = match host.ports.contains(&port) {
                true => format!("weir host set {name} --remove-port {port}"),
                false => "weir host create, or weir host set, for what the file says".to_string(),
            };
            return Err(Error::new(
                Code::VolumeMapped,
                format!("host `{name}` may be using its volumes by initiator port {port}"),
            )
            .because(format!(
                "it is logged in, and would not have volume `{}` any more",
                volume.name
            ))
            .hint(format!(
                "end the use there and log it out first; or take it away under it: {by_hand}"
            )));
        }
        Ok(())
    }

    /// Refuses to take a target port away at which hosts are logged in: what they use there could be taken away next. A reactor
    /// that is held up does not tell whose are there.
    pub(super) async fn check_port_not_used(&self, name: &str) -> Result<()> {
        let live = self.plane.status().await?;
        let held = live.reactors.iter().any(|r| r.held.is_some());
        let mut nexuses = live.ports.iter().filter(|p| p.name == name).flat_map(|p| &p.nexuses);
        let user = nexuses.find(|n| held || !n.peer.is_empty());
        match user.filter(|_| !has(Bug::PortsPrunedInUse)) {
            None => Ok(()),
            Some(n) => {
                let who = n.host.as_ref().unwrap_or(&n.initiator);
                Err(Error::new(Code::TargetInUse, format!("target port `{name}` may be in use"))
                    .because(format!("`{who}` is logged in there"))
                    .hint("end the use there and log it out first; or name the port in the file"))
            }
        }
    }

    /// Takes note of who has logged in while a change came into effect: they may have seen what was before. The caller holds `changes`.
    pub(super) async fn see_late(&self, command: &Command, old: &Model, new: &Model) {
        if !concerns(command) || same_views(old, new) || has(Bug::LateIsOverlooked) {
            return;
        }
        let done = async {
            if self.see(&self.plane.status().await?).await? {
                self.note_taken(old, new).await?;
            }
            Ok::<(), Error>(())
        };
        if let Err(e) = done.await {
            tracing::warn!("who has logged in meanwhile cannot be kept: {e}");
        }
    }

    /// Takes note of who is logged in. True: somebody has come. The caller holds `changes`.
    pub(super) async fn see(&self, live: &LiveStatus) -> Result<bool> {
        let here = logged_in(live);
        let (new, gone) = self.known.with(|k| {
            let mut new = Vec::new();
            for port in &here {
                match k.get_mut(port) {
                    Some(g) => g.seen = Instant::now(),
                    None => new.push(*port),
                }
            }
            let forgets = has(Bug::NumbersForgotten);
            let is_gone = |g: &Guest| g.seen.elapsed() >= AWAY || forgets;
            let mut away: Vec<_> = k.iter().filter(|(p, _)| forgets || !here.contains(p)).collect();
            away.sort_by_key(|(_, g)| g.seen);
            let over = (k.len() + new.len()).saturating_sub(MOST_PORTS);
            let away = away.into_iter().enumerate();
            let gone: Vec<_> =
                away.filter(|(n, (_, g))| *n < over || is_gone(g)).map(|(_, (p, _))| *p).collect();
            (new, gone)
        });
        if new.is_empty() && gone.is_empty() {
            return Ok(false);
        }
        let come = !new.is_empty();
        let mut rows = Vec::new();
        for port in &new {
            rows.push((key(port), written(&[])?));
        }
        rows.extend(gone.iter().map(|p| (key(p), Vec::new())));
        let store = self.store.clone();
        blocking(move || put(&store, &rows)).await?;
        self.known.with(|k| {
            gone.iter().for_each(|p| drop(k.remove(p)));
            k.extend(new.into_iter().map(|p| (p, Guest::new(Vec::new()))));
        });
        Ok(come)
    }

    /// Programs that logged in by these ports have ended, and have left no disks behind: no numbers are kept apart for them.
    ///
    /// # Errors
    /// That cannot be kept.
    pub async fn forget_ports(&self, ports: &[InitiatorPort]) -> Result<()> {
        let _turn = self.changes.lock().await;
        let known: Vec<_> =
            self.known.with(|k| ports.iter().filter(|p| k.contains_key(p)).copied().collect());
        let rows: Vec<_> = known.iter().map(|p| (key(p), Vec::new())).collect();
        let store = self.store.clone();
        blocking(move || put(&store, &rows)).await?;
        self.known.with(|k| known.iter().for_each(|p| drop(k.remove(p))));
        Ok(())
    }

    /// Keeps numbers apart that hosts know. Gives the command to be carried out.
    pub(super) async fn keep_luns(&self, command: Command, old: &Model) -> Result<Command> {
        if concerns(&command) {
            self.see(&self.plane.status().await?).await?;
        }
        Ok(match command {
            Command::CreateMap(spec) => Command::CreateMap(self.known.choose_lun(spec, old)),
            other => other,
        })
    }

    /// Refuses numbers by which hosts know other volumes, and remembers what is taken from them. Before it is in effect.
    pub(super) async fn note_luns(&self, old: &Model, new: &Model) -> Result<()> {
        self.known.check(old, new)?;
        self.note_taken(old, new).await
    }

    /// Remembers what is taken from machines.
    pub(super) async fn note_taken(&self, old: &Model, new: &Model) -> Result<()> {
        let changed = self.known.taken(old, new);
        if changed.is_empty() {
            return Ok(());
        }
        let row = |(p, n): &(InitiatorPort, Vec<Number>)| Ok((key(p), written(n)?));
        let rows: Vec<_> = changed.iter().map(row).collect::<Result<_>>()?;
        let store = self.store.clone();
        blocking(move || put(&store, &rows)).await?;
        self.known.remember(changed);
        Ok(())
    }
}

fn has_login(live: &LiveStatus, host: &str, but: Option<InitiatorPort>) -> bool {
    let held = live.reactors.iter().any(|r| r.held.is_some());
    let counts = |initiator: &str| but.is_none() || initiator.parse().ok() != but;
    let nexuses = live.ports.iter().flat_map(|p| &p.nexuses);
    let mut nexuses = nexuses.filter(|n| counts(&n.initiator));
    nexuses.any(|n| match &n.host {
        Some(h) => h == host && !n.peer.is_empty(),
        None => held,
    })
}

fn may_be_used(host: &str, volume: &str) -> Error {
    Error::new(Code::VolumeMapped, format!("host `{host}` may be using volume `{volume}`"))
}

/// Whether hosts may see something else by a command.
fn concerns(command: &Command) -> bool {
    matches!(
        command,
        Command::CreateMap(_)
            | Command::DeleteMap { .. }
            | Command::CreateHost(_)
            | Command::PatchHost { .. }
            | Command::DeleteHost { .. }
            | Command::ImportPool { .. }
            | Command::ReleasePool { .. }
    )
}
