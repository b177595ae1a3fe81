/* A few rows by all columns, for one width of vectors: they wait for weights. Included by linear_variant.h. */

/* The columns of at most 2 * ROWS rows, a constant, in the order of memory; so many bytes ahead are fetched meanwhile. So
   memory is read at its own rate, which blocks of several columns are not: products wait for weights there. */
INLINE void NAME(multiply_one_by_one)(
    const Linear *call, const Part *part, int row, int64_t from, int64_t until, const int num_rows, const int dtype
) {
    const int64_t ahead = 1 + (6 << 10) / (call->len * number_size(dtype) | 1);
    for (int64_t column = from; column < until; column++)
        NAME(multiply_block)(call, part, all_of(call), row, column, 0, num_rows, 1, 1, column + 1 + ahead, dtype);
}

/* How many rows are faster that way than below: with vectors of 16 numbers, columns that are long enough for their sums not
   to count, and as many as stay in the first cache, where rows of whole pages take each other's place. */
INLINE int NAME(most_one_by_one)(const Linear *call) {
    const int64_t row_bytes = call->len * NAME(number_bytes), room = 20 << 10, most = row_bytes % 4096 ? 8 : 4;
    if (LANES < 16) return 0;
    if (row_bytes < 1024 || row_bytes > room) return 1;
    return (int)(room / row_bytes < most ? room / row_bytes : most);
}

/* The columns of at most 2 * ROWS rows, a constant, two by two, so that each weight is loaded once, and two chains of
   products go on at a time. ROWS rows are as fast four by four, and faster in pairs of 16 bits. */
INLINE void NAME(multiply_two_by_two)(
    const Linear *call, const Part *part, int row, int64_t from, int64_t until, const int num_rows, const int dtype
) {
    const int64_t ahead = 2 + (2 << 10) / (call->len * number_size(dtype) | 1) * 2;
    int64_t column = from;
    for (; column + 2 <= until; column += 2)
        NAME(multiply_block)(call, part, all_of(call), row, column, 0, num_rows, 2, 2, column + ahead, dtype);
    for (; column < until; column++)
        NAME(multiply_block)(call, part, all_of(call), row, column, 0, num_rows, 1, 0, 0, dtype);
}

/* Functions of their own: in a long one compilers keep the addresses of rows in memory. */
#define FEW(way, rows) \
    static __attribute__((noinline)) TARGET void NAME(way##_##rows)( \
        const Linear *call, const Part *part, int row, int64_t from, int64_t until \
    ) { \
        if (call->dtype == FLOAT32) NAME(way)(call, part, row, from, until, rows, FLOAT32); \
        else NAME(way)(call, part, row, from, until, rows, BFLOAT16); \
    }
FEW(multiply_two_by_two, 1)
FEW(multiply_two_by_two, 2)
#if LANES > 4
FEW(multiply_two_by_two, 3)
FEW(multiply_two_by_two, 4)
#endif
#if LANES > 8
FEW(multiply_two_by_two, 5)
FEW(multiply_two_by_two, 6)
FEW(multiply_two_by_two, 7)
FEW(multiply_two_by_two, 8)
FEW(multiply_one_by_one, 1)
FEW(multiply_one_by_one, 2)
FEW(multiply_one_by_one, 3)
FEW(multiply_one_by_one, 4)
FEW(multiply_one_by_one, 5)
FEW(multiply_one_by_one, 6)
FEW(multiply_one_by_one, 7)
FEW(multiply_one_by_one, 8)
#endif
#undef FEW

#if LANES == 16
/* The sums of all chains of some rows and columns, constant numbers. */
INLINE vec NAME(add_chains)(
    const Linear *call, const Part *part, int row, int64_t column, int64_t next, const int num_rows, const int num_columns, const int dtype
) {
    vec found = {0};
    for (int64_t from = 0; from < call->len; from += NAME(chain)) {
        const Range inputs = {from, from + NAME(chain) < call->len ? from + NAME(chain) : call->len};
        vec products[LANES];
        for (int i = 0; i < num_rows * num_columns; i++) products[i] = (vec){0};
        NAME(add_inputs)(call, part, inputs, row, column, products, num_rows, num_columns, num_columns, next, dtype);
        found += NAME(sums)(products, num_rows * num_columns);
    }
    return found;
}

/* Functions of their own for a column or two: among loops over columns compilers keep those addresses in memory. */
#define FEW(rows, columns) \
    static __attribute__((noinline)) TARGET vec NAME(chains_##rows##_##columns)( \
        const Linear *call, const Part *part, int row, int64_t column, int64_t next \
    ) { \
        if (call->dtype == FLOAT32) return NAME(add_chains)(call, part, row, column, next, rows, columns, FLOAT32); \
        return NAME(add_chains)(call, part, row, column, next, rows, columns, BFLOAT16); \
    }
#define EACH_NUMBER(columns) \
    FEW(1, columns) FEW(2, columns) FEW(3, columns) FEW(4, columns) FEW(5, columns) FEW(6, columns) FEW(7, columns) FEW(8, columns)
EACH_NUMBER(1)
EACH_NUMBER(2)
#undef FEW
#undef EACH_NUMBER

typedef vec (*NAME(Chains))(const Linear *, const Part *, int row, int64_t column, int64_t next);

INLINE void NAME(write_chains)(
    const Linear *call, const Part *part, int row, int num_rows, int64_t column, int64_t next, NAME(Chains) chains, const int num_columns
) {
    const vec found = chains(call, part, row, column, next);
    if (call->dtype == FLOAT32) NAME(write_block)(call, part, row, column, found, num_rows, num_columns, FLOAT32);
    else NAME(write_block)(call, part, row, column, found, num_rows, num_columns, BFLOAT16);
}

/* A few rows of several chains. */
static TARGET void NAME(multiply_few_chains)(
    const Linear *call, const Part *part, int row, int num_rows, int64_t from, int64_t until
) {
    static const NAME(Chains) ones[] = {
        NAME(chains_1_1), NAME(chains_2_1), NAME(chains_3_1), NAME(chains_4_1),
        NAME(chains_5_1), NAME(chains_6_1), NAME(chains_7_1), NAME(chains_8_1),
    };
    static const NAME(Chains) twos[] = {
        NAME(chains_1_2), NAME(chains_2_2), NAME(chains_3_2), NAME(chains_4_2),
        NAME(chains_5_2), NAME(chains_6_2), NAME(chains_7_2), NAME(chains_8_2),
    };
    int64_t column = from;
    /* A column that is fetched ahead and is not there is the last one again. */
    const int64_t last = part->num_columns - 2;
    for (; num_rows > NAME(most_one_by_one)(call) && column + 2 <= until; column += 2) {
        const int64_t next = column + 2 < last ? column + 2 : last;
        NAME(write_chains)(call, part, row, num_rows, column, next, twos[num_rows - 1], 2);
    }
    for (; column < until; column++) {
        const int64_t next = column + 2 <= last ? column + 2 : last + 1;
        NAME(write_chains)(call, part, row, num_rows, column, next, ones[num_rows - 1], 1);
    }
}
#endif

/* 1 to 2 * ROWS rows from `row` on. */
static TARGET void NAME(multiply_few)(const Linear *call, const Part *part, int row, int num_rows, int64_t from, int64_t until) {
#if LANES == 16
    if (call->len > NAME(chain)) return NAME(multiply_few_chains)(call, part, row, num_rows, from, until);
#endif
    typedef void (*Few)(const Linear *, const Part *, int row, int64_t from, int64_t until);
    static const Few two_by_two[] = {
        NAME(multiply_two_by_two_1), NAME(multiply_two_by_two_2),
#if LANES > 4
        NAME(multiply_two_by_two_3), NAME(multiply_two_by_two_4),
#endif
#if LANES > 8
        NAME(multiply_two_by_two_5), NAME(multiply_two_by_two_6), NAME(multiply_two_by_two_7), NAME(multiply_two_by_two_8),
    };
    static const Few one_by_one[] = {
        NAME(multiply_one_by_one_1), NAME(multiply_one_by_one_2), NAME(multiply_one_by_one_3), NAME(multiply_one_by_one_4),
        NAME(multiply_one_by_one_5), NAME(multiply_one_by_one_6), NAME(multiply_one_by_one_7), NAME(multiply_one_by_one_8),
    };
    if (num_rows <= NAME(most_one_by_one)(call)) return one_by_one[num_rows - 1](call, part, row, from, until);
#else
    };
#endif
    two_by_two[num_rows - 1](call, part, row, from, until);
}
