//! Prometheus text format, version 0.0.4.

use crate::live::{PoolCounters, PoolDeviceLive, Status};
use crate::model::Model;
use std::fmt::Write;

struct Text(String);

impl Text {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.0.push_str(name);
        for (i, (key, text)) in labels.iter().enumerate() {
            let open = if i == 0 { '{' } else { ',' };
            let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.0, "{open}{key}=\"{text}\"");
        }
        if !labels.is_empty() {
            self.0.push('}');
        }
        let _ = writeln!(self.0, " {value}");
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.family(name, "gauge", help);
        self.sample(name, &[], value);
    }
}

/// All metrics of the node.
pub(super) fn text(status: &Status, model: &Model) -> String {
    let mut t = Text(String::with_capacity(16 << 10));
    t.family("weir_info", "gauge", "Version of the daemon; always 1.");
    t.sample("weir_info", &[("version", &status.version)], 1.0);
    t.gauge(
        "weir_uptime_seconds",
        "Seconds since the daemon started.",
        status.uptime_seconds as f64,
    );
    t.gauge("weir_config_revision", "Revision of the configuration.", status.revision as f64);
    let starting = f64::from(u8::from(status.starting.is_some()));
    t.gauge("weir_starting", "1 until what is configured is in effect, or a fault.", starting);
    t.gauge("weir_faults", "Objects that are not well.", status.faults.len() as f64);
    pools(&mut t, status, model);
    volumes(&mut t, status, model);
    ports(&mut t, status);
    reactors(&mut t, status);
    t.0
}

fn pools(t: &mut Text, status: &Status, model: &Model) {
    let mut infos: Vec<_> = model.pools.keys().filter_map(|n| model.pool_info(n).ok()).collect();
    let live = &status.live.pools;
    for p in infos.iter_mut().filter(|p| p.protection.is_some()) {
        let found = live.iter().find(|l| l.name == p.name);
        (p.capacity, p.free) = found.map_or((0, 0), |l| (l.total, l.free));
    }
    t.family("weir_pool_capacity_bytes", "gauge", "Bytes that volumes can be laid out on.");
    for p in &infos {
        t.sample("weir_pool_capacity_bytes", &[("pool", &p.name)], p.capacity as f64);
    }
    t.family("weir_pool_free_bytes", "gauge", "Bytes that belong to no volume.");
    for p in &infos {
        t.sample("weir_pool_free_bytes", &[("pool", &p.name)], p.free as f64);
    }
    if live.is_empty() {
        return;
    }
    t.family("weir_pool_room_bytes", "gauge", "Bytes that hosts can write before it is full.");
    for l in live {
        t.sample("weir_pool_room_bytes", &[("pool", &l.name)], l.room as f64);
    }
    t.family("weir_pool_healthy", "gauge", "1 when every block has all its copies.");
    for l in live {
        let healthy = f64::from(u8::from(l.state == "healthy"));
        t.sample("weir_pool_healthy", &[("pool", &l.name)], healthy);
    }
    let each = |t: &mut Text, name: &str, help: &str, f: fn(&PoolCounters) -> u64| {
        t.family(name, "counter", help);
        for l in live {
            t.sample(name, &[("pool", &l.name)], f(&l.counters) as f64);
        }
    };
    let blocks = "Blocks of 4096 bytes";
    let help = |what: &str| format!("{blocks} {what}.");
    let written = help("written by volumes");
    each(t, "weir_pool_blocks_written_total", &written, |c| c.blocks_written);
    each(t, "weir_pool_blocks_read_total", &help("read by volumes"), |c| c.blocks_read);
    let media = help("written to devices");
    each(t, "weir_pool_media_blocks_total", &media, |c| c.media_writes);
    each(
        t,
        "weir_pool_damaged_total",
        "Copies found damaged, each once until it is mended.",
        |c| c.damaged,
    );
    each(t, "weir_pool_repaired_total", "Damaged copies mended.", |c| c.repaired);
    each(t, "weir_pool_lost_total", "Blocks found without a good copy, each once.", |c| c.lost);
    let device = |t: &mut Text, name: &str, help: &str, f: fn(&PoolDeviceLive) -> u64| {
        t.family(name, "counter", help);
        for (l, d) in live.iter().flat_map(|l| l.devices.iter().map(move |d| (l, d))) {
            let path = d.path.as_deref().unwrap_or_default();
            let labels = [("pool", l.name.as_str()), ("device", &d.id), ("path", path)];
            t.sample(name, &labels, f(d) as f64);
        }
    };
    let damaged = "Copies found damaged on a device, over restarts.";
    device(t, "weir_pool_device_damaged_total", damaged, |d| d.damaged);
    let unread = "Reads of a device that failed though it answered, over restarts.";
    device(t, "weir_pool_device_unread_total", unread, |d| d.unread);
}

fn volumes(t: &mut Text, status: &Status, model: &Model) {
    t.family("weir_volume_size_bytes", "gauge", "Size of the volume.");
    for v in model.volumes.values() {
        t.sample(
            "weir_volume_size_bytes",
            &[("volume", &v.name), ("pool", &v.pool)],
            v.size as f64,
        );
    }
    let live = &status.live.volumes;
    let each = |t: &mut Text,
                name: &str,
                kind: &str,
                help: &str,
                f: &dyn Fn(&crate::live::IoStats) -> f64| {
        t.family(name, kind, help);
        for v in live {
            t.sample(name, &[("volume", &v.name), ("direction", "read")], f(&v.read));
            t.sample(name, &[("volume", &v.name), ("direction", "write")], f(&v.write));
        }
    };
    each(t, "weir_volume_ios_total", "counter", "I/Os finished well.", &|s| s.ops as f64);
    each(t, "weir_volume_bytes_total", "counter", "Bytes moved.", &|s| s.bytes as f64);
    each(t, "weir_volume_errors_total", "counter", "I/Os that failed.", &|s| s.errors as f64);
    let name = "weir_volume_latency_seconds";
    t.family(name, "gauge", "Latency of recent I/Os by quantile.");
    for v in live {
        for (direction, s) in [("read", &v.read), ("write", &v.write)] {
            let l = &s.latency;
            let quantiles =
                [("0.5", l.p50_ns), ("0.95", l.p95_ns), ("0.99", l.p99_ns), ("0.999", l.p999_ns)];
            for (quantile, ns) in quantiles {
                let labels =
                    [("volume", v.name.as_str()), ("direction", direction), ("quantile", quantile)];
                t.sample(name, &labels, ns as f64 / 1e9);
            }
        }
    }
    let all = || live.iter().filter_map(|v| Some((v, v.compression?)));
    t.family(
        "weir_volume_stored_bytes",
        "gauge",
        "Bytes that a compressed or deduplicated volume takes in its pool.",
    );
    for v in live {
        let (c, d) = (v.compression.map(|c| c.stored_bytes), v.deduplication);
        if let Some(stored) = c.or(d.map(|d| d.stored_bytes)) {
            t.sample("weir_volume_stored_bytes", &[("volume", &v.name)], stored as f64);
        }
    }
    t.family("weir_volume_saved_bytes", "gauge", "Bytes that compression saves.");
    for (v, c) in all() {
        t.sample("weir_volume_saved_bytes", &[("volume", &v.name)], c.saved_bytes as f64);
    }
    t.family(
        "weir_volume_deduplicated_bytes",
        "gauge",
        "Bytes of data that deduplication keeps only once, before compression.",
    );
    for (v, d) in live.iter().filter_map(|v| Some((v, v.deduplication?))) {
        let labels = [("volume", v.name.as_str())];
        t.sample("weir_volume_deduplicated_bytes", &labels, d.saved_bytes as f64);
    }
    t.family("weir_volume_in_flight", "gauge", "I/Os in flight.");
    for v in live {
        t.sample("weir_volume_in_flight", &[("volume", &v.name)], v.in_flight as f64);
    }
}

fn ports(t: &mut Text, status: &Status) {
    let each = |t: &mut Text,
                name: &str,
                kind: &str,
                help: &str,
                f: &dyn Fn(&crate::live::PortLive) -> f64| {
        t.family(name, kind, help);
        for p in &status.live.ports {
            t.sample(name, &[("target", &p.name)], f(p));
        }
    };
    each(t, "weir_target_channels", "gauge", "RDMA channels.", &|p| p.channels as f64);
    each(t, "weir_target_nexuses", "gauge", "Logged-in hosts.", &|p| p.nexuses.len() as f64);
    each(t, "weir_target_logins_total", "counter", "Logins.", &|p| p.logins as f64);
    each(t, "weir_target_rejects_total", "counter", "Logins refused.", &|p| p.rejects as f64);
    each(t, "weir_target_commands_total", "counter", "Commands finished.", &|p| p.commands as f64);
    each(t, "weir_target_task_management_total", "counter", "Task management functions.", &|p| {
        p.task_management as f64
    });
}

fn reactors(t: &mut Text, status: &Status) {
    let each = |t: &mut Text,
                name: &str,
                kind: &str,
                help: &str,
                f: &dyn Fn(&crate::live::ReactorLive) -> f64| {
        t.family(name, kind, help);
        for r in &status.live.reactors {
            t.sample(name, &[("core", &r.core.to_string())], f(r));
        }
    };
    each(t, "weir_reactor_busy_ratio", "gauge", "Share of time with work.", &|r| {
        r.busy_percent / 100.0
    });
    each(t, "weir_reactor_awake_ratio", "gauge", "Share of time on the processor.", &|r| {
        r.awake_percent / 100.0
    });
    each(t, "weir_reactor_polls_total", "counter", "Polls.", &|r| r.polls as f64);
    each(t, "weir_reactor_useful_polls_total", "counter", "Polls with work.", &|r| {
        r.useful_polls as f64
    });
    each(t, "weir_reactor_sleeps_total", "counter", "Times it slept.", &|r| r.sleeps as f64);
    let census = &status.live.census;
    t.family("weir_census_total", "gauge", "Members of a buffer or request pool.");
    for c in census {
        t.sample("weir_census_total", &[("name", &c.name)], c.total as f64);
    }
    t.family("weir_census_free", "gauge", "Free members.");
    for c in census {
        t.sample("weir_census_free", &[("name", &c.name)], c.free as f64);
    }
    t.family("weir_census_waiting", "gauge", "Tasks that wait for a member.");
    for c in census {
        t.sample("weir_census_waiting", &[("name", &c.name)], c.waiting as f64);
    }
}
