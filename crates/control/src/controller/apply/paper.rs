//! Changes that are only made on paper.

use super::*;
use crate::controller::known::Known;
use crate::declare::UNKNOWN_SIZE;
use crate::model::{DeviceFound, PoolSpec};

/// What would be as far as a rehearsal has come.
pub(super) struct Paper {
    /// The configuration.
    pub(super) model: Arc<Model>,
    /// What machines would know by numbers that are theirs no more.
    pub(super) known: Known,
}

impl Controller {
    /// What the configuration would be after a command, if it would be accepted. What only shows on devices is not
    /// looked at.
    pub(super) async fn rehearse(&self, command: Command, paper: &Paper) -> Result<Arc<Model>> {
        let Paper { model: paper, known } = paper;
        let real = self.model();
        self.check_not_closed(&command, &real)?;
        let command = match command {
            Command::CreateMap(spec) => Command::CreateMap(known.choose_lun(spec, paper)),
            other => other,
        };
        let mut new = Model::clone(paper);
        // One that is being deleted already goes, too.
        let goes = matches!(&command, Command::DeleteVolume { .. });
        self.drop_places(&command, &mut new)?;
        if new.apply(command.clone(), entropy()?)?.is_empty() && !goes {
            return Ok(paper.clone());
        }
        // A pool that is new is up by the time its volumes are made.
        if !matches!(&command, Command::CreateVolume(s) if !real.pools.contains_key(&s.pool)) {
            self.check_ready(&command, &real)?;
        }
        self.check_none_left(&real, &new)?;
        self.check_unused(&command, &real).await?;
        if let Command::DeleteVolume { name } = &command {
            self.check_pool_up(&real.volume(name)?.pool)?;
        }
        known.check(paper, &new)?;
        known.remember(known.taken(paper, &new));
        match &command {
            Command::CreatePool(PoolSpec { name, .. }) | Command::PatchPool { name, .. } => {
                assume_sizes(&mut new, name)?;
            }
            Command::DeleteVolume { name } => {
                drop(new.apply(Command::ForgetVolume { name: name.clone() }, 0)?);
            }
            _ => {}
        }
        Ok(Arc::new(new))
    }
}

/// Gives new devices of a pool that nobody has looked at a size.
fn assume_sizes(model: &mut Model, name: &str) -> Result<()> {
    let devices = &model.pool(name)?.devices;
    let size = |d: &crate::model::Device| DeviceFound {
        size: if d.new && d.size == 0 { UNKNOWN_SIZE } else { d.size },
        labelled: d.labelled,
        identity: d.identity.clone(),
        gained: 0,
    };
    let sizes = devices.iter().map(size).collect();
    model.apply(Command::SizePool { name: name.to_string(), sizes }, 0).map(drop)
}
