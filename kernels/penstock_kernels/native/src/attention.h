/* Attention over a paged KV cache on a CPU: what the caller passes, and what the variants share. */
#ifndef PENSTOCK_ATTENTION_H
#define PENSTOCK_ATTENTION_H

#include <stddef.h>
#include <stdint.h>

/* One call. Strides count numbers, not bytes. Mirrored field by field in attention.py. */
typedef struct {
    const void *query;  /* [num_tokens, num_heads, head_dim] */
    void *output;       /* [num_tokens, num_heads, value_dim], contiguous */
    const void *key;    /* [num_blocks, block_size, num_kv_heads, head_dim] */
    const void *value;  /* [num_blocks, block_size, num_kv_heads, value_dim]; that of the keys where these begin with values */
    const int32_t *query_starts;  /* [num_spans + 1] */
    const int32_t *context_lens;  /* [num_spans] */
    const int32_t *tables;        /* [num_spans, ...] */
    const float *sinks;           /* [num_heads], or none */
    int64_t table_stride;
    int64_t query_token_stride;
    int64_t query_head_stride;
    int64_t block_stride;
    int64_t position_stride;
    int64_t head_stride;
    int64_t value_block_stride;
    int64_t value_position_stride;
    int64_t value_head_stride;
    int32_t num_spans;
    int32_t num_heads;
    int32_t num_kv_heads;
    int32_t head_dim;
    int32_t value_dim;
    int32_t block_size;
    int32_t window;  /* 0: none */
    int32_t dtype;
    int32_t num_threads;
    int32_t max_lanes;  /* numbers in the widest vector to use; 0: any */
    float scale;
    float soft_cap;  /* 0: none */
    const float *slopes; /* [num_heads], or none: what a score loses for each position between query and key */
    int32_t chunk; /* positions that queries see of each other; 0: none */
    const int32_t *tree; /* [num_tokens], or none: bit i says that a token sees the position i before its own */
} Attention;

/* Positions whose scores are held at a time. Tiles begin at multiples of it, counted from a sequence's first position,
   so the order of a sum depends on the position of the query and on nothing else. */
enum { TILE_LEN = 64, TILE_ROWS = 96, MAX_HEAD_DIM = 576 };

/* Rows of keys or values that are fetched ahead, at most, and bytes of them: they shall stay in the first cache. */
enum { AHEAD = 32, AHEAD_BYTES = 8 << 10 };

/* From so many rows on, a tile is copied where its keys are far apart. */
enum { WORTH_A_COPY = 16 };

/* One tile of queries: rows are (position, head) pairs that read the same keys. There is one for each of some key heads
   that follow each other: so memory is read in longer runs. */
typedef struct {
    const Attention *call;
    int32_t span;
    int32_t kv_head;       /* the first of them */
    int32_t num_kv_heads;
    int32_t first;         /* token of the span */
    int32_t num_tokens;
} Work;

/* Positions that are read together: where their keys and values are, and their type. */
typedef struct {
    const char *keys[TILE_LEN];
    const char *values[TILE_LEN];
    int32_t first;
    int32_t count; /* 0: no tile */
    int32_t dtype;
    int32_t key_bytes; /* of each, which are fetched */
    int32_t value_bytes;
    int32_t ahead; /* rows between one that is read and one that is fetched at the same time */
    const float *turned_keys; /* a copy for products of pairs of 16-bit floats, see attention_pairs.h; or none */
    const float *paired_values;
} Tile;

/* A thread's memory. Rows of all arrays follow each other without gaps. */
typedef struct {
    float query[TILE_ROWS * MAX_HEAD_DIM];
    float output[TILE_ROWS * MAX_HEAD_DIM];
    float scores[TILE_ROWS * TILE_LEN];
    float key[TILE_LEN * MAX_HEAD_DIM];    /* a copy of a tile, where many rows read it */
    float value[TILE_LEN * MAX_HEAD_DIM];
    float largest[TILE_ROWS];
    float total[TILE_ROWS];
    float slope[TILE_ROWS];
    int32_t from[TILE_ROWS];   /* positions that a row sees: from, up to but without, until */
    int32_t until[TILE_ROWS];
    uint32_t hidden[TILE_ROWS]; /* bit i: a row does not see the position i before its own */
    Tile tiles[2];             /* of the first key head: the one that is read, and the next one */
    Tile *ready;               /* of these, the one with which the next work begins, if it is known */
    Tile of_heads[2];          /* of the key head that is computed, and of the next one */
} __attribute__((aligned(64))) Scratch;

#endif
