//! SCSI RDMA Protocol (T10 SRP, INCITS 365, with the immediate data of SRP-2), as a library without
//! I/O and without a clock: bytes in, values out, and back.
//!
//! | module | what it holds |
//! |---|---|
//! | [`login`], [`policy`] | login request, response and reject; what a target decides about them |
//! | [`iu`] | which information unit a message is; decode entry points of both sides |
//! | [`cmd`], [`command_builder`] | SRP_CMD, read without copying and written by the initiator |
//! | [`rsp`], [`task`], [`misc`] | SRP_RSP, SRP_TSK_MGMT, logouts, credit and event messages |
//! | [`residual`], [`credit`] | the two pieces of arithmetic that both sides must agree on |
//! | [`bdt`] | buffer descriptor tables and the RDMA operations that a transfer needs |
//! | [`states`] | the five state machines by name, with their legal transitions |
//! | [`initiator_tag`], [`add_target`] | tags by hardware queue; Linux' attach line |
//!
//! Multi-byte fields are big-endian, except TAG, which is eight opaque bytes. Reserved bytes are sent
//! as 0 and ignored on receipt. Every decoder is total: any bytes give a value or an error.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)
)]
#![forbid(unsafe_code)]

pub mod add_target;
pub mod bdt;
pub mod cmd;
pub mod command_builder;
pub mod credit;
pub mod fuzzing;
pub mod initiator_tag;
pub mod iu;
pub mod login;
pub mod misc;
pub mod planted;
pub mod policy;
pub mod port_id;
pub mod residual;
pub mod rsp;
pub mod states;
pub mod task;
pub mod types;

pub use cmd::{Buffer, Command};
pub use command_builder::{BufferSpec, CommandBuilder};
pub use iu::{Iu, IuContext, IuError, TargetIu, decode_initiator};
pub use login::{Form, LoginReject, LoginRequest, LoginResponse, RejectReason};
pub use policy::{MultiChannel, Negotiated, TargetPolicy, evaluate};
pub use port_id::PortId;
pub use rsp::{Plain, Response, RspCode};
pub use task::{TaskFunction, TaskManagement};
pub use types::{Descriptor, DescriptorList, EncodeError, Solicit, Tag, TaskAttribute};
