/* A job is open to helpers while numbers are left. Helpers wait for the next in a loop for a while, as in a step one job
   follows the other within microseconds, and then sleep. */

#define _GNU_SOURCE
#include "team.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <time.h>

/* Nanoseconds until a helper that finds no job sleeps: more than what lies between the jobs of a step. Rounds of a loop that
   waits between looks at the clock, and rounds until the caller lets others run. */
enum { AWAKE = 50000, ROUNDS = 32, PATIENCE = 4000, MOST_HELPERS = 0xfff };

/* Fields of the state: how many helpers are at the job, whether more may come, how many are wanted, and the number of the
   job. */
#define HELPERS 0xfffULL
#define OPEN 0x1000ULL
#define WANTED(state) ((int)((state) >> 13 & 0xfff))
#define JOB(state) ((state) >> 25)
#define STATE(job, num_wanted) ((uint64_t)(job) << 25 | (uint64_t)(num_wanted) << 13 | OPEN)

static struct {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    int64_t num_calls; /* of those asleep; under the lock */
    int num_asleep;
    int num_helpers;
    int is_taken;
    uint64_t state __attribute__((aligned(64)));
    int64_t next __attribute__((aligned(64)));
    int64_t count;
    int64_t at_once;
    Share share;
    const void *job;
} team = {.lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void take_shares(void) {
    int64_t from;
    while ((from = __atomic_fetch_add(&team.next, team.at_once, __ATOMIC_RELAXED)) < team.count) {
        const int64_t until = from + team.at_once;
        team.share(team.job, from, until < team.count ? until : team.count);
    }
}

/* Whether there was a job that this helper had not seen; `seen` becomes its number. Helpers beyond those that are wanted
   only read the state. */
static int help(int number, uint64_t *seen) {
    uint64_t state = __atomic_load_n(&team.state, __ATOMIC_ACQUIRE);
    if (!(state & OPEN) || JOB(state) == *seen) return 0;
    if (number < WANTED(state)) {
        if (!__atomic_compare_exchange_n(&team.state, &state, state + 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) return 1;
        take_shares();
        __atomic_fetch_sub(&team.state, 1, __ATOMIC_RELEASE);
    }
    *seen = JOB(state);
    return 1;
}

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

/* Until the next call, unless a job came before this one was seen to be asleep. */
static void sleep_until_called(uint64_t seen) {
    pthread_mutex_lock(&team.lock);
    const int64_t calls = team.num_calls;
    __atomic_fetch_add(&team.num_asleep, 1, __ATOMIC_SEQ_CST);
    const uint64_t state = __atomic_load_n(&team.state, __ATOMIC_SEQ_CST);
    if (!(state & OPEN) || JOB(state) == seen)
        while (team.num_calls == calls) pthread_cond_wait(&team.wake, &team.lock);
    __atomic_fetch_sub(&team.num_asleep, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&team.lock);
}

static void *run_helper(void *number) {
    uint64_t seen = 0;
    for (;;) {
        const int64_t since = now();
        do
            for (int round = 0; round < ROUNDS; round++) {
                if (help((int)(intptr_t)number, &seen)) goto helped;
                relax();
            }
        while (now() - since < AWAKE);
        sleep_until_called(seen);
    helped:;
    }
    return 0;
}

/* Resets the team in a process that was forked: it has no helpers, and no thread has the team. */
static void forget_helpers(void) {
    pthread_mutex_init(&team.lock, 0);
    pthread_cond_init(&team.wake, 0);
    team.num_asleep = team.num_helpers = team.is_taken = 0;
    team.state = 0;
}

/* Signals are for the threads of the program. What cannot be started is missing. */
static void start_helpers(int count) {
    sigset_t all, before;
    pthread_t thread;
    static int is_prepared;
    if (!is_prepared) is_prepared = !pthread_atfork(0, 0, forget_helpers);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (team.num_helpers < count && pthread_create(&thread, 0, run_helper, (void *)(intptr_t)team.num_helpers) == 0) {
        pthread_detach(thread);
        team.num_helpers++;
    }
    pthread_sigmask(SIG_SETMASK, &before, 0);
}

static void call_helpers(void) {
    pthread_mutex_lock(&team.lock);
    team.num_calls++;
    pthread_cond_broadcast(&team.wake);
    pthread_mutex_unlock(&team.lock);
}

static void open_job(int num_wanted, int64_t count, int64_t at_once, Share share, const void *job) {
    if (team.num_helpers < num_wanted) start_helpers(num_wanted);
    team.next = 0;
    team.count = count;
    team.at_once = at_once;
    team.share = share;
    team.job = job;
    const uint64_t job_number = JOB(__atomic_load_n(&team.state, __ATOMIC_RELAXED)) + 1;
    __atomic_store_n(&team.state, STATE(job_number, num_wanted), __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&team.num_asleep, __ATOMIC_SEQ_CST) > 0) call_helpers();
}

/* Lets no more helpers in, and waits until all have left. Called when the last share was begun. */
static void close_job(void) {
    uint64_t state = __atomic_and_fetch(&team.state, ~OPEN, __ATOMIC_ACQ_REL);
    for (int round = 0; state & HELPERS; state = __atomic_load_n(&team.state, __ATOMIC_ACQUIRE)) {
        if (++round < PATIENCE) relax();
        else sched_yield();
    }
}

void share_out(int num_threads, int64_t count, int64_t at_once, Share share, const void *job) {
    const int64_t num_shares = (count + at_once - 1) / at_once;
    int num_wanted = num_threads - 1 < MOST_HELPERS ? num_threads - 1 : MOST_HELPERS;
    if (num_shares - 1 < num_wanted) num_wanted = (int)num_shares - 1;
    if (num_wanted < 1 || __atomic_exchange_n(&team.is_taken, 1, __ATOMIC_ACQUIRE)) {
        /* Alone; so is a thread that meets another one's job. */
        if (count > 0) share(job, 0, count);
        return;
    }
    open_job(num_wanted, count, at_once, share, job);
    take_shares();
    close_job();
    __atomic_store_n(&team.is_taken, 0, __ATOMIC_RELEASE);
}

/* A job whose shares are computed number by number. */
typedef struct {
    Each each;
    const void *job;
} Numbers;

static void take_numbers(const void *job, int64_t from, int64_t until) {
    const Numbers *numbers = job;
    for (int64_t number = from; number < until; number++) numbers->each(numbers->job, number);
}

void for_each(int num_threads, int64_t count, Each each, const void *job) {
    const Numbers numbers = {each, job};
    share_out(num_threads, count, 1, take_numbers, &numbers);
}

void for_each_row(int num_threads, int64_t count, Each each, const void *job) {
    enum { SHARES = 8 }; /* of a thread: of equal work some take longer */
    const Numbers numbers = {each, job};
    const int64_t at_once = count / ((int64_t)SHARES * num_threads);
    share_out(num_threads, count, at_once < 1 ? 1 : at_once, take_numbers, &numbers);
}
