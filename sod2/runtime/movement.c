/* Concat and Split. The whole tensor is cut into chunks of bytes, not of rows, so that a few long rows occupy all
   threads as well as many short ones. A chunk walks the runs that it touches; each is one memcpy. */
#include "movement.h"

enum {
    CHUNK_BYTES = 1 << 17, /* an eighth of L2: large against a claim, small against an unlucky last chunk */
    ELEMENT = 4
};

typedef struct pieces {
    int64_t count, row_bytes, total;
    char *const *piece;
    const int64_t *bytes;
    char *whole;
    int gather; /* from the pieces to the whole */
} pieces;

/* Copies bytes [begin, end) of the whole, all in one row: row * row_bytes <= begin, end <= (row + 1) * row_bytes. */
static void copy_row(const pieces *p, int64_t row, int64_t begin, int64_t end) {
    int64_t first = row * p->row_bytes; /* of the run of piece i, in the whole */
    for (int64_t i = 0; i < p->count && first < end; first += p->bytes[i], i++) {
        int64_t low = sod2_imax(begin, first), high = sod2_imin(end, first + p->bytes[i]);
        if (low >= high || p->piece[i] == NULL) continue;
        char *part = p->piece[i] + row * p->bytes[i] + (low - first);
        char *all = p->whole + low;
        memcpy(p->gather ? all : part, p->gather ? part : all, (size_t)(high - low));
    }
}

/* Copies whole rows, piece by piece; elements one by one where that is all that a piece has in a row. */
static void copy_rows(const pieces *p, int64_t row, int64_t rows) {
    char *all = p->whole + row * p->row_bytes;
    for (int64_t i = 0; i < p->count; all += p->bytes[i], i++) {
        const int64_t bytes = p->bytes[i], all_step = p->row_bytes;
        if (bytes == 0 || p->piece[i] == NULL) continue;
        char *const part = p->piece[i] + row * bytes;
        char *const to = p->gather ? all : part, *const from = p->gather ? part : all;
        const int64_t to_step = p->gather ? all_step : bytes, from_step = p->gather ? bytes : all_step;
        if (bytes == ELEMENT)
            for (int64_t r = 0; r < rows; r++) memcpy(to + r * to_step, from + r * from_step, ELEMENT);
        else
            for (int64_t r = 0; r < rows; r++) memcpy(to + r * to_step, from + r * from_step, (size_t)bytes);
    }
}

static void copy_chunk(void *arg, int64_t chunk, int thread) {
    const pieces *p = arg;
    int64_t begin = chunk * CHUNK_BYTES, end = sod2_imin(begin + CHUNK_BYTES, p->total);
    (void)thread;
    while (begin < end) {
        const int64_t row = begin / p->row_bytes, rows = (end - begin) / p->row_bytes;
        int64_t stop = sod2_imin(end, (row + 1) * p->row_bytes);
        if (begin % p->row_bytes == 0 && rows > 0) {
            copy_rows(p, row, rows);
            stop = begin + rows * p->row_bytes;
        } else {
            copy_row(p, row, begin, stop);
        }
        begin = stop;
    }
}

static void copy(pieces *p, int64_t outer, sod2_pool *pool) {
    for (int64_t i = 0; i < p->count; i++) p->row_bytes += p->bytes[i];
    p->total = outer * p->row_bytes;
    sod2_parallel(pool, (p->total + CHUNK_BYTES - 1) / CHUNK_BYTES, copy_chunk, p);
}

/* One struct serves both directions, so const is cast away; only the destination is written. */
void sod2_concat(int64_t outer, int64_t count, const void *const *piece, const int64_t *bytes, void *whole,
                 sod2_pool *pool) {
    pieces p = {.count = count, .piece = (char *const *)(uintptr_t)piece, .bytes = bytes, .whole = whole, .gather = 1};
    copy(&p, outer, pool);
}

void sod2_split(int64_t outer, int64_t count, void *const *piece, const int64_t *bytes, const void *whole,
                sod2_pool *pool) {
    pieces p = {.count = count, .piece = (char *const *)piece, .bytes = bytes, .whole = (char *)(uintptr_t)whole};
    copy(&p, outer, pool);
}
