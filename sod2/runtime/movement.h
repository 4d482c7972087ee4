/* Concat and Split: byte copies between a tensor and its pieces along one axis, for any element type. */
#ifndef SOD2_MOVEMENT_H
#define SOD2_MOVEMENT_H
#include "kernel.h"

/* The whole tensor is `outer` rows; every row is one run of bytes[p] bytes from each of `pieces` pieces, in order.
   piece[p] holds its `outer` runs one after the other. bytes[p] may be 0, and piece[p] is then not touched; a piece that
   nobody reads may be NULL in sod2_split. */
void sod2_concat(int64_t outer, int64_t pieces, const void *const *piece, const int64_t *bytes, void *whole,
                 sod2_pool *pool);
void sod2_split(int64_t outer, int64_t pieces, void *const *piece, const int64_t *bytes, const void *whole,
                sod2_pool *pool);

#endif
