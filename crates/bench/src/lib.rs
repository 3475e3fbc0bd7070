//! `weir bench`: a load generator with fio's vocabulary, and the scenarios that redraw the figures of the
//! founding documents.
//!
//! * [`job`] — what is to be done: [`JobSpec`](job::JobSpec);
//! * [`client`] — whom it is done to: the trait [`BlockClient`](client::BlockClient), and [`srp`] and [`brp`],
//!   which implement it with Weir's own initiators;
//! * [`engine`] — doing it: one reactor per core, no allocation and one clock reading per I/O;
//! * [`fabric`] — by what;
//! * [`report`], [`plot`] — what came of it: text and JSON with fio's field names, SVG;
//! * [`send`] — what a SEND of the fabric takes;
//! * [`bare`] — what no target can beat on this machine: a TCP request/response loop;
//! * [`scenario`] — series of runs with a page about each in docs/benchmarks.
#![forbid(unsafe_code)]

pub mod bare;
pub mod brp;
pub mod client;
pub mod engine;
pub mod fabric;
pub mod histogram;
pub mod job;
pub mod local;
pub mod machine;
pub mod plot;
pub mod report;
pub mod scenario;
pub mod send;
pub mod srp;
pub mod units;
pub mod verify;
