// The part of libibverbs' binary interface (symbol version IBVERBS_1.1) that this package uses, declared anew so that neither a
// header nor a library of rdma-core is needed to build. struct v_X is struct ibv_X and V_X is IBV_X; a field keeps its name, or
// its comment gives the path of the real one (`-`: padding, or a run of entries that are not used). TestABI compares every
// offset, size and constant of this file with <infiniband/verbs.h> where that is installed; keep one field or constant a line.
#ifndef KVXFER_IBV_ABI_H
#define KVXFER_IBV_ABI_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

struct v_context;
struct v_pd;
struct v_mr;
struct v_mw;
struct v_cq;
struct v_qp;
struct v_send_wr;
struct v_recv_wr;
struct v_wc;

enum {
	V_QPT_RC = 2,

	V_QPS_RESET = 0,
	V_QPS_INIT = 1,
	V_QPS_RTR = 2,
	V_QPS_RTS = 3,
	V_QPS_ERR = 6,

	V_QP_STATE = 1 << 0,
	V_QP_ACCESS_FLAGS = 1 << 3,
	V_QP_PKEY_INDEX = 1 << 4,
	V_QP_PORT = 1 << 5,
	V_QP_AV = 1 << 7,
	V_QP_PATH_MTU = 1 << 8,
	V_QP_TIMEOUT = 1 << 9,
	V_QP_RETRY_CNT = 1 << 10,
	V_QP_RNR_RETRY = 1 << 11,
	V_QP_RQ_PSN = 1 << 12,
	V_QP_MAX_QP_RD_ATOMIC = 1 << 13,
	V_QP_MIN_RNR_TIMER = 1 << 15,
	V_QP_SQ_PSN = 1 << 16,
	V_QP_MAX_DEST_RD_ATOMIC = 1 << 17,
	V_QP_DEST_QPN = 1 << 20,

	V_WR_RDMA_WRITE = 0,
	V_WR_SEND = 2,
	V_WR_RDMA_READ = 4,
	V_WR_LOCAL_INV = 7,
	V_WR_BIND_MW = 8,

	V_SEND_SIGNALED = 1 << 1,
	V_SEND_INLINE = 1 << 3,

	V_ACCESS_LOCAL_WRITE = 1,
	V_ACCESS_REMOTE_WRITE = 1 << 1,
	V_ACCESS_REMOTE_READ = 1 << 2,
	V_ACCESS_MW_BIND = 1 << 4,
	V_ACCESS_RELAXED_ORDERING = 1 << 20,

	V_MW_TYPE_2 = 2,
	V_DEVICE_MEM_WINDOW_TYPE_2B = 1 << 24,

	V_WC_SUCCESS = 0,
	V_WC_LOC_PROT_ERR = 4,
	V_WC_WR_FLUSH_ERR = 5,
	V_WC_MW_BIND_ERR = 6,
	V_WC_LOC_ACCESS_ERR = 8,
	V_WC_REM_INV_REQ_ERR = 9,
	V_WC_REM_ACCESS_ERR = 10,
	V_WC_REM_OP_ERR = 11,
	V_WC_RETRY_EXC_ERR = 12,
	V_WC_RNR_RETRY_EXC_ERR = 13,

	V_PORT_NOP = 0,
	V_PORT_DOWN = 1,
	V_PORT_INIT = 2,
	V_PORT_ARMED = 3,
	V_PORT_ACTIVE = 4,
	V_PORT_ACTIVE_DEFER = 5,
	V_LINK_LAYER_INFINIBAND = 1,
	V_LINK_LAYER_ETHERNET = 2,
	V_GID_TYPE_IB = 0,
	V_GID_TYPE_ROCE_V1 = 1,
	V_GID_TYPE_ROCE_V2 = 2,
	V_MTU_256 = 1,
	V_MTU_4096 = 5,

	V_EVENT_CQ_ERR = 0,
	V_EVENT_QP_FATAL = 1,
	V_EVENT_QP_REQ_ERR = 2,
	V_EVENT_QP_ACCESS_ERR = 3,
	V_EVENT_COMM_EST = 4,
	V_EVENT_SQ_DRAINED = 5,
	V_EVENT_PATH_MIG = 6,
	V_EVENT_PATH_MIG_ERR = 7,
	V_EVENT_DEVICE_FATAL = 8,
	V_EVENT_PORT_ACTIVE = 9,
	V_EVENT_PORT_ERR = 10,
	V_EVENT_LID_CHANGE = 11,
	V_EVENT_PKEY_CHANGE = 12,
	V_EVENT_SM_CHANGE = 13,
	V_EVENT_QP_LAST_WQE_REACHED = 16,
	V_EVENT_CLIENT_REREGISTER = 17,
	V_EVENT_GID_CHANGE = 18,
};

struct v_context_ops {
	void *(*before_alloc_mw[7])(void); // -
	struct v_mw *(*alloc_mw)(struct v_pd *pd, int type);
	void *(*bind_mw)(void);
	int (*dealloc_mw)(struct v_mw *mw);
	void *(*before_poll_cq)(void); // -
	int (*poll_cq)(struct v_cq *cq, int entries, struct v_wc *wc);
	int (*req_notify_cq)(struct v_cq *cq, int solicited_only);
	void *(*before_post_send[12])(void); // -
	int (*post_send)(struct v_qp *qp, struct v_send_wr *wr, struct v_send_wr **bad);
	int (*post_recv)(struct v_qp *qp, struct v_recv_wr *wr, struct v_recv_wr **bad);
	void *(*after_post_recv[5])(void); // -
};

struct v_context {
	void *device;
	struct v_context_ops ops;
	int cmd_fd;
	int async_fd;
	int num_comp_vectors;
	pthread_mutex_t mutex;
	void *abi_compat;
};

struct v_device_attr {
	char fw_ver[64];
	uint64_t node_guid;
	uint64_t sys_image_guid;
	uint64_t max_mr_size;
	uint64_t page_size_cap;
	uint32_t vendor_id;
	uint32_t vendor_part_id;
	uint32_t hw_ver;
	int max_qp;
	int max_qp_wr;
	unsigned int device_cap_flags;
	int max_sge;
	int max_sge_rd;
	int max_cq;
	int max_cqe;
	int max_mr;
	int max_pd;
	int max_qp_rd_atom;
	int max_ee_rd_atom;
	int max_res_rd_atom;
	int max_qp_init_rd_atom;
	int max_ee_init_rd_atom;
	int atomic_cap;
	int max_ee;
	int max_rdd;
	int max_mw;
	int max_raw_ipv6_qp;
	int max_raw_ethy_qp;
	int max_mcast_grp;
	int max_mcast_qp_attach;
	int max_total_mcast_qp_attach;
	int max_ah;
	int max_fmr;
	int max_map_per_fmr;
	int max_srq;
	int max_srq_wr;
	int max_srq_sge;
	uint16_t max_pkeys;
	uint8_t local_ca_ack_delay;
	uint8_t phys_port_cnt;
};

struct v_port_attr {
	int state;
	int max_mtu;
	int active_mtu;
	int gid_tbl_len;
	uint32_t port_cap_flags;
	uint32_t max_msg_sz;
	uint32_t bad_pkey_cntr;
	uint32_t qkey_viol_cntr;
	uint16_t pkey_tbl_len;
	uint16_t lid;
	uint16_t sm_lid;
	uint8_t lmc;
	uint8_t max_vl_num;
	uint8_t sm_sl;
	uint8_t subnet_timeout;
	uint8_t init_type_reply;
	uint8_t active_width;
	uint8_t active_speed;
	uint8_t phys_state;
	uint8_t link_layer;
	uint8_t flags;
	uint16_t port_cap_flags2;
};

struct v_gid_entry {
	uint64_t gid[2]; // gid
	uint32_t gid_index;
	uint32_t port_num;
	uint32_t gid_type;
	uint32_t ndev_ifindex;
};

struct v_pd {
	struct v_context *context;
	uint32_t handle;
};

struct v_mr {
	struct v_context *context;
	struct v_pd *pd;
	void *addr;
	size_t length;
	uint32_t handle;
	uint32_t lkey;
	uint32_t rkey;
};

struct v_mw {
	struct v_context *context;
	struct v_pd *pd;
	uint32_t rkey;
	uint32_t handle;
	int type;
};

struct v_comp_channel {
	struct v_context *context;
	int fd;
	int refcnt;
};

struct v_cq {
	struct v_context *context;
	struct v_comp_channel *channel;
	void *cq_context;
	uint32_t handle;
	int cqe;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	uint32_t comp_events_completed;
	uint32_t async_events_completed;
};

struct v_qp {
	struct v_context *context;
	void *qp_context;
	struct v_pd *pd;
	struct v_cq *send_cq;
	struct v_cq *recv_cq;
	void *srq;
	uint32_t handle;
	uint32_t qp_num;
	int state;
	int qp_type;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	uint32_t events_completed;
};

struct v_qp_cap {
	uint32_t max_send_wr;
	uint32_t max_recv_wr;
	uint32_t max_send_sge;
	uint32_t max_recv_sge;
	uint32_t max_inline_data;
};

struct v_qp_init_attr {
	void *qp_context;
	struct v_cq *send_cq;
	struct v_cq *recv_cq;
	void *srq;
	struct v_qp_cap cap;
	int qp_type;
	int sq_sig_all;
};

struct v_global_route {
	uint64_t dgid[2]; // dgid
	uint32_t flow_label;
	uint8_t sgid_index;
	uint8_t hop_limit;
	uint8_t traffic_class;
};

struct v_ah_attr {
	struct v_global_route grh;
	uint16_t dlid;
	uint8_t sl;
	uint8_t src_path_bits;
	uint8_t static_rate;
	uint8_t is_global;
	uint8_t port_num;
};

struct v_qp_attr {
	int qp_state;
	int cur_qp_state;
	int path_mtu;
	int path_mig_state;
	uint32_t qkey;
	uint32_t rq_psn;
	uint32_t sq_psn;
	uint32_t dest_qp_num;
	unsigned int qp_access_flags;
	struct v_qp_cap cap;
	struct v_ah_attr ah_attr;
	struct v_ah_attr alt_ah_attr;
	uint16_t pkey_index;
	uint16_t alt_pkey_index;
	uint8_t en_sqd_async_notify;
	uint8_t sq_draining;
	uint8_t max_rd_atomic;
	uint8_t max_dest_rd_atomic;
	uint8_t min_rnr_timer;
	uint8_t port_num;
	uint8_t timeout;
	uint8_t retry_cnt;
	uint8_t rnr_retry;
	uint8_t alt_port_num;
	uint8_t alt_timeout;
	uint32_t rate_limit;
};

struct v_sge {
	uint64_t addr;
	uint32_t length;
	uint32_t lkey;
};

struct v_send_wr {
	uint64_t wr_id;
	struct v_send_wr *next;
	struct v_sge *sg_list;
	int num_sge;
	int opcode;
	unsigned int send_flags;
	uint32_t invalidate_rkey;
	uint64_t remote_addr;      // wr.rdma.remote_addr
	uint32_t remote_rkey;      // wr.rdma.rkey
	uint32_t pad_rdma;         // -
	uint64_t rest_of_atomic[2]; // -
	uint32_t remote_srqn;      // qp_type.xrc.remote_srqn
	uint32_t pad_srqn;         // -
	struct v_mw *bind_mw;      // bind_mw.mw
	uint32_t bind_rkey;        // bind_mw.rkey
	uint32_t pad_bind;         // -
	struct v_mr *bind_mr;      // bind_mw.bind_info.mr
	uint64_t bind_addr;        // bind_mw.bind_info.addr
	uint64_t bind_length;      // bind_mw.bind_info.length
	unsigned int bind_access;  // bind_mw.bind_info.mw_access_flags
	uint32_t pad_end;          // -
};

struct v_recv_wr {
	uint64_t wr_id;
	struct v_recv_wr *next;
	struct v_sge *sg_list;
	int num_sge;
};

struct v_wc {
	uint64_t wr_id;
	int status;
	int opcode;
	uint32_t vendor_err;
	uint32_t byte_len;
	uint32_t imm_data;
	uint32_t qp_num;
	uint32_t src_qp;
	unsigned int wc_flags;
	uint16_t pkey_index;
	uint16_t slid;
	uint8_t sl;
	uint8_t dlid_path_bits;
};

struct v_async_event {
	union {
		struct v_qp *qp; // element.qp
		int port_num;    // element.port_num
	};
	int event_type;
};

#endif
