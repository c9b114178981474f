//go:build ignore

// The line above is for the go command: this is compiled where it runs, see limit.go.
//
// What this machine can do with a list of scattered pieces: the limit that kvxfer's transfers are held against.
//
//   limit LIST SRC_BYTES DST_BYTES
//
// LIST is a file of {offset in src, offset in dst, length}, three little-endian uint64 a piece. src and dst are shared
// memory objects with every page touched, as kvxfer's caches are. It says "ready" and the second
// process's number, and then takes a command a line:
//
//   copy  WHAT LANES STREAM ROUNDS   copy by LANES threads; STREAM 1: stores that pass the caches, where
//                                    the compiler has SSE2, else memcpy
//   write WHAT LANES IOVS ROUNDS     writev here, readv in a second process, over LANES connections of loop-back TCP,
//   read  WHAT LANES IOVS ROUNDS     or the other way round; at most IOVS pieces a call
//   check WHAT                       compare dst with src, then clear dst
//
// WHAT is "list", or "line": 64 MiB of contiguous memory in calls of 1 MiB. The answer is one line: the nanoseconds of
// each round, or "ok", or "error: " and why. It ends when its input does.
//
// Every call blocks, and each lane has a thread on either side; the first lane is moved by the thread that measures, so
// that with one lane nobody is woken. A round over TCP ends when all of it is in its place: after a write the receiver
// says so with a byte a lane, and a read begins with one.

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum { MAX_LANES = 4, MAX_IOVS = 1024, MAX_ROUNDS = 4096, LINE_PIECES = 64, LINE_PIECE = 1 << 20 };

struct piece { uint64_t src, dst, len; };
struct list { struct piece *pieces; uint64_t n; char *src, *dst; };
// What the lanes have to do; over TCP it goes to the other process before the clock runs. A copy's iovs: 1 streams.
struct job { uint32_t what, copying, reading, lanes, iovs, rounds; };

static struct list lists[2]; // list, line
static int ends[2][MAX_LANES]; // [this process, the other][lane]
static uint64_t took[MAX_ROUNDS];

static void die(const char *format, ...) {
    va_list args;
    va_start(args, format);
    printf("error: ");
    vprintf(format, args);
    printf("\n");
    fflush(stdout);
    _exit(1);
}

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static char *memory(size_t bytes) {
    int fd = memfd_create("limit", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0) die("no memory object: %s", strerror(errno));
    char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (p == MAP_FAILED) die("no memory: %s", strerror(errno));
    close(fd);
    return p;
}

// Every byte of a source is a function of its offset, so a piece at a wrong place is seen.
static void fill(char *p, size_t bytes) {
    uint64_t x = 0x9e3779b97f4a7c15u;
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u + i;
        memcpy(p + i, &x, 8);
    }
}

// ---- copies

static void copy_stream(char *dst, const char *src, size_t len) {
#ifdef __SSE2__
    size_t head = (16 - ((uintptr_t)dst & 15)) & 15;
    if (head > len) head = len;
    memcpy(dst, src, head);
    dst += head, src += head, len -= head;
    for (; len >= 64; dst += 64, src += 64, len -= 64) {
        __m128i a = _mm_loadu_si128((const __m128i *)src), b = _mm_loadu_si128((const __m128i *)(src + 16));
        __m128i c = _mm_loadu_si128((const __m128i *)(src + 32)), d = _mm_loadu_si128((const __m128i *)(src + 48));
        _mm_stream_si128((__m128i *)dst, a);
        _mm_stream_si128((__m128i *)(dst + 16), b);
        _mm_stream_si128((__m128i *)(dst + 32), c);
        _mm_stream_si128((__m128i *)(dst + 48), d);
    }
#endif
    memcpy(dst, src, len);
}

static void share(const struct list *l, uint32_t lanes, uint32_t lane, uint64_t *from, uint64_t *to) {
    *from = l->n * lane / lanes;
    *to = l->n * (lane + 1) / lanes;
}

static void copy_share(const struct list *l, uint32_t lanes, uint32_t lane, int stream) {
    uint64_t i, to;
    for (share(l, lanes, lane, &i, &to); i < to; i++) {
        const struct piece *p = &l->pieces[i];
        if (stream) copy_stream(l->dst + p->dst, l->src + p->src, p->len);
        else memcpy(l->dst + p->dst, l->src + p->src, p->len);
    }
#ifdef __SSE2__
    if (stream) _mm_sfence();
#endif
}

// ---- lanes

static int all(ssize_t (*call)(int, const struct iovec *, int), int fd, struct iovec *v, int n) {
    while (n > 0) {
        ssize_t done = call(fd, v, n);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return -1;
        while (n > 0 && (size_t)done >= v->iov_len) done -= (ssize_t)v->iov_len, v++, n--;
        if (n > 0) v->iov_base = (char *)v->iov_base + done, v->iov_len -= (size_t)done;
    }
    return 0;
}

static int send_share(const struct list *l, const struct job *j, uint32_t lane, int fd, int sending) {
    struct iovec v[MAX_IOVS];
    uint64_t i, to;
    share(l, j->lanes, lane, &i, &to);
    while (i < to) {
        int n = 0;
        for (; n < (int)j->iovs && i < to; n++, i++) {
            const struct piece *p = &l->pieces[i];
            v[n].iov_base = sending ? l->src + p->src : l->dst + p->dst;
            v[n].iov_len = p->len;
        }
        if (all(sending ? writev : readv, fd, v, n) != 0) return -1;
    }
    return 0;
}

static int say(int fd) { return write(fd, "!", 1) == 1 ? 0 : -1; }

static int hear(int fd) {
    char c;
    return read(fd, &c, 1) == 1 ? 0 : -1;
}

static int round_of(int here, const struct job *j, uint32_t lane) {
    const struct list *l = &lists[j->what];
    int fd = ends[!here][lane], sending = here != (int)j->reading;
    if (j->reading) {
        if ((here ? say(fd) : hear(fd)) != 0) return -1;
        return send_share(l, j, lane, fd, sending);
    }
    if (send_share(l, j, lane, fd, sending) != 0) return -1;
    return here ? hear(fd) : say(fd);
}

// The other process: a thread a lane, each told by its own connection what to do.
static void *serve(void *arg) {
    uint32_t lane = (uint32_t)(uintptr_t)arg;
    int fd = ends[1][lane];
    struct job j;
    while (recv(fd, &j, sizeof j, MSG_WAITALL) == (ssize_t)sizeof j && say(fd) == 0)
        for (uint32_t i = 0; i < j.rounds; i++)
            if (round_of(0, &j, lane) != 0) _exit(1);
    _exit(0);
}

// ---- the threads that measure

static pthread_barrier_t begin[MAX_LANES + 1], end[MAX_LANES + 1]; // by the number of lanes
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t given = PTHREAD_COND_INITIALIZER;
static struct job todo; // with order, under lock
static uint64_t order;  // grows with every job

static void work(const struct job *j, uint32_t lane) {
    if (j->copying) copy_share(&lists[j->what], j->lanes, lane, j->iovs != 0);
    else if (round_of(1, j, lane) != 0) die("a connection broke: %s", strerror(errno));
}

static void *help(void *arg) {
    uint32_t lane = (uint32_t)(uintptr_t)arg;
    for (uint64_t seen = 0;;) {
        pthread_mutex_lock(&lock);
        while (order == seen) pthread_cond_wait(&given, &lock);
        seen = order; // a job that was missed had no part for this lane: measure waits for those that have one
        struct job j = todo;
        pthread_mutex_unlock(&lock);
        for (uint32_t i = 0; lane < j.lanes && i < j.rounds; i++) {
            pthread_barrier_wait(&begin[j.lanes]);
            work(&j, lane);
            pthread_barrier_wait(&end[j.lanes]);
        }
    }
    return NULL;
}

static void measure(struct job j) {
    pthread_mutex_lock(&lock);
    todo = j;
    order++;
    if (j.lanes > 1) pthread_cond_broadcast(&given);
    pthread_mutex_unlock(&lock);
    for (uint32_t i = 0; i < j.rounds; i++) {
        uint64_t t = now(); // before the barrier: a helper may be off it first
        if (j.lanes > 1) pthread_barrier_wait(&begin[j.lanes]);
        work(&j, 0);
        if (j.lanes > 1) pthread_barrier_wait(&end[j.lanes]);
        took[i] = now() - t;
    }
    for (uint32_t i = 0; i < j.rounds; i++) printf("%s%" PRIu64, i ? " " : "", took[i]);
    printf("\n");
}

static void connect_lanes(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    if (listener < 0 || bind(listener, (struct sockaddr *)&at, size) != 0 || listen(listener, MAX_LANES) != 0 ||
        getsockname(listener, (struct sockaddr *)&at, &size) != 0)
        die("no loop-back port: %s", strerror(errno));
    for (int i = 0; i < MAX_LANES; i++) {
        ends[0][i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (ends[0][i] < 0 || connect(ends[0][i], (struct sockaddr *)&at, size) != 0 ||
            (ends[1][i] = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) < 0)
            die("no loop-back connection: %s", strerror(errno));
        for (int side = 0; side < 2; side++) setsockopt(ends[side][i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    }
    close(listener);
}

static void check(const struct list *l) {
    for (uint64_t i = 0; i < l->n; i++) {
        const struct piece *p = &l->pieces[i];
        if (memcmp(l->dst + p->dst, l->src + p->src, p->len) != 0) die("piece %" PRIu64 " is not what was sent", i);
    }
    for (uint64_t i = 0; i < l->n; i++) memset(l->dst + l->pieces[i].dst, 0, l->pieces[i].len);
    printf("ok\n");
}

static void load(const char *path, size_t src_bytes, size_t dst_bytes) {
    FILE *f = fopen(path, "rb");
    struct stat s;
    if (f == NULL || fstat(fileno(f), &s) != 0) die("%s: %s", path, strerror(errno));
    struct list *l = &lists[0];
    l->n = (uint64_t)s.st_size / sizeof *l->pieces;
    l->pieces = malloc((size_t)s.st_size);
    if (l->pieces == NULL || fread(l->pieces, sizeof *l->pieces, l->n, f) != l->n || l->n == 0) die("%s is no list", path);
    fclose(f);
    for (uint64_t i = 0; i < l->n; i++) {
        const struct piece *p = &l->pieces[i];
        if (p->len == 0 || p->len > src_bytes || p->src > src_bytes - p->len || p->len > dst_bytes || p->dst > dst_bytes - p->len)
            die("piece %" PRIu64 " lies outside the memory", i);
    }
    l->src = memory(src_bytes), l->dst = memory(dst_bytes);
    fill(l->src, src_bytes);
    l = &lists[1];
    l->n = LINE_PIECES;
    l->pieces = malloc(LINE_PIECES * sizeof *l->pieces);
    if (l->pieces == NULL) die("no memory");
    for (uint64_t i = 0; i < LINE_PIECES; i++) l->pieces[i] = (struct piece){i * LINE_PIECE, i * LINE_PIECE, LINE_PIECE};
    l->src = memory((size_t)LINE_PIECES * LINE_PIECE), l->dst = memory((size_t)LINE_PIECES * LINE_PIECE);
    fill(l->src, (size_t)LINE_PIECES * LINE_PIECE);
}

static void touch(void) { // the page tables of a forked process begin empty
    for (int i = 0; i < 2; i++)
        for (uint64_t k = 0; k < lists[i].n; k++)
            for (uint64_t at = 0; at < lists[i].pieces[k].len; at += 512) {
                (void)*(volatile char *)(lists[i].src + lists[i].pieces[k].src + at);
                *(volatile char *)(lists[i].dst + lists[i].pieces[k].dst + at) = 0;
            }
}

int main(int argc, char **argv) {
    if (argc != 4) die("three arguments are needed: LIST SRC_BYTES DST_BYTES");
    signal(SIGPIPE, SIG_IGN);
    load(argv[1], strtoull(argv[2], NULL, 10), strtoull(argv[3], NULL, 10));
    connect_lanes();
    pid_t parent = getpid(), other = fork();
    if (other < 0) die("no second process: %s", strerror(errno));
    pthread_t t;
    if (other == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1);
        for (int i = 0; i < MAX_LANES; i++) close(ends[0][i]);
        touch();
        if (say(ends[1][0]) != 0) _exit(1);
        for (uintptr_t i = 1; i < MAX_LANES; i++)
            if (pthread_create(&t, NULL, serve, (void *)i) != 0) _exit(1);
        serve((void *)0);
    }
    for (int i = 0; i < MAX_LANES; i++) close(ends[1][i]);
    if (hear(ends[0][0]) != 0) die("the second process does not begin"); // it has touched the memory, which it shares
    for (uint32_t i = 2; i <= MAX_LANES; i++) {
        pthread_barrier_init(&begin[i], NULL, i);
        pthread_barrier_init(&end[i], NULL, i);
    }
    for (uintptr_t i = 1; i < MAX_LANES; i++)
        if (pthread_create(&t, NULL, help, (void *)i) != 0) die("no thread: %s", strerror(errno));
    printf("ready %d\n", (int)other);
    fflush(stdout);
    for (char line[256]; fgets(line, sizeof line, stdin) != NULL; fflush(stdout)) {
        char verb[16], what[16];
        uint32_t lanes = 0, how = 0, rounds = 0;
        int n = sscanf(line, "%15s %15s %" SCNu32 " %" SCNu32 " %" SCNu32, verb, what, &lanes, &how, &rounds);
        if (n < 2 || (strcmp(what, "list") != 0 && strcmp(what, "line") != 0)) die("list or line is needed");
        uint32_t which = strcmp(what, "line") == 0;
        if (strcmp(verb, "check") == 0) {
            check(&lists[which]);
            continue;
        }
        struct job j = {which, strcmp(verb, "copy") == 0, strcmp(verb, "read") == 0, lanes, how, rounds};
        if (n != 5 || (!j.copying && !j.reading && strcmp(verb, "write") != 0)) die("no such command");
        if (lanes < 1 || lanes > MAX_LANES || rounds < 1 || rounds > MAX_ROUNDS || (!j.copying && (how < 1 || how > MAX_IOVS)))
            die("lanes 1..%d, pieces a call 1..%d, rounds 1..%d are allowed", MAX_LANES, MAX_IOVS, MAX_ROUNDS);
        for (uint32_t i = 0; !j.copying && i < lanes; i++)
            if (write(ends[0][i], &j, sizeof j) != (ssize_t)sizeof j || hear(ends[0][i]) != 0)
                die("the second process does not answer");
        measure(j);
    }
    kill(other, SIGKILL);
    return 0;
}
