//go:build cgo && linux

// Finding the library, opening and closing devices, and everything else that is not done per request.

#define _GNU_SOURCE
#include "shim.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// failed turns what the library's int functions return, an errno or -1 with errno set, into an errno.
static int failed(int rc)
{
	if (rc == 0)
		return 0;
	if (rc > 0)
		return rc;
	return errno ? errno : EIO;
}

// none is the errno of a function that returned NULL.
static int none(void) { return errno ? errno : EIO; }

static void *find(void *handle, const char *name, const char *version)
{
#ifdef __GLIBC__
	// The unversioned name may give the oldest version of a function, whose structures are others.
	void *p = dlvsym(handle, name, version);
	if (p)
		return p;
#else
	(void)version;
#endif
	return dlsym(handle, name);
}

struct kv_lib *kv_load(const char *path, char *why, size_t size)
{
	void *h = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!h) {
		const char *text = dlerror();
		snprintf(why, size, "%s", text ? text : path);
		return NULL;
	}
	struct kv_lib *l = calloc(1, sizeof *l);
	if (!l) {
		dlclose(h);
		snprintf(why, size, "out of memory");
		return NULL;
	}
	l->handle = h;
	struct {
		void *to;
		const char *name, *version;
		int optional;
	} want[] = {
		{&l->get_device_list, "ibv_get_device_list", "IBVERBS_1.1", 0},
		{&l->free_device_list, "ibv_free_device_list", "IBVERBS_1.1", 0},
		{&l->get_device_name, "ibv_get_device_name", "IBVERBS_1.1", 0},
		{&l->open_device, "ibv_open_device", "IBVERBS_1.1", 0},
		{&l->close_device, "ibv_close_device", "IBVERBS_1.1", 0},
		{&l->get_async_event, "ibv_get_async_event", "IBVERBS_1.1", 0},
		{&l->ack_async_event, "ibv_ack_async_event", "IBVERBS_1.1", 0},
		{&l->query_device, "ibv_query_device", "IBVERBS_1.1", 0},
		{&l->query_port, "ibv_query_port", "IBVERBS_1.1", 0},
		{&l->query_gid_table, "_ibv_query_gid_table", "IBVERBS_1.11", 1},
		{&l->alloc_pd, "ibv_alloc_pd", "IBVERBS_1.1", 0},
		{&l->dealloc_pd, "ibv_dealloc_pd", "IBVERBS_1.1", 0},
		{&l->reg_mr, "ibv_reg_mr", "IBVERBS_1.1", 0},
		{&l->reg_mr_iova2, "ibv_reg_mr_iova2", "IBVERBS_1.8", 1},
		{&l->reg_dmabuf_mr, "ibv_reg_dmabuf_mr", "IBVERBS_1.12", 1},
		{&l->dereg_mr, "ibv_dereg_mr", "IBVERBS_1.1", 0},
		{&l->create_comp_channel, "ibv_create_comp_channel", "IBVERBS_1.0", 0},
		{&l->destroy_comp_channel, "ibv_destroy_comp_channel", "IBVERBS_1.0", 0},
		{&l->create_cq, "ibv_create_cq", "IBVERBS_1.1", 0},
		{&l->destroy_cq, "ibv_destroy_cq", "IBVERBS_1.1", 0},
		{&l->get_cq_event, "ibv_get_cq_event", "IBVERBS_1.1", 0},
		{&l->ack_cq_events, "ibv_ack_cq_events", "IBVERBS_1.1", 0},
		{&l->create_qp, "ibv_create_qp", "IBVERBS_1.1", 0},
		{&l->modify_qp, "ibv_modify_qp", "IBVERBS_1.1", 0},
		{&l->destroy_qp, "ibv_destroy_qp", "IBVERBS_1.1", 0},
	};
	for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
		void *p = find(h, want[i].name, want[i].version);
		if (!p && !want[i].optional) {
			snprintf(why, size, "%s has no function %s", path, want[i].name);
			dlclose(h);
			free(l);
			return NULL;
		}
		memcpy(want[i].to, &p, sizeof p);
	}
	return l; // never unloaded: drivers that it loaded may hold on to it
}

int kv_open(struct kv_lib *lib, const char *name, struct kv_dev **out, const char **step)
{
	int rc, n = 0;
	struct kv_dev *d = calloc(1, sizeof *d);

	*step = "calloc";
	if (!d)
		return ENOMEM;
	d->lib = lib;
	*step = "ibv_get_device_list";
	errno = 0;
	void **list = lib->get_device_list(&n);
	if (!list) {
		rc = none();
		goto fail;
	}
	rc = ENODEV; // no driver of the library took it, or it is not there
	for (int i = 0; i < n; i++) {
		const char *have = lib->get_device_name(list[i]);
		if (!have || strcmp(have, name) != 0)
			continue;
		*step = "ibv_open_device";
		errno = 0;
		d->ctx = lib->open_device(list[i]);
		rc = d->ctx ? 0 : none();
		break;
	}
	lib->free_device_list(list);
	if (rc)
		goto fail;
	*step = "ibv_alloc_pd";
	errno = 0;
	if (!(d->pd = lib->alloc_pd(d->ctx))) {
		rc = none();
		goto fail;
	}
	*step = "ibv_create_comp_channel";
	errno = 0;
	if (!(d->channel = lib->create_comp_channel(d->ctx))) {
		rc = none();
		goto fail;
	}
	// Whoever reads events looks first and sleeps in poll(2), where it can be woken.
	*step = "fcntl";
	for (int i = 0; i < 2; i++) {
		int fd = i ? d->channel->fd : d->ctx->async_fd, flags = fcntl(fd, F_GETFL);
		if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0) {
			rc = errno;
			goto fail;
		}
	}
	*step = "";
	*out = d;
	return 0;
fail:
	{
		const char *ignored;
		kv_close(d, &ignored);
	}
	return rc;
}

int kv_close(struct kv_dev *d, const char **step)
{
	int first = 0, rc;

#define TRY(name, call)                 \
	do {                            \
		rc = failed(call);      \
		if (rc && !first) {     \
			first = rc;     \
			*step = name;   \
		}                       \
	} while (0)
	*step = "";
	// A failure does not stop it: closing the context is what makes the kernel let go of the rest.
	for (uint32_t i = 0; i < d->cq_count; i++)
		TRY("ibv_destroy_cq", d->lib->destroy_cq(d->cqs[i].cq));
	if (d->channel)
		TRY("ibv_destroy_comp_channel", d->lib->destroy_comp_channel(d->channel));
	if (d->pd)
		TRY("ibv_dealloc_pd", d->lib->dealloc_pd(d->pd));
	if (d->ctx)
		TRY("ibv_close_device", d->lib->close_device(d->ctx));
#undef TRY
	free(d);
	return first;
}

int kv_query_device(struct kv_dev *d, struct v_device_attr *a)
{
	memset(a, 0, sizeof *a);
	return failed(d->lib->query_device(d->ctx, a));
}

int kv_query_port(struct kv_dev *d, uint8_t port, struct v_port_attr *a)
{
	// The function of that name fills what version 1.1 knew; link_layer is in it.
	memset(a, 0, sizeof *a);
	return failed(d->lib->query_port(d->ctx, port, a));
}

int kv_gids(struct kv_dev *d, struct v_gid_entry *e, int max)
{
	if (!d->lib->query_gid_table)
		return -EOPNOTSUPP;
	errno = 0;
	ssize_t n = d->lib->query_gid_table(d->ctx, e, (size_t)max, 0, sizeof *e);
	return (int)n;
}

int kv_add_cq(struct kv_dev *d, int cqe, int recv, int *index, int *room)
{
	if (d->cq_count == KV_MAX_CQ)
		return ENOSPC;
	struct kv_cq *q = &d->cqs[d->cq_count];
	memset(q, 0, sizeof *q);
	q->recv = recv != 0;
	errno = 0;
	if (!(q->cq = d->lib->create_cq(d->ctx, cqe, q, d->channel, 0)))
		return none();
	*index = (int)d->cq_count++;
	*room = q->cq->cqe;
	return 0;
}

int kv_probe_dmabuf(struct kv_dev *d)
{
	if (!d->lib->reg_dmabuf_mr)
		return -1;
	errno = 0;
	struct v_mr *mr = d->lib->reg_dmabuf_mr(d->pd, 0, 4096, 0, -1, V_ACCESS_LOCAL_WRITE);
	if (!mr)
		return errno ? errno : EIO;
	d->lib->dereg_mr(mr);
	return 0;
}

int kv_reg_mr(struct kv_dev *d, void *addr, size_t length, unsigned int access, struct v_mr **out)
{
	errno = 0;
	if (d->lib->reg_mr_iova2)
		*out = d->lib->reg_mr_iova2(d->pd, addr, length, (uint64_t)(uintptr_t)addr, access);
	else // it does not know the optional flags, and would refuse them
		*out = d->lib->reg_mr(d->pd, addr, length, (int)(access & ~(unsigned int)V_ACCESS_RELAXED_ORDERING));
	return *out ? 0 : none();
}

int kv_dereg_mr(struct kv_dev *d, struct v_mr *mr) { return failed(d->lib->dereg_mr(mr)); }

int kv_alloc_mw(struct kv_dev *d, struct v_mw **out)
{
	errno = 0;
	if (!d->ctx->ops.alloc_mw)
		return EOPNOTSUPP;
	*out = d->ctx->ops.alloc_mw(d->pd, V_MW_TYPE_2);
	return *out ? 0 : none();
}

int kv_dealloc_mw(struct v_mw *mw) { return failed(mw->context->ops.dealloc_mw(mw)); }

int kv_create_qp(struct kv_dev *d, int send_cq, int recv_cq, struct v_qp_cap cap, struct kv_qp **out)
{
	struct kv_qp *q = calloc(1, sizeof *q);
	if (!q)
		return ENOMEM;
	q->send_room = cap.max_send_wr;
	q->recv_room = cap.max_recv_wr;
	q->max_sge = cap.max_send_sge;
	q->send = calloc(q->send_room ? q->send_room : 1, sizeof *q->send);
	q->recv = calloc(q->recv_room ? q->recv_room : 1, sizeof *q->recv);
	int rc = ENOMEM;
	if (q->send && q->recv) {
		struct v_qp_init_attr a = {.send_cq = d->cqs[send_cq].cq, .recv_cq = d->cqs[recv_cq].cq, .cap = cap, .qp_type = V_QPT_RC};
		errno = 0;
		if ((q->qp = d->lib->create_qp(d->pd, &a))) {
			q->max_inline = a.cap.max_inline_data;
			*out = q;
			return 0;
		}
		rc = none();
	}
	free(q->send);
	free(q->recv);
	free(q);
	return rc;
}

int kv_modify_qp(struct kv_dev *d, struct kv_qp *q, struct v_qp_attr *a, int mask)
{
	return failed(d->lib->modify_qp(q->qp, a, mask));
}

int kv_destroy_qp(struct kv_dev *d, struct kv_qp *q)
{
	int rc = failed(d->lib->destroy_qp(q->qp));
	if (rc)
		return rc; // still there; it may be tried again
	free(q->send);
	free(q->recv);
	free(q);
	return 0;
}

int kv_event(struct kv_dev *d, int *type, uint32_t *qpn, int *port)
{
	struct v_async_event e;

	memset(&e, 0, sizeof e);
	errno = 0;
	if (d->lib->get_async_event(d->ctx, &e))
		return none();
	*type = e.event_type;
	*qpn = 0;
	*port = 0;
	switch (e.event_type) {
	case V_EVENT_QP_FATAL:
	case V_EVENT_QP_REQ_ERR:
	case V_EVENT_QP_ACCESS_ERR:
	case V_EVENT_COMM_EST:
	case V_EVENT_SQ_DRAINED:
	case V_EVENT_PATH_MIG:
	case V_EVENT_PATH_MIG_ERR:
	case V_EVENT_QP_LAST_WQE_REACHED:
		*qpn = e.qp->qp_num; // its destruction waits for the acknowledgement below
		break;
	case V_EVENT_PORT_ACTIVE:
	case V_EVENT_PORT_ERR:
	case V_EVENT_LID_CHANGE:
	case V_EVENT_PKEY_CHANGE:
	case V_EVENT_SM_CHANGE:
	case V_EVENT_CLIENT_REREGISTER:
	case V_EVENT_GID_CHANGE:
		*port = e.port_num;
		break;
	}
	d->lib->ack_async_event(&e);
	return 0;
}
