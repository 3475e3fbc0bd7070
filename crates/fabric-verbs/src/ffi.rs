//! Structures and numbers of rdma-core's binary interface (`infiniband/verbs.h`, `rdma/rdma_cma.h`).
//!
//! Only what this crate uses. A structure that only the library allocates is declared as far as it is
//! read. Sizes and offsets are checked when this is compiled (against what is written here) and by
//! `tests/abi.rs` (against the real headers).

#![allow(non_camel_case_types)]

use libc::{c_char, c_int, c_uint, c_void};

#[repr(C)]
pub(crate) struct ibv_device {
    pub(crate) ops: [*const c_void; 2],
    pub(crate) node_type: c_int,
    pub(crate) transport_type: c_int,
}

/// Calls that the headers make through the context; the others are kept by position.
#[repr(C)]
pub(crate) struct ibv_context_ops {
    pub(crate) unused_before_poll_cq: [*const c_void; 11],
    pub(crate) poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>,
    pub(crate) req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
    pub(crate) unused_before_post_srq_recv: [*const c_void; 7],
    pub(crate) post_srq_recv: Option<
        unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
    >,
    pub(crate) unused_before_post_send: [*const c_void; 4],
    pub(crate) post_send:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>,
    pub(crate) post_recv:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    pub(crate) unused_after_post_recv: [*const c_void; 5],
}

#[repr(C)]
pub(crate) struct ibv_context {
    pub(crate) device: *mut ibv_device,
    pub(crate) ops: ibv_context_ops,
    pub(crate) cmd_fd: c_int,
    pub(crate) async_fd: c_int,
    pub(crate) num_comp_vectors: c_int,
}

#[repr(C)]
pub(crate) struct ibv_pd {
    pub(crate) context: *mut ibv_context,
    pub(crate) handle: u32,
}

#[repr(C)]
pub(crate) struct ibv_mr {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) addr: *mut c_void,
    pub(crate) length: usize,
    pub(crate) handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

#[repr(C)]
pub(crate) struct ibv_comp_channel {
    pub(crate) context: *mut ibv_context,
    pub(crate) fd: c_int,
    pub(crate) refcnt: c_int,
}

#[repr(C)]
pub(crate) struct ibv_cq {
    pub(crate) context: *mut ibv_context,
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) cq_context: *mut c_void,
    pub(crate) handle: u32,
    pub(crate) cqe: c_int,
}

#[repr(C)]
pub(crate) struct ibv_srq {
    pub(crate) context: *mut ibv_context,
    pub(crate) srq_context: *mut c_void,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) handle: u32,
}

#[repr(C)]
pub(crate) struct ibv_qp {
    pub(crate) context: *mut ibv_context,
    pub(crate) qp_context: *mut c_void,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) send_cq: *mut ibv_cq,
    pub(crate) recv_cq: *mut ibv_cq,
    pub(crate) srq: *mut ibv_srq,
    pub(crate) handle: u32,
    pub(crate) qp_num: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_device_attr {
    pub(crate) fw_ver: [c_char; 64],
    pub(crate) node_guid: u64,
    pub(crate) sys_image_guid: u64,
    pub(crate) max_mr_size: u64,
    pub(crate) page_size_cap: u64,
    pub(crate) vendor_id: u32,
    pub(crate) vendor_part_id: u32,
    pub(crate) hw_ver: u32,
    pub(crate) max_qp: c_int,
    pub(crate) max_qp_wr: c_int,
    pub(crate) device_cap_flags: c_uint,
    pub(crate) max_sge: c_int,
    pub(crate) max_sge_rd: c_int,
    pub(crate) max_cq: c_int,
    pub(crate) max_cqe: c_int,
    pub(crate) max_mr: c_int,
    pub(crate) max_pd: c_int,
    pub(crate) max_qp_rd_atom: c_int,
    pub(crate) max_ee_rd_atom: c_int,
    pub(crate) max_res_rd_atom: c_int,
    pub(crate) max_qp_init_rd_atom: c_int,
    pub(crate) max_ee_init_rd_atom: c_int,
    pub(crate) atomic_cap: c_int,
    pub(crate) unused: [c_int; 11],
    pub(crate) max_srq: c_int,
    pub(crate) max_srq_wr: c_int,
    pub(crate) max_srq_sge: c_int,
    pub(crate) max_pkeys: u16,
    pub(crate) local_ca_ack_delay: u8,
    pub(crate) phys_port_cnt: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ibv_qp_cap {
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline_data: u32,
}

#[repr(C)]
pub(crate) struct ibv_qp_init_attr {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut ibv_cq,
    pub(crate) recv_cq: *mut ibv_cq,
    pub(crate) srq: *mut ibv_srq,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) qp_type: c_int,
    pub(crate) sq_sig_all: c_int,
}

#[repr(C)]
pub(crate) struct ibv_srq_init_attr {
    pub(crate) srq_context: *mut c_void,
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) srq_limit: u32,
}

#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
pub(crate) struct ibv_gid {
    pub(crate) raw: [u8; 16],
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ibv_ah_attr {
    pub(crate) dgid: ibv_gid,
    pub(crate) flow_label: u32,
    pub(crate) sgid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    pub(crate) dlid: u16,
    pub(crate) sl: u8,
    pub(crate) src_path_bits: u8,
    pub(crate) static_rate: u8,
    pub(crate) is_global: u8,
    pub(crate) port_num: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ibv_qp_attr {
    pub(crate) qp_state: c_int,
    pub(crate) cur_qp_state: c_int,
    pub(crate) path_mtu: c_int,
    pub(crate) path_mig_state: c_int,
    pub(crate) qkey: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) dest_qp_num: u32,
    pub(crate) qp_access_flags: c_uint,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) ah_attr: ibv_ah_attr,
    pub(crate) alt_ah_attr: ibv_ah_attr,
    pub(crate) pkey_index: u16,
    pub(crate) alt_pkey_index: u16,
    pub(crate) en_sqd_async_notify: u8,
    pub(crate) sq_draining: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port_num: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) alt_port_num: u8,
    pub(crate) alt_timeout: u8,
    pub(crate) rate_limit: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ibv_sge {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

/// A work request. The part after `rkey` belongs to operations that are not used here.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_send_wr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut ibv_send_wr,
    pub(crate) sg_list: *mut ibv_sge,
    pub(crate) num_sge: c_int,
    pub(crate) opcode: c_int,
    pub(crate) send_flags: c_uint,
    pub(crate) invalidate_rkey: u32,
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
    pub(crate) unused: [u64; 9],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_recv_wr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut ibv_recv_wr,
    pub(crate) sg_list: *mut ibv_sge,
    pub(crate) num_sge: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ibv_wc {
    pub(crate) wr_id: u64,
    pub(crate) status: c_int,
    pub(crate) opcode: c_int,
    pub(crate) vendor_err: u32,
    pub(crate) byte_len: u32,
    pub(crate) invalidated_rkey: u32,
    pub(crate) qp_num: u32,
    pub(crate) src_qp: u32,
    pub(crate) wc_flags: c_uint,
    pub(crate) pkey_index: u16,
    pub(crate) slid: u16,
    pub(crate) sl: u8,
    pub(crate) dlid_path_bits: u8,
}

#[repr(C)]
pub(crate) struct ibv_async_event {
    /// A queue pair, completion queue or shared receive queue, or a port's number.
    pub(crate) element: *mut c_void,
    pub(crate) event_type: c_int,
}

#[repr(C)]
pub(crate) struct rdma_event_channel {
    pub(crate) fd: c_int,
}

#[repr(C)]
pub(crate) struct rdma_cm_id {
    pub(crate) verbs: *mut ibv_context,
    pub(crate) channel: *mut rdma_event_channel,
    pub(crate) context: *mut c_void,
    pub(crate) qp: *mut ibv_qp,
    pub(crate) src_addr: libc::sockaddr_storage,
    pub(crate) dst_addr: libc::sockaddr_storage,
}

#[repr(C)]
pub(crate) struct rdma_conn_param {
    pub(crate) private_data: *const c_void,
    pub(crate) private_data_len: u8,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) flow_control: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) srq: u8,
    pub(crate) qp_num: u32,
}

#[repr(C)]
pub(crate) struct rdma_cm_event {
    pub(crate) id: *mut rdma_cm_id,
    pub(crate) listen_id: *mut rdma_cm_id,
    pub(crate) event: c_int,
    pub(crate) status: c_int,
    pub(crate) conn: rdma_conn_param,
}

/// Declares constants and their place in the table that is checked against the headers.
macro_rules! constants {
    ($($name:ident: $t:ty = $value:expr;)*) => {
        $(pub(crate) const $name: $t = $value;)*
        const CONSTANTS: &[(&str, usize)] = &[$((stringify!($name), $value as usize)),*];
    };
}

constants! {
    IBV_TRANSPORT_IWARP: c_int = 1;
    IBV_DEVICE_MEM_MGT_EXTENSIONS: c_uint = 1 << 21;
    IBV_QPT_RC: c_int = 2;
    IBV_QPS_INIT: c_int = 1;
    IBV_QPS_RTR: c_int = 2;
    IBV_QPS_RTS: c_int = 3;
    IBV_QPS_ERR: c_int = 6;
    IBV_QP_STATE: c_int = 1;
    IBV_QP_MIN_RNR_TIMER: c_int = 1 << 15;
    IBV_QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
    IBV_QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
    IBV_ACCESS_LOCAL_WRITE: c_int = 1;
    IBV_ACCESS_REMOTE_WRITE: c_int = 2;
    IBV_ACCESS_REMOTE_READ: c_int = 4;
    IBV_WR_RDMA_WRITE: c_int = 0;
    IBV_WR_SEND: c_int = 2;
    IBV_WR_RDMA_READ: c_int = 4;
    IBV_WR_SEND_WITH_INV: c_int = 9;
    IBV_SEND_SIGNALED: c_uint = 2;
    IBV_SEND_SOLICITED: c_uint = 4;
    IBV_SEND_INLINE: c_uint = 8;
    IBV_WC_SUCCESS: c_int = 0;
    IBV_WC_LOC_LEN_ERR: c_int = 1;
    IBV_WC_WR_FLUSH_ERR: c_int = 5;
    IBV_WC_REM_INV_REQ_ERR: c_int = 9;
    IBV_WC_REM_ACCESS_ERR: c_int = 10;
    IBV_WC_WITH_INV: c_uint = 1 << 3;
    IBV_EVENT_CQ_ERR: c_int = 0;
    IBV_EVENT_QP_FATAL: c_int = 1;
    IBV_EVENT_QP_REQ_ERR: c_int = 2;
    IBV_EVENT_QP_ACCESS_ERR: c_int = 3;
    IBV_EVENT_COMM_EST: c_int = 4;
    IBV_EVENT_DEVICE_FATAL: c_int = 8;
    IBV_EVENT_SRQ_ERR: c_int = 14;
    IBV_EVENT_QP_LAST_WQE_REACHED: c_int = 16;
    RDMA_PS_TCP: c_int = 0x0106;
    RDMA_OPTION_ID: c_int = 0;
    RDMA_OPTION_ID_REUSEADDR: c_int = 1;
    RDMA_CM_EVENT_ADDR_RESOLVED: c_int = 0;
    RDMA_CM_EVENT_ROUTE_RESOLVED: c_int = 2;
    RDMA_CM_EVENT_CONNECT_REQUEST: c_int = 4;
    RDMA_CM_EVENT_CONNECT_RESPONSE: c_int = 5;
    RDMA_CM_EVENT_REJECTED: c_int = 8;
    RDMA_CM_EVENT_ESTABLISHED: c_int = 9;
    RDMA_CM_EVENT_DISCONNECTED: c_int = 10;
    RDMA_CM_EVENT_DEVICE_REMOVAL: c_int = 11;
    RDMA_CM_EVENT_ADDR_CHANGE: c_int = 14;
    RDMA_CM_EVENT_TIMEWAIT_EXIT: c_int = 15;
}

/// Sizes and offsets: asserted here, and listed for the check against the headers.
macro_rules! layout {
    ($(size $s:ident = $size:expr;)* $(offset $t:ident . $f:ident as $c:literal = $offset:expr;)*) => {
        $(const _: () = assert!(size_of::<$s>() == $size);)*
        $(const _: () = assert!(std::mem::offset_of!($t, $f) == $offset);)*
        const LAYOUT: &[(&str, usize)] = &[
            $((concat!("sizeof(struct ", stringify!($s), ")"), $size),)*
            $((concat!("offsetof(struct ", stringify!($t), ", ", $c, ")"), $offset),)*
        ];
    };
}

layout! {
    size ibv_context_ops = 32 * 8;
    size ibv_pd = 16;
    size ibv_mr = 48;
    size ibv_comp_channel = 16;
    size ibv_device_attr = 232;
    size ibv_qp_cap = 20;
    size ibv_qp_init_attr = 64;
    size ibv_srq_init_attr = 24;
    size ibv_ah_attr = 32;
    size ibv_qp_attr = 144;
    size ibv_sge = 16;
    size ibv_send_wr = 128;
    size ibv_recv_wr = 32;
    size ibv_wc = 48;
    size ibv_async_event = 16;
    size rdma_event_channel = 4;
    size rdma_conn_param = 24;
    offset ibv_device.node_type as "node_type" = 16;
    offset ibv_device.transport_type as "transport_type" = 20;
    offset ibv_context_ops.poll_cq as "poll_cq" = 88;
    offset ibv_context_ops.req_notify_cq as "req_notify_cq" = 96;
    offset ibv_context_ops.post_srq_recv as "post_srq_recv" = 160;
    offset ibv_context_ops.post_send as "post_send" = 200;
    offset ibv_context_ops.post_recv as "post_recv" = 208;
    offset ibv_context.ops as "ops" = 8;
    offset ibv_context.cmd_fd as "cmd_fd" = 264;
    offset ibv_context.async_fd as "async_fd" = 268;
    offset ibv_context.num_comp_vectors as "num_comp_vectors" = 272;
    offset ibv_mr.lkey as "lkey" = 36;
    offset ibv_mr.rkey as "rkey" = 40;
    offset ibv_comp_channel.fd as "fd" = 8;
    offset ibv_cq.cq_context as "cq_context" = 16;
    offset ibv_cq.cqe as "cqe" = 28;
    offset ibv_srq.handle as "handle" = 24;
    offset ibv_qp.srq as "srq" = 40;
    offset ibv_qp.qp_num as "qp_num" = 52;
    offset ibv_device_attr.vendor_id as "vendor_id" = 96;
    offset ibv_device_attr.max_qp_wr as "max_qp_wr" = 112;
    offset ibv_device_attr.device_cap_flags as "device_cap_flags" = 116;
    offset ibv_device_attr.max_sge as "max_sge" = 120;
    offset ibv_device_attr.max_cqe as "max_cqe" = 132;
    offset ibv_device_attr.max_qp_rd_atom as "max_qp_rd_atom" = 144;
    offset ibv_device_attr.max_qp_init_rd_atom as "max_qp_init_rd_atom" = 156;
    offset ibv_device_attr.max_srq as "max_srq" = 212;
    offset ibv_device_attr.max_srq_wr as "max_srq_wr" = 216;
    offset ibv_device_attr.phys_port_cnt as "phys_port_cnt" = 227;
    offset ibv_qp_init_attr.cap as "cap" = 32;
    offset ibv_qp_init_attr.qp_type as "qp_type" = 52;
    offset ibv_qp_init_attr.sq_sig_all as "sq_sig_all" = 56;
    offset ibv_srq_init_attr.max_wr as "attr.max_wr" = 8;
    offset ibv_srq_init_attr.srq_limit as "attr.srq_limit" = 16;
    offset ibv_ah_attr.flow_label as "grh.flow_label" = 16;
    offset ibv_ah_attr.traffic_class as "grh.traffic_class" = 22;
    offset ibv_ah_attr.dlid as "dlid" = 24;
    offset ibv_ah_attr.port_num as "port_num" = 30;
    offset ibv_qp_attr.qp_access_flags as "qp_access_flags" = 32;
    offset ibv_qp_attr.cap as "cap" = 36;
    offset ibv_qp_attr.ah_attr as "ah_attr" = 56;
    offset ibv_qp_attr.alt_ah_attr as "alt_ah_attr" = 88;
    offset ibv_qp_attr.pkey_index as "pkey_index" = 120;
    offset ibv_qp_attr.max_rd_atomic as "max_rd_atomic" = 126;
    offset ibv_qp_attr.max_dest_rd_atomic as "max_dest_rd_atomic" = 127;
    offset ibv_qp_attr.min_rnr_timer as "min_rnr_timer" = 128;
    offset ibv_qp_attr.alt_timeout as "alt_timeout" = 134;
    offset ibv_qp_attr.rate_limit as "rate_limit" = 136;
    offset ibv_sge.length as "length" = 8;
    offset ibv_sge.lkey as "lkey" = 12;
    offset ibv_send_wr.next as "next" = 8;
    offset ibv_send_wr.sg_list as "sg_list" = 16;
    offset ibv_send_wr.num_sge as "num_sge" = 24;
    offset ibv_send_wr.opcode as "opcode" = 28;
    offset ibv_send_wr.send_flags as "send_flags" = 32;
    offset ibv_send_wr.invalidate_rkey as "invalidate_rkey" = 36;
    offset ibv_send_wr.remote_addr as "wr.rdma.remote_addr" = 40;
    offset ibv_send_wr.rkey as "wr.rdma.rkey" = 48;
    offset ibv_recv_wr.sg_list as "sg_list" = 16;
    offset ibv_recv_wr.num_sge as "num_sge" = 24;
    offset ibv_wc.status as "status" = 8;
    offset ibv_wc.opcode as "opcode" = 12;
    offset ibv_wc.byte_len as "byte_len" = 20;
    offset ibv_wc.invalidated_rkey as "invalidated_rkey" = 24;
    offset ibv_wc.qp_num as "qp_num" = 28;
    offset ibv_wc.wc_flags as "wc_flags" = 36;
    offset ibv_async_event.event_type as "event_type" = 8;
    offset rdma_cm_id.channel as "channel" = 8;
    offset rdma_cm_id.context as "context" = 16;
    offset rdma_cm_id.qp as "qp" = 24;
    offset rdma_cm_id.src_addr as "route.addr.src_storage" = 32;
    offset rdma_cm_id.dst_addr as "route.addr.dst_storage" = 160;
    offset rdma_conn_param.private_data_len as "private_data_len" = 8;
    offset rdma_conn_param.responder_resources as "responder_resources" = 9;
    offset rdma_conn_param.initiator_depth as "initiator_depth" = 10;
    offset rdma_conn_param.flow_control as "flow_control" = 11;
    offset rdma_conn_param.retry_count as "retry_count" = 12;
    offset rdma_conn_param.rnr_retry_count as "rnr_retry_count" = 13;
    offset rdma_conn_param.srq as "srq" = 14;
    offset rdma_conn_param.qp_num as "qp_num" = 16;
    offset rdma_cm_event.listen_id as "listen_id" = 8;
    offset rdma_cm_event.event as "event" = 16;
    offset rdma_cm_event.status as "status" = 20;
    offset rdma_cm_event.conn as "param.conn" = 24;
}

/// Every number above as a C expression and what this crate takes it for: what `tests/abi.rs` compares
/// with the headers of the installed rdma-core.
pub fn interface() -> impl Iterator<Item = (&'static str, usize)> {
    LAYOUT.iter().chain(CONSTANTS).copied()
}
