/* Group normalisation: see group_norm.h. A piece of work is some whole groups, whose second and third pass find them in
   the cache; how many depends on sizes alone. */
#include "group_norm.h"

#include "rows.h"

enum {
  GRAIN = 16384, /* elements a chunk: some 2 us, several times the price of handing it out */
  TILE = 512     /* elements that an epilogue gets at once: they stay in L1 beside what it reads */
};

typedef struct norm_job norm_job;
struct norm_job {
  const sod2_norm *norm;
  float *y;
  sod2_epilogue epilogue;
  const void *args;
  int64_t grain;
  void (*item)(const norm_job *job, int64_t item);
};

static void norm_chunk(void *arg, int64_t chunk, int thread) {
  (void)thread;
  const norm_job *job = arg;
  const int64_t end = sod2_imin(job->norm->batch * job->norm->groups, (chunk + 1) * job->grain);
  for (int64_t item = chunk * job->grain; item < end; item++) job->item(job, item);
}

static void run(norm_job *job, sod2_pool *pool) {
  const sod2_norm *n = job->norm;
  if (n->channels == 0 || n->spatial == 0) return;
  job->grain = sod2_imax(1, GRAIN / (n->channels / n->groups * n->spatial));
  sod2_parallel(pool, (n->batch * n->groups + job->grain - 1) / job->grain, norm_chunk, job);
}

/* Statistics of the group whose channels begin at `first`, counted over all images. */
static sod2_moments moments_of(const sod2_norm *n, int64_t first) {
  return sod2_row_moments(n->x + first * n->spatial, n->channels / n->groups * n->spatial, n->epsilon);
}

static sod2_affine affine_of(const sod2_norm *n, sod2_moments m, int64_t channel) {
  const float scale = n->scale == NULL ? 1.0f : n->scale[channel], bias = n->bias == NULL ? 0.0f : n->bias[channel];
  return (sod2_affine){m.mean, m.inv_std * scale, bias};
}

static void prepare_item(const norm_job *job, int64_t item) {
  const sod2_norm *n = job->norm;
  const int64_t channels = n->channels / n->groups, first = item * channels;
  const sod2_moments m = moments_of(n, first);
  for (int64_t c = first; c < first + channels; c++) n->affine[c] = affine_of(n, m, c % n->channels);
}

void sod2_norm_prepare(const sod2_norm *norm, sod2_pool *pool) {
  norm_job job = {.norm = norm, .item = prepare_item};
  run(&job, pool);
}

void sod2_norm_load(const void *norm, float *dst, int64_t ld, int64_t image, int64_t channel, int64_t channels,
                    int64_t pixel, int64_t count) {
  const sod2_norm *n = norm;
  const int64_t first = image * n->channels + channel, vectors = (count + SOD2_VL - 1) / SOD2_VL * SOD2_VL;
  const float *x = n->x + first * n->spatial + pixel, *end = n->x + n->batch * n->channels * n->spatial;
  for (int64_t c = 0; c < channels; c++) /* short streams, which a hardware prefetcher finds too late */
    for (int64_t i = 0; i < vectors; i += 16) __builtin_prefetch(x + c * n->spatial + i);
  if (x + (channels - 1) * n->spatial + vectors <= end) {
    n->lines(x, n->spatial, n->affine + first, channels, vectors, dst, ld);
    return;
  }
  const int64_t whole = count / SOD2_VL * SOD2_VL; /* the last vector of the last line would be read beyond x */
  n->lines(x, n->spatial, n->affine + first, channels, whole, dst, ld);
  for (int64_t c = 0; c < channels; c++) {
    float last[SOD2_VL] = {0};
    memcpy(last, x + c * n->spatial + whole, (size_t)(count - whole) * sizeof *last);
    n->lines(last, 0, n->affine + first + c, 1, SOD2_VL, dst + c * ld + whole, ld);
  }
}

/* A channel, from x on. */
static void store_channel(const norm_job *job, const float *x, int64_t image, int64_t channel, sod2_affine a) {
  const int64_t spatial = job->norm->spatial;
  if (job->epilogue == NULL) {
    float *y = job->y + (image * job->norm->channels + channel) * spatial;
    sod2_affine_row(x, y, spatial, a.shift, a.factor, a.offset);
    return;
  }
  float tile[TILE];
  for (int64_t i = 0; i < spatial; i += TILE) {
    const int64_t count = sod2_imin(TILE, spatial - i);
    sod2_affine_row(x + i, tile, count, a.shift, a.factor, a.offset);
    job->epilogue(job->args, tile, TILE, image, channel, 1, i, count);
  }
}

static void store_item(const norm_job *job, int64_t item) {
  const sod2_norm *n = job->norm;
  const int64_t channels = n->channels / n->groups, first = item * channels;
  const sod2_moments m = moments_of(n, first);
  for (int64_t c = first; c < first + channels; c++) {
    const int64_t channel = c % n->channels;
    store_channel(job, n->x + c * n->spatial, c / n->channels, channel, affine_of(n, m, channel));
  }
}

void sod2_group_norm(const sod2_norm *norm, float *y, sod2_epilogue epilogue, const void *args, sod2_pool *pool) {
  norm_job job = {.norm = norm, .y = y, .epilogue = epilogue, .args = args, .item = store_item};
  run(&job, pool);
}
