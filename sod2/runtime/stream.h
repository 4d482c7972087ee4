/* A convolution and what reads its result strip by strip, so that the whole of it never exists: a second convolution or
   a maximum pooling.

   A strip is a range of output rows of the second with the rows of the first that they need; neighbouring strips
   compute the rows between them twice. Strips are cut where tiles begin and computed by the versions that would be
   chosen for the whole: they give the same bits. Generated code runs the loop:

     for (sod2_stream t = sod2_stream_begin(&first, &second); t.rows > 0; t = sod2_stream_next(&first, &second, t)) {
       sod2_stream_produce(&first, &second, ..., t, image, scratch, pool);
       sod2_stream_consume(&first, &second, ..., t, image, scratch, pool); // or sod2_stream_max_pool
     } */
#ifndef SOD2_STREAM_H
#define SOD2_STREAM_H
#include "conv.h"
#include "kernels.h"

typedef struct sod2_stream {
  int64_t row, rows;  /* output rows of the second */
  int64_t begin, end; /* output rows of the first, the second's input */
} sod2_stream;

/* A pooling as the second: a convolution with its windows and the first one's scratch limit, but without weights. */
sod2_conv sod2_stream_windows(const sod2_conv *first, const sod2_pooling *p);

sod2_stream sod2_stream_begin(const sod2_conv *first, const sod2_conv *second);
sod2_stream sod2_stream_next(const sod2_conv *first, const sod2_conv *second, sod2_stream strip);

/* Bytes of scratch that the loop needs with versions v1 and v2 of the kernels, those of the whole; -1 of a pooling. */
int64_t sod2_stream_scratch(const sod2_conv *first, const sod2_conv *second, int v1, int v2, int threads);

/* The strip of the first one's result, [oc][end - begin][ow], lies at the beginning of the scratch. */
void sod2_stream_produce(const sod2_conv *first, const sod2_conv *second, int version, sod2_stream strip, int64_t image,
                        void *scratch, sod2_pool *pool);
void sod2_stream_consume(const sod2_conv *first, const sod2_conv *second, int version, sod2_stream strip, int64_t image,
                        void *scratch, sod2_pool *pool);
void sod2_stream_max_pool(const sod2_conv *second, const sod2_pooling *p, sod2_stream strip, int64_t image,
                          const void *scratch, sod2_pool *pool);
#endif
