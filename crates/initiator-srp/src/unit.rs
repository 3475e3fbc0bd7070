//! Which logical units a target has.

use crate::error::Error;
use crate::queue::Queue;
use weir_proto_scsi::Lun;
use weir_proto_scsi::initiator::{self as build, BlockLimits};

/// A logical unit as it describes itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogicalUnit {
    /// Its number.
    pub lun: Lun,
    /// Peripheral device type; 0 is a disk.
    pub device_type: u8,
    /// Vendor.
    pub vendor: String,
    /// Product.
    pub product: String,
    /// Revision.
    pub revision: String,
    /// Unit serial number (VPD page 80h).
    pub serial: Option<String>,
    /// NAA designator (VPD page 83h): the same for the same unit, whatever the path.
    pub naa: Option<Vec<u8>>,
    /// Capacity in bytes; 0 when the unit does not tell.
    pub len: u64,
    /// Bytes of a logical block; 0 when the unit does not tell.
    pub block_size: u32,
    /// Bytes of a physical block.
    pub physical_block: u32,
    /// UNMAP gives space back.
    pub unmap: bool,
    /// VPD page B0h.
    pub limits: Option<BlockLimits>,
}

impl Queue {
    /// All units that the target shows to this host.
    ///
    /// # Errors
    /// What the target said to REPORT LUNS, or that the path is down.
    pub async fn scan(&self) -> Result<Vec<LogicalUnit>, Error> {
        let luns = self.luns().await?;
        let mut all = Vec::with_capacity(luns.len());
        for lun in luns {
            match self.identify(lun).await {
                Ok(u) => all.push(u),
                // It went away meanwhile, or is something else than a unit.
                Err(Error::Scsi { .. } | Error::Invalid(_)) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(all)
    }

    /// Numbers of the units that the target shows to this host.
    pub(crate) async fn luns(&self) -> Result<Vec<Lun>, Error> {
        const ALLOC: usize = 16 << 10;
        let list = self.ask(Lun::ZERO, &build::report_luns(ALLOC as u32), ALLOC).await?;
        build::parse_report_luns(&list)
            .map_err(|_| Error::Invalid("REPORT LUNS data is cut short".into()))
    }

    /// The unit's NAA designator.
    pub(crate) async fn naa(&self, lun: Lun) -> Result<Option<Vec<u8>>, Error> {
        let page = self.page(lun, 0x83).await?;
        Ok(page.and_then(|b| build::parse_naa(&b).map(<[u8]>::to_vec)))
    }

    /// The unit's size in bytes, asked for now.
    ///
    /// # Errors
    /// What the target said to READ CAPACITY, or that the path is down.
    pub async fn size(&self, lun: Lun) -> Result<u64, Error> {
        let c = self.capacity(lun).await?;
        Ok(c.last_lba.saturating_add(1).saturating_mul(c.block_size.into()))
    }

    /// Names that the target gave to the unit: vendor specific designators (VPD page 83h, type 0) of the logical
    /// unit in ASCII or UTF-8, where Weir puts the volume's name. A unit without the page has no names.
    pub async fn names(&self, lun: Lun) -> Vec<String> {
        let Ok(Some(page)) = self.page(lun, 0x83).await else { return Vec::new() };
        let Some(all) = build::parse_designators(&page) else { return Vec::new() };
        all.filter(|d| (d.association, d.kind) == (0, 0) && matches!(d.code_set, 2 | 3))
            .filter_map(|d| std::str::from_utf8(d.value).ok())
            .map(|s| s.trim_matches(['\0', ' ']).to_owned())
            .filter(|s| !s.is_empty())
            .collect()
    }

    /// What a unit says of itself.
    ///
    /// # Errors
    /// What the target said to INQUIRY, or that the path is down.
    pub async fn identify(&self, lun: Lun) -> Result<LogicalUnit, Error> {
        self.forget(lun);
        let b = self.ask(lun, &build::inquiry(96), 96).await?;
        let i = build::parse_inquiry(&b)
            .map_err(|_| Error::Invalid("INQUIRY data is cut short".into()))?;
        if i.qualifier != 0 {
            return Err(Error::Invalid(format!(
                "no unit at this number (qualifier {})",
                i.qualifier
            )));
        }
        let pages = self.page(lun, 0x00).await?;
        let has = |p: u8| {
            let body = pages.as_deref().and_then(|b| build::vpd_body(b, 0x00));
            body.is_some_and(|b| b.contains(&p))
        };
        let mut page = [const { None }; 4];
        for (slot, code) in page.iter_mut().zip([0x80, 0x83, 0xb0, 0xb2]) {
            if has(code) {
                *slot = self.page(lun, code).await?;
            }
        }
        let [serial, designators, limits, provisioning] = page;
        let capacity = match self.capacity(lun).await {
            Ok(c) => Some(c),
            Err(Error::Scsi { .. } | Error::Invalid(_)) => None,
            Err(e) => return Err(e),
        };
        Ok(LogicalUnit {
            lun,
            device_type: i.device_type,
            vendor: i.vendor,
            product: i.product,
            revision: i.revision,
            serial: serial.and_then(|b| build::parse_serial(&b)),
            naa: designators.and_then(|b| build::parse_naa(&b).map(<[u8]>::to_vec)),
            len: capacity
                .map_or(0, |c| c.last_lba.saturating_add(1).saturating_mul(c.block_size.into())),
            block_size: capacity.map_or(0, |c| c.block_size),
            physical_block: capacity.map_or(0, |c| c.block_size << c.physical_exponent),
            unmap: provisioning
                .and_then(|b| build::parse_provisioning(&b))
                .is_some_and(|p| p.unmap),
            limits: limits.and_then(|b| build::parse_block_limits(&b)),
        })
    }

    /// A VPD page; `None` when the unit has none of this number.
    pub(crate) async fn page(&self, lun: Lun, code: u8) -> Result<Option<Vec<u8>>, Error> {
        match self.ask(lun, &build::vpd(code, 4096), 4096).await {
            Ok(b) => Ok(Some(b)),
            Err(Error::Scsi { .. }) => Ok(None),
            Err(e) => Err(e),
        }
    }
}
