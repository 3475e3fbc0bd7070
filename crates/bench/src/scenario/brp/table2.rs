//! S1 table 2: one 4 KiB I/O at a time.

use super::{BARE, CACHED, VOLUME, Via, all, method, target};
use crate::brp::Variant;
use crate::job::Rw;
use crate::scenario::page::{Page, Section, Table};
use crate::scenario::runner::Runner;
use crate::scenario::{Scenario, ScenarioError};
use crate::units;
use serde_json::json;

pub(in crate::scenario) const TABLE2: Scenario = Scenario {
    name: "brp-table2",
    title: "S1 table 2: latency of SRP and BRP, one 4 KiB I/O at a time",
    run,
};

fn run(r: &Runner<'_>) -> Result<Page, ScenarioError> {
    let t = target(r)?;
    let head = [
        "I/O",
        "bare us",
        "SRP us",
        "BRP us",
        "BRP, no checksums us",
        "SRP, CRC us",
        "BRP / SRP",
        "BRP / SRP, CRC",
        "BRP / bare",
        "goal",
        "met",
    ];
    let mut table = Table::new(&head);
    let (mut data, mut passed, mut failed) = (Vec::new(), 0, 0);
    for (size, rw) in
        [CACHED, VOLUME].into_iter().flat_map(|s| [(s, Rw::RandRead), (s, Rw::RandWrite)])
    {
        let bare = if size == VOLUME { Via::BareMemory } else { Via::Bare };
        let ways = [bare, Via::Srp, Via::Brp(Variant::Auto), Via::Plain, Via::SrpCrc];
        let p = all(r, &t, &r.job(rw, 4096, 1, size), &ways)?;
        let us: Vec<f64> = p.iter().map(|p| p.mean / 1e3).collect();
        let (srp, bare) = (us[2] / us[1], us[2] / us[0]);
        let met = bare <= 1.25 && srp < 1.0;
        *(if met { &mut passed } else { &mut failed }) += 1;
        let mut row = vec![format!("{}, {}", rw.name(), units::size(size))];
        row.extend(us.iter().map(|u| units::three(*u)));
        row.extend([srp, us[2] / us[4], bare].map(|x| format!("{x:.2}")));
        row.extend(["<= 1.25 bare, < SRP".into(), if met { "yes" } else { "no" }.into()]);
        table.row(row);
        data.push(json!({ "rw": rw.name(), "range": size, "bare_us": us[0], "srp_us": us[1], "brp_us": us[2], "plain_us": us[3],
            "srp_crc_us": us[4] }));
    }
    Ok(Page {
        intro: "S1 compares whole kernel paths by dd: reads 63 us with SRP and 43 us with BRP (0.68), writes 75 and 54 us \
                (0.72). Here both initiators are user-space programs over the same fabric, so what is left of the \
                difference is the protocol. SRP has no checksums of its own; with *CRC* its stream has MPA's, which covers the \
                wire and, unlike BRP's, nothing behind it."
            .into(),
        method: method(r, "one 4 KiB I/O at a time at random addresses") + BARE,
        sections: vec![Section::Table(table)],
        data: json!(data),
        frame: None,
        passed,
        failed,
    })
}
