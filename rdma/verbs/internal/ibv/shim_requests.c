//go:build cgo && linux

// The data path: posting and completing. Nothing here allocates.

#define _GNU_SOURCE
#include "shim.h"

#include <errno.h>
#include <string.h>
#include <time.h>

_Static_assert(sizeof(struct kv_wr) == 32 && offsetof(struct kv_wr, signaled) == 29, "nic.WR");
_Static_assert(sizeof(struct kv_completion) == 24 && offsetof(struct kv_completion, raw) == 18, "nic.Completion");
_Static_assert(sizeof(struct v_sge) == 16 && offsetof(struct v_sge, lkey) == 12, "nic.SGE");
_Static_assert(sizeof(struct v_send_wr) == 128, "ibv_send_wr");

// outcome turns the answer to posting a chain into how many of it were taken: without a bad one all, though the device may not
// have been told of them.
static struct kv_posted outcome(int rc, long bad, uint32_t asked)
{
	struct kv_posted p = {asked, 0};
	if (rc) {
		p.n = bad >= 0 && bad < (long)asked ? (uint32_t)bad : asked;
		p.err = rc > 0 ? rc : (errno ? errno : EIO);
	}
	return p;
}

struct kv_posted kv_post(struct kv_qp *q, const struct kv_wr *wrs, uint32_t n, struct v_sge *sges, uint32_t nsge)
{
	struct kv_posted all = {0, 0};

	while (all.n < n && !all.err) {
		uint32_t chain = 0;
		int refused = 0;
		for (; chain < q->send_room && all.n + chain < n; chain++) {
			const struct kv_wr *w = &wrs[all.n + chain];
			struct v_send_wr *s = &q->send[chain];
			if (w->count > q->max_sge || w->first > nsge || w->count > nsge - w->first) {
				refused = EINVAL;
				break;
			}
			s->wr_id = w->id;
			s->next = s + 1;
			s->sg_list = w->count ? sges + w->first : NULL; // read before the call returns; what stays in the scratch is not used
			s->num_sge = (int)w->count;
			s->send_flags = w->signaled ? V_SEND_SIGNALED : 0;
			s->remote_addr = w->remote;
			s->remote_rkey = w->rkey;
			switch (w->op) {
			case KV_WRITE:
				s->opcode = V_WR_RDMA_WRITE;
				break;
			case KV_READ:
				s->opcode = V_WR_RDMA_READ;
				break;
			case KV_SEND: {
				uint64_t bytes = 0;
				for (uint32_t i = 0; i < w->count; i++)
					bytes += sges[w->first + i].length;
				s->opcode = V_WR_SEND;
				if (bytes && bytes <= q->max_inline)
					s->send_flags |= V_SEND_INLINE;
				break;
			}
			default:
				refused = EINVAL;
			}
			if (refused)
				break;
		}
		if (chain) {
			struct v_send_wr *bad = NULL;
			q->send[chain - 1].next = NULL;
			errno = 0;
			int rc = q->qp->context->ops.post_send(q->qp, q->send, &bad);
			struct kv_posted p = outcome(rc, bad ? bad - q->send : -1, chain);
			all.n += p.n;
			all.err = p.err;
		}
		if (!all.err)
			all.err = refused;
	}
	return all;
}

struct kv_posted kv_post_recv(struct kv_qp *q, const uint64_t *ids, struct v_sge *sges, uint32_t n)
{
	struct kv_posted all = {0, 0};

	if (q->recv_room == 0)
		all.err = ENOMEM;
	while (all.n < n && !all.err) {
		uint32_t chain = n - all.n < q->recv_room ? n - all.n : q->recv_room;
		for (uint32_t i = 0; i < chain; i++) {
			struct v_recv_wr *r = &q->recv[i];
			r->wr_id = ids[all.n + i];
			r->next = r + 1;
			r->sg_list = &sges[all.n + i];
			r->num_sge = 1;
		}
		struct v_recv_wr *bad = NULL;
		q->recv[chain - 1].next = NULL;
		errno = 0;
		int rc = q->qp->context->ops.post_recv(q->qp, q->recv, &bad);
		struct kv_posted p = outcome(rc, bad ? bad - q->recv : -1, chain);
		all.n += p.n;
		all.err = p.err;
	}
	return all;
}

static int post_one(struct kv_qp *q, struct v_send_wr *w)
{
	struct v_send_wr *bad = NULL;

	errno = 0;
	return outcome(q->qp->context->ops.post_send(q->qp, w, &bad), 0, 1).err;
}

int kv_bind(struct kv_qp *q, uint64_t id, struct v_mw *mw, struct v_mr *mr, uint64_t addr, uint64_t length, unsigned int access)
{
	// The low byte of a window's key is its user's to choose; the next one makes the former keys stale.
	uint32_t rkey = (mw->rkey & 0xffffff00u) | ((mw->rkey + 1) & 0xffu);
	struct v_send_wr w;

	memset(&w, 0, sizeof w);
	w.wr_id = id;
	w.opcode = V_WR_BIND_MW;
	w.send_flags = V_SEND_SIGNALED;
	w.bind_mw = mw;
	w.bind_rkey = rkey;
	w.bind_mr = mr;
	w.bind_addr = addr;
	w.bind_length = length;
	w.bind_access = access;
	int rc = post_one(q, &w);
	if (!rc)
		mw->rkey = rkey;
	return rc;
}

int kv_invalidate(struct kv_qp *q, uint64_t id, uint32_t rkey)
{
	struct v_send_wr w;

	memset(&w, 0, sizeof w);
	w.wr_id = id;
	w.opcode = V_WR_LOCAL_INV;
	w.send_flags = V_SEND_SIGNALED;
	w.invalidate_rkey = rkey;
	return post_one(q, &w);
}

static uint8_t status(int s)
{
	switch (s) {
	case V_WC_SUCCESS:
		return KV_SUCCESS;
	case V_WC_WR_FLUSH_ERR:
		return KV_FLUSHED;
	case V_WC_REM_ACCESS_ERR:
		return KV_REMOTE_ACCESS;
	case V_WC_RETRY_EXC_ERR:
		return KV_RETRIES;
	case V_WC_RNR_RETRY_EXC_ERR:
		return KV_RNR;
	case V_WC_LOC_PROT_ERR:
	case V_WC_LOC_ACCESS_ERR:
		return KV_LOCAL_PROTECTION;
	case V_WC_REM_INV_REQ_ERR:
		return KV_REMOTE_INVALID;
	case V_WC_REM_OP_ERR:
		return KV_REMOTE_OPERATION;
	case V_WC_MW_BIND_ERR:
		return KV_BIND_FAILED;
	}
	return KV_OTHER;
}

enum { BATCH = 32 };

// poll_one fills out with up to max completions of one queue but those of the queue pair skip (0: all). *taken counts all.
static int poll_one(struct kv_cq *q, struct kv_completion *out, int max, uint32_t skip, int *taken)
{
	struct v_wc wc[BATCH];
	int n = 0;

	*taken = 0;
	while (*taken < max) {
		int want = max - *taken < BATCH ? max - *taken : BATCH;
		int got = q->cq->context->ops.poll_cq(q->cq, want, wc);
		if (got < 0)
			return n ? n : -EIO;
		for (int i = 0; i < got; i++) {
			if (skip && wc[i].qp_num == skip)
				continue;
			struct kv_completion *c = &out[n++];
			c->id = wc[i].wr_id;
			c->qpn = wc[i].qp_num;
			c->status = status(wc[i].status);
			c->recv = q->recv;
			c->raw = (uint8_t)wc[i].status;
			c->bytes = q->recv && c->status == KV_SUCCESS ? wc[i].byte_len : 0;
		}
		*taken += got;
		if (got < want)
			break;
	}
	return n;
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ __volatile__("yield");
#endif
}

int kv_poll(struct kv_dev *d, struct kv_completion *out, int max, uint64_t spin_ns)
{
	uint64_t until = spin_ns ? now_ns() + spin_ns : 0;

	for (;;) {
		int n = 0, taken;
		for (uint32_t i = 0; i < d->cq_count && n < max; i++) {
			int got = poll_one(&d->cqs[(d->cq_first + i) % d->cq_count], out + n, max - n, 0, &taken);
			if (got < 0)
				return n ? n : got;
			n += got;
		}
		// The next call begins with another queue, so that none waits behind a busy one.
		d->cq_first = d->cq_count ? (d->cq_first + 1) % d->cq_count : 0;
		if (n || !spin_ns || now_ns() >= until)
			return n;
		for (int i = 0; i < 16; i++)
			relax();
	}
}

int kv_purge(struct kv_dev *d, int cq, uint32_t qpn, struct kv_completion *out, int max, int *kept)
{
	int taken;
	int n = poll_one(&d->cqs[cq], out, max, qpn, &taken);

	*kept = n > 0 ? n : 0;
	return n < 0 ? n : taken;
}

int kv_arm(struct kv_dev *d)
{
	struct v_cq *cq;
	void *context;

	// Acknowledged at once: the destruction of a queue waits for that.
	for (;;) {
		errno = 0;
		if (d->lib->get_cq_event(d->channel, &cq, &context)) {
			if (errno == EINTR)
				continue;
			if (errno != EAGAIN && errno != EWOULDBLOCK)
				return errno ? errno : EIO;
			break;
		}
		((struct kv_cq *)context)->armed = 0;
		d->lib->ack_cq_events(cq, 1);
	}
	for (uint32_t i = 0; i < d->cq_count; i++) {
		struct kv_cq *q = &d->cqs[i];
		if (q->armed)
			continue;
		errno = 0;
		int rc = q->cq->context->ops.req_notify_cq(q->cq, 0);
		if (rc)
			return rc > 0 ? rc : (errno ? errno : EIO);
		q->armed = 1;
	}
	return 0;
}
