/* A convolution and what reads its result strip by strip, so that the whole of it never exists: a second convolution or
   a maximum pooling.

   A strip is a range of output rows of the second with the rows of the first that they need; neighbouring strips
   compute the rows between them twice. Strips are cut where tiles begin and computed by the versions that would be
   chosen for the whole: they give the same bits. A thread has a strip of its own and takes it through both, as long as
   little is computed twice: what one core wrote the same one reads. Otherwise all threads share one strip at a time.

   Generated code fills a sod2_stream and gives the function of a strip to sod2_stream_run:

     const sod2_stream_strip t = sod2_stream_strip_at(z, index, thread);
     sod2_stream_produce(z, &t, epilogue_args of the first one for this strip);
     sod2_stream_consume(z, &t); */
#ifndef SOD2_STREAM_H
#define SOD2_STREAM_H
#include "conv.h"
#include "kernels.h"

typedef struct sod2_stream {
  sod2_conv first, second;
  int version1, version2;        /* those of the whole; -1 of a pooling */
  const sod2_pooling *pooling;   /* NULL where the second is a convolution */
  char *scratch;
  int64_t bytes;                 /* of it for each strip that is at work, as sod2_stream_scratch says */
  const void *state;             /* of generated code */
  sod2_pool *pool;
} sod2_stream;

typedef struct sod2_stream_strip {
  int64_t image, row, rows; /* output rows of the second */
  int64_t begin, end;       /* output rows of the first, the second's input */
  float *middle;            /* the first one's result: [oc][end - begin][ow] */
  int64_t owners;           /* threads that have strips of their own; 1: all share one */
  sod2_pool *pool;          /* of those that share it, or NULL */
} sod2_stream_strip;

/* A pooling as the second: a convolution with its windows and the first one's scratch limit, but without weights. */
sod2_conv sod2_stream_windows(const sod2_conv *first, const sod2_pooling *p);

/* Bytes of scratch of a strip at work, and how many are at work at a time. */
int64_t sod2_stream_scratch(const sod2_stream *z, int threads);
int64_t sod2_stream_owners(const sod2_stream *z, int threads);

/* Calls `body` with the stream for every strip of every image. */
void sod2_stream_run(sod2_stream *z, void (*body)(void *stream, int64_t index, int thread));

sod2_stream_strip sod2_stream_strip_at(const sod2_stream *z, int64_t index, int thread);
void sod2_stream_produce(const sod2_stream *z, const sod2_stream_strip *t, const void *epilogue_args);
void sod2_stream_consume(const sod2_stream *z, const sod2_stream_strip *t);
#endif
