//! `weir inquiry`.

use super::remote;
use crate::cli::args::InquiryArgs;
use crate::cli::output;
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::ExitCode;
use weir_control::units::format_size;
use weir_control::{Code, Error, Result};
use weir_initiator_srp::Channel;
use weir_proto_scsi::initiator as scsi;
use weir_proto_scsi::lun::Lun;

/// What a unit says of itself.
#[derive(Debug, Default, Serialize)]
struct Unit {
    /// Where it was seen, if several addresses were asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    lun: u16,
    /// The target has one at this number.
    #[serde(skip)]
    is_there: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    vendor: String,
    product: String,
    revision: String,
    device_type: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    serial: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    naa: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    block_size: Option<u32>,
    /// Pages in hexadecimal.
    pages: BTreeMap<String, String>,
}

/// Runs the command.
pub(crate) fn inquiry(args: InquiryArgs) -> anyhow::Result<ExitCode> {
    let (json, raw) = (args.json, args.raw);
    let login = remote::login(&args.login, &args.lun.target, None);
    let units = remote::on_reactor(&login, move |provider| {
        Box::pin(async move {
            let mut units = Vec::new();
            let several = args.lun.target.len() > 1;
            for target in &args.lun.target {
                let channel = remote::connect(&*provider, *target, &args.login, 32).await?;
                let luns = if args.all {
                    remote::luns(&channel).await?
                } else {
                    vec![remote::find(&channel, args.lun.lun, args.lun.volume.as_deref()).await?]
                };
                for lun in luns {
                    let at = several.then(|| target.to_string());
                    let unit = look(&channel, lun, args.page).await?;
                    if !args.all && !unit.is_there {
                        return Err(no_unit(*target, unit.lun));
                    }
                    units.push(Unit { target: at, ..unit });
                }
            }
            Ok(units)
        })
    })?;
    output::show(json, &units, |u| u.iter().map(|u| text(u, raw)).collect::<Vec<_>>().join("\n"))?;
    Ok(ExitCode::SUCCESS)
}

fn no_unit(target: SocketAddr, lun: u16) -> Error {
    Error::new(
        Code::VolumeNotFound,
        format!("the target at {target} has no LUN {lun} for this host"),
    )
    .because("it says that there is no unit at this number")
    .hint("`--all` shows those that there are; `weir map create` maps a volume to a host")
}

fn hex(b: &[u8]) -> String {
    b.iter().map(|x| format!("{x:02x}")).collect()
}

async fn look(channel: &Channel, lun: Lun, page: Option<u8>) -> Result<Unit> {
    let mut unit = Unit { lun: lun.index().unwrap_or(0), ..Unit::default() };
    let b = remote::ask(channel, lun, &scsi::inquiry(96).padded(), 96).await?;
    unit.pages.insert("standard".into(), hex(&b));
    if let Ok(i) = scsi::parse_inquiry(&b) {
        unit.vendor = i.vendor.trim().to_owned();
        unit.product = i.product.trim().to_owned();
        unit.revision = i.revision.trim().to_owned();
        unit.device_type = i.device_type;
    }
    // Qualifier 011b: there is no unit, so there are no pages either.
    if b.first().is_none_or(|q| q >> 5 != 0) {
        return Ok(unit);
    }
    unit.is_there = true;
    let listed = remote::ask(channel, lun, &scsi::vpd(0, 255).padded(), 255).await?;
    let known = scsi::vpd_body(&listed, 0).unwrap_or(&[]).to_vec();
    let wanted = page.map_or(known, |p| vec![p]);
    for p in wanted {
        let b = remote::ask(channel, lun, &scsi::vpd(p, 1024).padded(), 1024).await?;
        match p {
            0x80 => unit.serial = scsi::parse_serial(&b),
            0x83 => {
                unit.naa = scsi::parse_naa(&b).map(hex);
                unit.name = remote::name(channel, lun).await;
            }
            _ => {}
        }
        unit.pages.insert(format!("{p:02x}"), hex(&b));
    }
    if let Ok(r) = remote::Remote::capacity(channel, lun).await {
        (unit.bytes, unit.block_size) = (Some(r.0), Some(r.1));
    }
    Ok(unit)
}

fn text(u: &Unit, raw: bool) -> String {
    let at = u.target.as_deref().map(|t| format!("{t} ")).unwrap_or_default();
    let mut t = format!("{at}LUN {}: {} {} {}", u.lun, u.vendor, u.product, u.revision);
    if let Some(n) = &u.name {
        t += &format!(", volume {n}");
    }
    t.push('\n');
    if let (Some(b), Some(s)) = (u.bytes, u.block_size) {
        t += &format!("  capacity {} ({b} bytes) in blocks of {s}\n", format_size(b));
    }
    for (what, value) in [("serial", &u.serial), ("NAA", &u.naa)] {
        if let Some(v) = value {
            t += &format!("  {what} {v}\n");
        }
    }
    if raw {
        for (p, bytes) in &u.pages {
            t += &format!("  page {p}: {bytes}\n");
        }
    } else {
        let pages: Vec<_> =
            u.pages.keys().filter(|p| *p != "standard").map(String::as_str).collect();
        t += &format!("  pages {}\n", pages.join(" "));
    }
    t
}
