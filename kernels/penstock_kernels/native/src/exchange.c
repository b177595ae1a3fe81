/* Sums and exchanges between processes of one machine, over memory that they share. Sockets would take a thousand times
   as long: a decode step makes two sums a layer, of a few kilobytes.

   Each rank has a line, with the number of rounds that it has brought its part to, and two parts: in a round it writes
   one of them, says so on its line, and reads the others' when they have said so, too. Who has said so in a round has
   read all parts of the round before: so two parts take turns, and nobody waits twice.

   A channel has the same memory but for one thing: what its first rank puts there, part by part in a ring, its second one
   takes. The first one waits only where the ring is full, the second one where it is empty. */

#define _GNU_SOURCE
#include "processor.h"

#include <errno.h>
#include <stdatomic.h>
#ifdef __linux__
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#endif

/* The state of a rank that the others read; it fills a cache line. */
typedef struct {
    _Atomic uint32_t round;
    _Atomic uint32_t num_asleep; /* ranks that sleep until the next round */
    _Atomic uint32_t has_joined;
    uint32_t unused;
    int64_t num_bytes[2]; /* of each part */
    char padding[32];
} Line;

/* A rank's end. Mirrored field by field in exchange.py. */
typedef struct {
    char *memory; /* [size] lines, then [size, 2, part_bytes] parts */
    int64_t part_bytes;
    int64_t timeout_ms;
    int32_t rank;
    int32_t size;
    int32_t file; /* that the memory is of: each rank has locked the byte of its number, as long as it lives */
    uint32_t round;
    int32_t failure; /* why a call failed, and which rank was waited for */
    int32_t failed_rank;
} Link;

/* Reasons for a failed call. Mirrored in exchange.py. */
enum { GONE = 1, LATE = 2, DIFFERENT = 3 };

/* Calls. Mirrored field by field in exchange.py. */
typedef struct {
    Link *link;
    void *numbers; /* [count], contiguous */
    int64_t count;
    int64_t dtype;
} Sum;

typedef struct {
    Link *link;
    const char *mine; /* [num_bytes] */
    char *everyones;  /* [size, num_bytes] */
    int64_t num_bytes;
} Gather;

typedef struct {
    Link *link;
    char *bytes;
    int64_t num_bytes;
} Message;

#ifdef __linux__

/* Some 20 microseconds: ranks that compute the same arrive together, and to sleep and wake takes longer. */
enum { NUM_SPINS = 500, NAP_MS = 20 };
/* Parts in the ring of a channel; mirrored in channel.py. Messages of the last stage of a model must find room while nobody
   takes them. */
enum { NUM_RING_PARTS = 256 };
/* Numbers that are added before they are rounded. */
enum { BLOCK = 1024 };

static Line *line_of(const Link *link, int rank) { return (Line *)link->memory + rank; }

static char *part_of(const Link *link, int rank) {
    char *parts = link->memory + link->size * sizeof(Line);
    return parts + (rank * 2 + link->round % 2) * link->part_bytes;
}

static int fail(Link *link, int failure, int rank) {
    link->failure = failure;
    link->failed_rank = rank;
    return -1;
}

static int64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static inline void rest(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Whether the process of a rank lives: locks end with the process that has them, whatever ends it. */
static int lives(const Link *link, int rank) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = rank, .l_len = 1};
    return !atomic_load(&line_of(link, rank)->has_joined) || fcntl(link->file, F_OFD_GETLK, &lock) != 0 ||
           lock.l_type != F_UNLCK;
}

static int has_come(const Line *line, uint32_t round) { return (int32_t)(atomic_load(&line->round) - round) >= 0; }

static void sleep_until_next(Line *line, uint32_t seen) {
    const struct timespec nap = {.tv_nsec = NAP_MS * 1000000};
    atomic_fetch_add(&line->num_asleep, 1);
    syscall(SYS_futex, &line->round, FUTEX_WAIT, seen, &nap, NULL, 0);
    atomic_fetch_sub(&line->num_asleep, 1);
}

static int wait_for(Link *link, int rank, uint32_t round) {
    Line *line = line_of(link, rank);
    for (int spin = 0; spin < NUM_SPINS; spin++) {
        if (has_come(line, round)) return 0;
        rest();
    }
    for (const int64_t begun = now_ms();;) {
        const int is_alive = lives(link, rank), is_late = now_ms() - begun > link->timeout_ms;
        const uint32_t seen = atomic_load(&line->round);
        /* Read after all else: who came in the last moment has come. */
        if (has_come(line, round)) return 0;
        if (!is_alive) return fail(link, GONE, rank);
        if (is_late) return fail(link, LATE, rank);
        sleep_until_next(line, seen);
    }
}

static void tell(const Link *link) {
    Line *mine = line_of(link, link->rank);
    atomic_store(&mine->round, link->round);
    if (atomic_load(&mine->num_asleep)) syscall(SYS_futex, &mine->round, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

/* This rank's part is written; returns when those of all others are. */
static int meet(Link *link, int64_t num_bytes) {
    line_of(link, link->rank)->num_bytes[link->round % 2] = num_bytes;
    tell(link);
    for (int rank = 0; rank < link->size; rank++) {
        if (rank == link->rank) continue;
        if (wait_for(link, rank, link->round) != 0) return -1;
        if (line_of(link, rank)->num_bytes[link->round % 2] != num_bytes) return fail(link, DIFFERENT, rank);
    }
    return 0;
}

/* Compiled for wider vectors, too. */
#if defined(__x86_64__)
#define WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WIDE
#endif

/* Add in the order of ranks, so that all have the same bits, and round once. */
WIDE static void add_float32(const Link *link, float *to, int64_t count) {
    memcpy(to, part_of(link, 0), count * sizeof *to);
    for (int rank = 1; rank < link->size; rank++) {
        const float *from = (const float *)part_of(link, rank);
        for (int64_t i = 0; i < count; i++) to[i] += from[i];
    }
}

WIDE static void add_bfloat16(const Link *link, uint16_t *to, int64_t count) {
    float sums[BLOCK];
    for (int64_t begin = 0; begin < count; begin += BLOCK) {
        const int64_t len = count - begin < BLOCK ? count - begin : BLOCK;
        memset(sums, 0, sizeof sums);
        for (int rank = 0; rank < link->size; rank++) {
            const uint16_t *from = (const uint16_t *)part_of(link, rank) + begin;
            for (int64_t i = 0; i < len; i++) sums[i] += from_bfloat16(from[i]);
        }
        for (int64_t i = 0; i < len; i++) to[begin + i] = to_bfloat16(sums[i]);
    }
}

static int lock(const Link *link, short kind) {
    struct flock lock = {.l_type = kind, .l_whence = SEEK_SET, .l_start = link->rank, .l_len = 1};
    return fcntl(link->file, F_OFD_SETLK, &lock) == 0 ? 0 : errno;
}

/* Takes part; the others notice from now on when this process ends. */
int penstock_join(const Link *link) {
    const int error = lock(link, F_WRLCK);
    if (!error) atomic_store(&line_of(link, link->rank)->has_joined, 1);
    return error;
}

/* Leaves the group: for the other ranks this is as if the process had ended. */
int penstock_leave(const Link *link) { return lock(link, F_UNLCK); }

/* The sum over all ranks, in place. */
int penstock_sum(const Sum *call) {
    Link *link = call->link;
    const int64_t width = call->dtype == FLOAT32 ? sizeof(float) : sizeof(uint16_t);
    const int64_t most = link->part_bytes / width;
    for (int64_t begin = 0; begin < call->count; begin += most) {
        const int64_t count = call->count - begin < most ? call->count - begin : most;
        char *numbers = (char *)call->numbers + begin * width;
        link->round++;
        memcpy(part_of(link, link->rank), numbers, count * width);
        if (meet(link, count * width) != 0) return -1;
        if (call->dtype == FLOAT32) add_float32(link, (float *)numbers, count);
        else add_bfloat16(link, (uint16_t *)numbers, count);
    }
    return 0;
}

/* Copies the bytes of each rank to all ranks. */
int penstock_gather(const Gather *call) {
    Link *link = call->link;
    for (int64_t begin = 0; begin < call->num_bytes; begin += link->part_bytes) {
        const int64_t left = call->num_bytes - begin;
        const int64_t len = left < link->part_bytes ? left : link->part_bytes;
        link->round++;
        memcpy(part_of(link, link->rank), call->mine + begin, len);
        if (meet(link, len) != 0) return -1;
        for (int rank = 0; rank < link->size; rank++)
            memcpy(call->everyones + rank * call->num_bytes + begin, part_of(link, rank), len);
    }
    return 0;
}

/* The part of a ring that has this number: how many bytes of its message are left, on a line, and as many of them as
   there is room for. */
static char *ring_part(const Link *link, uint32_t round) {
    char *parts = link->memory + 2 * sizeof(Line);
    return parts + (round % NUM_RING_PARTS) * (sizeof(Line) + link->part_bytes);
}

static int64_t within(const Link *link, int64_t left) { return left < link->part_bytes ? left : link->part_bytes; }

/* Rank 0 of a channel: a message of any size is behind those before it. */
int penstock_put(const Message *call) {
    Link *link = call->link;
    int64_t begin = 0;
    do {
        const int64_t left = call->num_bytes - begin;
        link->round++;
        if (wait_for(link, 1, link->round - NUM_RING_PARTS) != 0) return -1;
        char *part = ring_part(link, link->round);
        memcpy(part, &left, sizeof left);
        memcpy(part + sizeof(Line), call->bytes + begin, within(link, left));
        tell(link);
        begin += within(link, left);
    } while (begin < call->num_bytes);
    return 0;
}

/* Rank 1: the size of the next message, when it has come. */
int penstock_await(Message *call) {
    Link *link = call->link;
    if (wait_for(link, 0, link->round + 1) != 0) return -1;
    memcpy(&call->num_bytes, ring_part(link, link->round + 1), sizeof call->num_bytes);
    return 0;
}

/* Rank 1: whether one has come. */
int penstock_has_come(const Message *call) { return has_come(line_of(call->link, 0), call->link->round + 1); }

/* Rank 1: the next message, whose size is known. */
int penstock_take(const Message *call) {
    Link *link = call->link;
    int64_t begin = 0;
    do {
        const int64_t left = call->num_bytes - begin;
        if (wait_for(link, 0, link->round + 1) != 0) return -1;
        link->round++;
        memcpy(call->bytes + begin, ring_part(link, link->round) + sizeof(Line), within(link, left));
        tell(link);
        begin += within(link, left);
    } while (begin < call->num_bytes);
    return 0;
}

#endif
