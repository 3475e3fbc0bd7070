//! Records and their formats, gates, and the pair machine step by step. What holds in all histories is for `tests/model`.

mod any;
mod format;
mod gates;
mod pairs;
