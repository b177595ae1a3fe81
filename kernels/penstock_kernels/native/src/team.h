/* Threads that share work with the one that calls. */
#ifndef PENSTOCK_TEAM_H
#define PENSTOCK_TEAM_H

#include <stdint.h>

/* Computes the numbers `from .. until` of a job. */
typedef void (*Share)(const void *job, int64_t from, int64_t until);
/* Computes one. */
typedef void (*Each)(const void *job, int64_t number);

/* Calls `share` for all numbers below `count`, `at_once` at a time, with up to `num_threads` threads, and returns when all
   are done. Threads beside the caller take part as far as they run: one that the system has taken off its core keeps
   nobody waiting but for the share that it is at. */
void share_out(int num_threads, int64_t count, int64_t at_once, Share share, const void *job);

/* `share_out` number by number, for numbers of which each is some work. */
void for_each(int num_threads, int64_t count, Each each, const void *job);

/* `share_out` for rows that take less time than sharing them does: a thread takes some at a time. */
void for_each_row(int num_threads, int64_t count, Each each, const void *job);

#endif
