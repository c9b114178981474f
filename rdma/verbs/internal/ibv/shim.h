// What Go calls. Every function that can fail returns 0 or an errno, unless it says otherwise.
#ifndef KVXFER_IBV_SHIM_H
#define KVXFER_IBV_SHIM_H

#include "abi.h"

#include <sys/types.h>

// The library's functions, found by name: its static inline ones go through a context's ops instead.
struct kv_lib {
	void *handle;
	void **(*get_device_list)(int *n);
	void (*free_device_list)(void **list);
	const char *(*get_device_name)(void *device);
	struct v_context *(*open_device)(void *device);
	int (*close_device)(struct v_context *c);
	int (*get_async_event)(struct v_context *c, struct v_async_event *e);
	void (*ack_async_event)(struct v_async_event *e);
	int (*query_device)(struct v_context *c, struct v_device_attr *a);
	int (*query_port)(struct v_context *c, uint8_t port, struct v_port_attr *a);
	ssize_t (*query_gid_table)(struct v_context *c, struct v_gid_entry *e, size_t max, uint32_t flags, size_t entry_size); // may be NULL
	struct v_pd *(*alloc_pd)(struct v_context *c);
	int (*dealloc_pd)(struct v_pd *pd);
	struct v_mr *(*reg_mr)(struct v_pd *pd, void *addr, size_t length, int access);
	struct v_mr *(*reg_mr_iova2)(struct v_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access); // may be NULL
	struct v_mr *(*reg_dmabuf_mr)(struct v_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access); // may be NULL
	int (*dereg_mr)(struct v_mr *mr);
	struct v_comp_channel *(*create_comp_channel)(struct v_context *c);
	int (*destroy_comp_channel)(struct v_comp_channel *ch);
	struct v_cq *(*create_cq)(struct v_context *c, int cqe, void *cq_context, struct v_comp_channel *ch, int vector);
	int (*destroy_cq)(struct v_cq *cq);
	int (*get_cq_event)(struct v_comp_channel *ch, struct v_cq **cq, void **cq_context);
	void (*ack_cq_events)(struct v_cq *cq, unsigned int n);
	struct v_qp *(*create_qp)(struct v_pd *pd, struct v_qp_init_attr *a);
	int (*modify_qp)(struct v_qp *qp, struct v_qp_attr *a, int mask);
	int (*destroy_qp)(struct v_qp *qp);
};

enum { KV_MAX_CQ = 1024 };

struct kv_cq {
	struct v_cq *cq;
	uint8_t recv;  // receives complete here, nothing else does: a failed entry does not say what it was
	uint8_t armed; // an event comes, or has come and was not read, for the next completion
};

struct kv_dev {
	struct kv_lib *lib;
	struct v_context *ctx;
	struct v_pd *pd;
	struct v_comp_channel *channel;
	uint32_t cq_count, cq_first;
	struct kv_cq cqs[KV_MAX_CQ]; // never moves: contexts of completion events point into it
};

// The flat forms of nic.WR, nic.SGE (struct v_sge) and nic.Completion; layout.go asserts that the layouts agree.
struct kv_wr {
	uint64_t id;
	uint64_t remote;
	uint32_t rkey;
	uint32_t first, count;
	uint8_t op;
	uint8_t signaled;
};
struct kv_completion {
	uint64_t id;
	uint32_t qpn;
	uint32_t bytes;
	uint8_t status;
	uint8_t recv;
	uint8_t raw;
};
enum { KV_WRITE = 1, KV_READ = 2, KV_SEND = 3 };
enum {
	KV_SUCCESS, KV_FLUSHED, KV_REMOTE_ACCESS, KV_RETRIES, KV_RNR, KV_LOCAL_PROTECTION,
	KV_REMOTE_INVALID, KV_REMOTE_OPERATION, KV_BIND_FAILED, KV_OTHER
};

struct kv_qp {
	struct v_qp *qp;
	uint32_t send_room, recv_room; // entries of the scratch
	uint32_t max_sge, max_inline;
	struct v_send_wr *send;
	struct v_recv_wr *recv;
};

// A request's outcome: how many were taken, and the errno of the first that was not.
struct kv_posted {
	uint32_t n;
	int err;
};

// kv_load gives NULL with the reason in why: the loader's own text, or the name of the missing function.
struct kv_lib *kv_load(const char *path, char *why, size_t size);

// kv_open finds the device by name. *step names the call that failed.
int kv_open(struct kv_lib *lib, const char *name, struct kv_dev **out, const char **step);
int kv_close(struct kv_dev *d, const char **step);
int kv_query_device(struct kv_dev *d, struct v_device_attr *a);
int kv_query_port(struct kv_dev *d, uint8_t port, struct v_port_attr *a);

// kv_gids gives the number of entries in use, of all ports, at most max; or the negative errno.
int kv_gids(struct kv_dev *d, struct v_gid_entry *e, int max);

int kv_add_cq(struct kv_dev *d, int cqe, int recv, int *index, int *room);
int kv_probe_dmabuf(struct kv_dev *d); // the errno of registering dma-buf -1; -1: the library cannot ask
int kv_reg_mr(struct kv_dev *d, void *addr, size_t length, unsigned int access, struct v_mr **out);
int kv_dereg_mr(struct kv_dev *d, struct v_mr *mr);
int kv_alloc_mw(struct kv_dev *d, struct v_mw **out);
int kv_dealloc_mw(struct v_mw *mw);

int kv_create_qp(struct kv_dev *d, int send_cq, int recv_cq, struct v_qp_cap cap, struct kv_qp **out);
int kv_modify_qp(struct kv_dev *d, struct kv_qp *q, struct v_qp_attr *a, int mask);
int kv_destroy_qp(struct kv_dev *d, struct kv_qp *q);
struct kv_posted kv_post(struct kv_qp *q, const struct kv_wr *wrs, uint32_t n, struct v_sge *sges, uint32_t nsge);
struct kv_posted kv_post_recv(struct kv_qp *q, const uint64_t *ids, struct v_sge *sges, uint32_t n);
int kv_bind(struct kv_qp *q, uint64_t id, struct v_mw *mw, struct v_mr *mr, uint64_t addr, uint64_t length, unsigned int access);
int kv_invalidate(struct kv_qp *q, uint64_t id, uint32_t rkey);

// kv_poll gives the number of completions, or the negative errno of a queue that cannot be polled. It looks for spin_ns.
int kv_poll(struct kv_dev *d, struct kv_completion *out, int max, uint64_t spin_ns);
// kv_purge takes at most max entries out of a queue and keeps in out those that are not of qpn. It returns how many it took.
int kv_purge(struct kv_dev *d, int cq, uint32_t qpn, struct kv_completion *out, int max, int *kept);
// kv_arm reads the pending completion events and asks for the next one of each queue that has none coming.
int kv_arm(struct kv_dev *d);

// kv_event reads one asynchronous event and acknowledges it, so that no destruction waits for it; EAGAIN: there is none.
int kv_event(struct kv_dev *d, int *type, uint32_t *qpn, int *port);

#endif
