//! Results as text like fio's, and as JSON with fio's field names.

use crate::engine::{JobResult, OpResult};
use crate::histogram::Histogram;
use crate::job::{JobSpec, Op};
use crate::units;
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// Percentiles that fio gives unless it is told otherwise.
pub const PERCENTILES: &[f64] = &[
    1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95,
    99.99,
];

/// What was done and what came of it.
#[derive(Debug, Clone)]
pub struct Report {
    /// The job.
    pub spec: JobSpec,
    /// All copies as one.
    pub all: JobResult,
    /// Percentiles of the latency to give.
    pub percentiles: Vec<f64>,
    /// Where the load went, for people: `srp 192.0.2.7:5555 volume fast`.
    pub target: String,
    /// When the run ended, in seconds since 1970.
    pub unix_time: u64,
    /// Version of the program.
    pub version: String,
}

/// A latency distribution in fio's form.
pub fn latency(h: &Histogram, percentiles: &[f64]) -> Value {
    let mut v = json!({
        "min": h.min(),
        "max": h.max(),
        "mean": round(h.mean(), 6),
        "stddev": round(h.stddev(), 6),
        "N": h.count(),
    });
    if h.count() > 0 {
        let p: Map<String, Value> =
            percentiles.iter().map(|p| (format!("{p:.6}"), h.percentile(*p).into())).collect();
        v["percentile"] = p.into();
    }
    v
}

fn round(v: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (v * scale).round() / scale
}

impl Report {
    /// True when every I/O ended well and every checked block was right.
    pub fn is_clean(&self) -> bool {
        self.all.errors == 0 && self.all.verify.errors == 0 && !self.all.lost
    }

    fn per_second(&self, n: u64) -> f64 {
        crate::engine::per_second(n, self.all.runtime)
    }

    fn op(&self, o: &OpResult) -> Value {
        let bw = self.per_second(o.bytes);
        json!({
            "io_bytes": o.bytes,
            "io_kbytes": o.bytes >> 10,
            "bw_bytes": bw as u64,
            "bw": (bw / 1024.0) as u64,
            "iops": round(self.per_second(o.ios), 6),
            "runtime": self.all.runtime / 1_000_000,
            "total_ios": o.ios,
            "short_ios": 0,
            "drop_ios": 0,
            "clat_ns": latency(&o.latency, &self.percentiles),
            // Submission is part of it: what is submitted was not queued before.
            "lat_ns": latency(&o.latency, &[]),
        })
    }

    /// The whole as JSON: fio's `jobs` with one entry for all copies (`group_reporting`), and next to it
    /// the figures of all kinds of I/O together.
    pub fn json(&self) -> Value {
        let s = &self.spec;
        let total = self.all.total();
        let mut options = json!({
            "name": s.name,
            "rw": s.rw.name(),
            "bs": s.bs.to_string(),
            "iodepth": s.iodepth.to_string(),
            "numjobs": s.numjobs.to_string(),
            "offset": s.offset.to_string(),
            "rwmixread": s.rwmixread.to_string(),
            "randseed": s.randseed.to_string(),
        });
        let optional = [
            ("size", s.size.map(|v| v.to_string())),
            ("runtime", s.runtime.map(|v| format!("{}", v as f64 / 1e9))),
            ("time_based", s.time_based.then(|| "1".to_owned())),
            ("ramp_time", (s.ramp > 0).then(|| format!("{}", s.ramp as f64 / 1e9))),
            ("rate", s.rate.map(|v| v.to_string())),
            ("rate_iops", s.rate_iops.map(|v| v.to_string())),
            ("verify", s.verify.map(|v| v.name().to_owned())),
        ];
        for (k, v) in optional {
            if let Some(v) = v {
                options[k] = v.into();
            }
        }
        let a = &self.all;
        // fio gives an errno: EIO for failed I/Os, EILSEQ for wrong data.
        let error = if a.errors > 0 || a.lost {
            5
        } else if a.verify.errors > 0 {
            84
        } else {
            0
        };
        let mut job = json!({
            "jobname": s.name,
            "groupid": 0,
            "error": error,
            "elapsed": a.runtime.div_ceil(1_000_000_000),
            "job options": options,
            "job_runtime": a.runtime / 1_000_000,
            "total_err": a.errors,
            "first_error": a.first_error,
        });
        for op in Op::ALL {
            // fio has no commands without data; they are there when they were asked for.
            if op != Op::Nop || a.of(op).ios > 0 {
                job[op.name()] = self.op(a.of(op));
            }
        }
        let mut v = json!({
            "weir version": self.version,
            "timestamp": self.unix_time,
            "time": units::date(self.unix_time),
            "target": self.target,
            "jobs": [job],
            "iops": round(self.per_second(total.ios), 6),
            "bw": (self.per_second(total.bytes) / 1024.0) as u64,
            "bw_bytes": self.per_second(total.bytes) as u64,
            "clat": latency(&total.latency, &self.percentiles),
            "runtime": a.runtime / 1_000_000,
            "total_ios": total.ios,
            "io_bytes": total.bytes,
            "errors": a.errors,
        });
        v["clat_ns"] = v["clat"].clone();
        if let Some(kind) = s.verify {
            v["verify"] = json!({
                "kind": kind.name(),
                "checked_ios": a.verify.checked,
                "checked_bytes": a.verify.bytes,
                "unknown_ios": a.verify.unknown,
                "errors": a.verify.errors,
                "first": a.verify.bad.iter().map(ToString::to_string).collect::<Vec<_>>(),
            });
        }
        v
    }

    /// The whole for people.
    pub fn text(&self) -> String {
        let a = &self.all;
        let mut t = format!("{}\ntarget: {}\n", self.spec.summary(), self.target);
        for op in Op::ALL {
            let o = a.of(op);
            if o.ios == 0 {
                continue;
            }
            let iops = units::si(self.per_second(o.ios));
            let seconds = a.runtime as f64 / 1e9;
            if op == Op::Nop {
                let _ = writeln!(t, "  {}: IOPS={iops} ({} in {seconds:.2} s)", op.name(), o.ios);
            } else {
                let _ = writeln!(
                    t,
                    "  {}: IOPS={iops}, BW={} ({} I/Os, {} MiB in {seconds:.2} s)",
                    op.name(),
                    units::bandwidth(self.per_second(o.bytes)),
                    o.ios,
                    o.bytes >> 20,
                );
            }
            self.latencies(&o.latency, &mut t);
        }
        if a.ops.iter().all(|o| o.ios == 0) {
            t += "  no I/O ended well within the time of measurement\n";
        }
        if self.spec.verify.is_some() {
            let v = &a.verify;
            let _ = writeln!(
                t,
                "  verify: {} I/Os ({} MiB) checked, {} wrong",
                v.checked,
                v.bytes >> 20,
                v.errors
            );
            if v.unknown > 0 {
                let _ =
                    writeln!(t, "    {} reads met blocks that this run had not written", v.unknown);
            }
            for b in &v.bad {
                let _ = writeln!(t, "    {b}");
            }
        }
        if let Some(first) = &a.first_error {
            let _ = writeln!(t, "  errors: {}; the first: {first}", a.errors);
        }
        if a.lost {
            t += "  the connection was lost; what ran on it ended early\n";
        }
        t
    }

    fn latencies(&self, h: &Histogram, t: &mut String) {
        let (div, unit) = match h.mean() {
            m if m >= 1e7 => (1e6, "msec"),
            m if m >= 1e4 => (1e3, "usec"),
            _ => (1.0, "nsec"),
        };
        let show = |v: f64| if div == 1.0 { format!("{v:.0}") } else { format!("{:.2}", v / div) };
        let _ = writeln!(
            t,
            "    clat ({unit}): min={}, max={}, avg={}, stdev={}",
            show(h.min() as f64),
            show(h.max() as f64),
            show(h.mean()),
            show(h.stddev())
        );
        let _ = writeln!(t, "    clat percentiles ({unit}):");
        for row in self.percentiles.chunks(4) {
            let cells: Vec<String> = row
                .iter()
                .map(|p| format!("{p:>6.2}th=[{:>8}]", show(h.percentile(*p) as f64)))
                .collect();
            let _ = writeln!(t, "     | {}", cells.join(", "));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Rw, Verify};
    use crate::verify::{BadBlock, Fault};

    fn report() -> Report {
        let mut all = JobResult { runtime: 2_000_000_000, ..JobResult::default() };
        let r = &mut all.ops[Op::Read as usize];
        r.ios = 4000;
        r.bytes = 4000 * 4096;
        (1..=4000).for_each(|i| r.latency.record(i * 100));
        Report {
            spec: JobSpec { rw: Rw::RandRead, ..JobSpec::default() },
            all,
            percentiles: PERCENTILES.to_vec(),
            target: "srp test".into(),
            unix_time: 1_426_587_630,
            version: "0".into(),
        }
    }

    #[test]
    fn json_has_fios_fields_with_fios_units() {
        let v = report().json();
        let read = &v["jobs"][0]["read"];
        assert_eq!(read["iops"], 2000.0);
        assert_eq!(read["bw"], 8000);
        assert_eq!(read["bw_bytes"], 8_192_000);
        assert_eq!(read["total_ios"], 4000);
        assert_eq!(read["runtime"], 2000);
        assert_eq!(read["clat_ns"]["N"], 4000);
        assert_eq!(read["clat_ns"]["min"], 100);
        assert_eq!(read["clat_ns"]["max"], 400_000);
        assert_eq!(read["clat_ns"]["mean"], 200_050.0);
        let p99 = read["clat_ns"]["percentile"]["99.000000"].as_u64().unwrap();
        assert!(p99.abs_diff(396_000) < 4000, "{p99}");
        assert_eq!(v["jobs"][0]["write"]["total_ios"], 0);
        assert_eq!(v["jobs"][0]["error"], 0);
        assert_eq!(v["jobs"][0]["job options"]["rw"], "randread");
        assert_eq!((v["iops"].as_f64(), v["bw"].as_u64()), (Some(2000.0), Some(8000)));
        assert_eq!(v["clat"], read["clat_ns"]);
        assert_eq!(v["time"], "2015-03-17 10:20:30 UTC");
    }

    #[test]
    fn text_says_the_same() {
        let t = report().text();
        assert!(t.contains("read: IOPS=2000, BW=7.81 MiB/s (8.19 MB/s)"), "{t}");
        assert!(t.contains("clat (usec): min=0.10, max=400.00, avg=200.05"), "{t}");
        assert!(t.contains(" 99.99th=["), "{t}");
    }

    #[test]
    fn wrong_blocks_and_errors_are_told() {
        let mut r = report();
        assert!(r.is_clean());
        r.spec.verify = Some(Verify::Crc32c);
        r.all.verify.errors = 1;
        r.all.verify.bad.push(BadBlock { at: 8192, fault: Fault::NoStamp });
        assert!(!r.is_clean());
        assert_eq!(r.json()["verify"]["errors"], 1);
        assert_eq!(r.json()["jobs"][0]["error"], 84);
        assert!(r.text().contains("the block at byte 8192 carries no stamp"));
        r.all.errors = 3;
        r.all.first_error = Some("write at byte 0: x".into());
        assert_eq!(r.json()["jobs"][0]["error"], 5);
        assert!(r.text().contains("errors: 3; the first: write at byte 0: x"));
    }
}
