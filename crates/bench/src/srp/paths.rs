//! A unit over several paths, for whoever makes no load.

use super::connect::log_in;
use super::disk::SrpDisk;
use super::login::Login;
use super::scan::list;
use crate::client::{BlockClient, ConnectError, ConnectKind, Geometry};
use std::rc::Rc;
use weir_fabric::Provider;
use weir_initiator_srp::{Multipath, PathState, Queue, Session};
use weir_proto_scsi::Lun;

/// Logs in to every path of the present reactor and opens the unit: by its number on the first path that is there,
/// else by its name, else LUN 0. The sessions last as long as the reactor.
///
/// # Errors
/// No path is there, or none has the unit.
pub async fn open_paths(
    provider: &Rc<dyn Provider>,
    login: &Login,
    lun: Option<u16>,
    volume: Option<&str>,
) -> Result<(Rc<Multipath>, Geometry), ConnectError> {
    let mut sessions = Vec::new();
    for mut config in login.sessions(login.initiator) {
        config.channels = 1;
        config.depth = 256;
        let s = Session::new(config);
        s.join(provider.clone());
        sessions.push(s);
    }
    if let Err(e) = log_in(&sessions).await {
        return Err(login.explain(e));
    }
    let queues: Vec<Queue> = sessions.iter().map(Session::queue).collect();
    let lun = match (lun, volume) {
        (Some(n), _) => n,
        (None, None) => 0,
        (None, Some(name)) => named(login, &queues, name).await?,
    };
    let wire = Lun::from_index(lun).unwrap_or(Lun::ZERO);
    let disk = SrpDisk::open_paths(queues, wire, login.multipath.unwrap_or_default()).await;
    let disk = disk.map_err(|e| login.no_disk(lun, &e))?;
    let geometry = disk.geometry();
    let paths = disk.paths().cloned().ok_or_else(|| {
        let why = "it was opened over one path";
        ConnectError::new(ConnectKind::Failed, "there are no paths", why, "name one --target")
    })?;
    Ok((paths, geometry))
}

/// The number of the unit of this name on the first path that is there.
async fn named(login: &Login, queues: &[Queue], name: &str) -> Result<u16, ConnectError> {
    let Some(queue) = queues.iter().find(|q| q.state() == PathState::Running) else {
        let message = format!("no target answers at {}", login.place());
        let hint = "check the addresses";
        return Err(ConnectError::new(ConnectKind::Unreachable, message, "it went away", hint));
    };
    let found = list(queue).await.map_err(|e| {
        let message = format!("the target at {} does not list its units", login.place());
        ConnectError::new(ConnectKind::Failed, message, e, "name the unit with --lun")
    })?;
    if let Some(f) = found.iter().find(|f| f.is_called(name)) {
        return Ok(f.lun);
    }
    let have: Vec<String> = found.iter().map(ToString::to_string).collect();
    let have = if have.is_empty() { "it shows none to this host".into() } else { have.join("; ") };
    Err(ConnectError::new(
        ConnectKind::NoVolume,
        format!("the target at {} shows no volume `{name}` to this host", login.place()),
        have,
        "name one of these, give --lun, or map the volume to this host (`weir map create`)",
    ))
}
