//! `weir attach` and `weir detach`.

use super::{LoginArgs, Policy};
use crate::cli::parse;
use clap::{Args, ValueEnum};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use weir_control::{Code, Error};

/// How the volume is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum AttachProtocol {
    /// BRP; SRP if no target speaks that.
    Auto,
    /// BRP, without a SCSI layer.
    Brp,
    /// SRP, also of targets that are not Weir's.
    Srp,
}

/// How the kernel is given the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum AttachMethod {
    /// The best that the kernel has.
    Auto,
    /// The driver for block devices in user space (Linux 6.0, ublk_drv).
    Ublk,
    /// The driver for network block devices (nbd), on sockets to this process.
    Nbd,
    /// A FUSE file and a loop device.
    Fuse,
}

/// Where attachments are kept.
#[derive(Debug, Clone, Args)]
pub(crate) struct RunDir {
    /// Directory with what is known of attachments.
    #[arg(
        long,
        env = "WEIR_RUN_DIR",
        default_value = weir_attach::state::RUN_DIR,
        value_name = "DIR",
        help_heading = "Attachment"
    )]
    pub(crate) run_dir: PathBuf,
}

impl RunDir {
    /// The command that takes a disk away.
    pub(crate) fn detach(&self, name: &str) -> String {
        match self.run_dir == Path::new(weir_attach::state::RUN_DIR) {
            true => format!("weir detach {name}"),
            false => format!("weir detach {name} --run-dir {}", self.run_dir.display()),
        }
    }
}

/// `weir attach`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  weir attach db-01\n  weir attach db-01 --target 192.0.2.7 --target 192.0.3.7\n  \
    weir attach db-01 --target 192.0.2.7 --protocol srp --read-only --json\n  weir attach --list\n\n\
    A volume of the local daemon that is not mapped to this host is mapped to it for as long as it is attached, unless \
    --no-map is given. The disk is /dev/weir/NAME. Its I/O waits while no target answers, and goes on when one does, unless --fail-after \
    says otherwise. `weir detach NAME` takes it away. See docs/attach.md."
)]
pub(crate) struct AttachArgs {
    /// The volume's name.
    #[arg(required_unless_present_any = ["list", "lun"])]
    pub(crate) volume: Option<String>,
    /// List what is attached.
    #[arg(long, conflicts_with_all = ["volume", "target", "lun"])]
    pub(crate) list: bool,
    /// The target's address, HOST or HOST:PORT (5556 for BRP, 5555 for SRP). Repeated: further paths to the same volume,
    /// on the same target or others [default: where the local daemon listens].
    #[arg(long, short, value_parser = parse::target, value_name = "ADDRESS")]
    pub(crate) target: Vec<SocketAddr>,
    /// The volume's number for this host (LUN), instead of its name.
    #[arg(long, value_parser = clap::value_parser!(u16).range(..=16383), conflicts_with = "volume")]
    pub(crate) lun: Option<u16>,
    /// How the volume is reached.
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) protocol: AttachProtocol,
    /// Make no host and no mapping at the local daemon: refuse when the volume is not mapped to this host. Without it they
    /// are made when they are missing, and go with the attachment.
    #[arg(long)]
    pub(crate) no_map: bool,
    /// File with the secret of this host, which target and host prove to each other; by BRP only (docs/security.md).
    #[arg(long, value_name = "FILE")]
    pub(crate) secret_file: Option<PathBuf>,
    /// How several SRP paths are used; BRP uses one at a time.
    #[arg(long, value_enum, value_name = "POLICY", default_value = "active-passive")]
    pub(crate) multipath: Policy,
    /// How the kernel is given the disk.
    #[arg(
        long,
        visible_alias = "backend",
        value_enum,
        default_value = "auto",
        help_heading = "Attachment"
    )]
    pub(crate) method: AttachMethod,
    /// Queues, each with a thread and connections of its own [default: half the cores, at most 4].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64), help_heading = "Attachment")]
    pub(crate) queues: Option<u16>,
    /// Refuse writes.
    #[arg(long, help_heading = "Attachment")]
    pub(crate) read_only: bool,
    /// The attachment's name, and the disk's in /dev/weir [default: the volume's].
    #[arg(long, help_heading = "Attachment")]
    pub(crate) name: Option<String>,
    /// Give the host an I/O error when a request could not be done for so long [default: never].
    #[arg(long, value_parser = parse::duration, value_name = "TIME", help_heading = "Attachment")]
    pub(crate) fail_after: Option<Duration>,
    /// Serve the disk in this process, until it is detached or Ctrl-C.
    #[arg(long, help_heading = "Attachment")]
    pub(crate) foreground: bool,
    /// This is the process in the background: it reports to the one that started it.
    #[arg(long, hide = true)]
    pub(crate) background_child: bool,
    #[command(flatten)]
    pub(crate) run: RunDir,
    #[command(flatten)]
    pub(crate) login: LoginArgs,
    /// From the global `--json`.
    #[arg(skip)]
    pub(crate) json: bool,
}

impl AttachArgs {
    /// What the parser cannot see.
    pub(crate) fn check(&self) -> weir_control::Result<()> {
        if self.secret_file.is_some() && self.protocol == AttachProtocol::Srp {
            return Err(Error::new(Code::InvalidRequest, "SRP has no secrets")
                .because("neither side can prove anything at its logins")
                .hint("leave --protocol or --secret-file out"));
        }
        if self.lun.is_some() && self.name.is_none() {
            return Err(Error::new(Code::InvalidRequest, "the attachment needs a name")
                .because("the volume is given by its number")
                .hint("add --name"));
        }
        Ok(())
    }
}

/// `weir detach`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  weir detach db-01\n  weir detach db-01 --force\n\n\
    Flushes the disk and takes it away. A disk in use is left alone, unless --force is given; what has not been written to \
    the volume is lost then. What was made for it at the daemon and cannot be taken back is said, and known until a later \
    `weir detach` takes it back, or forgets it by --force.")]
pub(crate) struct DetachArgs {
    /// The attachment's name; `weir attach --list` shows all.
    pub(crate) name: String,
    /// Take it away also when it is in use or no target answers, and lose what is not written.
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) run: RunDir,
    /// From the global `--json`.
    #[arg(skip)]
    pub(crate) json: bool,
}
