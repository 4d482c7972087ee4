/* Input of an implicit GEMM: the matrix of a convolution has a row for each (channel, ky, kx) and a column for each
   output pixel, and is never stored. Its element for tap k and output pixel (y, x) is
   base[offset[k] + (y * step_y * width + x * step_x)].

   For that, the input of a window of output pixels is copied to strips: padded, and split by the strides into phases
   (phase f of a row has its columns f, f + sw, ..), of which those that no tap reads are left out. Then steps are 1: a
   tap of consecutive pixels of one line is contiguous. A kernel that reads pixels one by one can step by small strides
   instead, over lines as they are: these take half the time to copy, and are split only where a phase is left out. To a
   1x1 convolution all pixels are one line, cut between panels of NR pixels; that of stride 1 is read in place.

   Where the image is large, a thread takes each window of its own through copying and products: strips stay in its
   caches, and no thread waits for another. Otherwise all threads take one window after the other together: first the
   copying, then the products. Each has strips of its own there too, and a share of the output channels: to read what
   another core wrote takes longer than to copy the image twice. Where the channels are too few for that, or the image
   is computed, threads do share strips. */
#ifndef SOD2_STRIPS_H
#define SOD2_STRIPS_H

#include "conv.h"

typedef struct sod2_strips {
  int in_place;                         /* no strips: the image itself */
  int64_t oh, ow;                       /* output lines and columns; of a single tap 1 and all pixels */
  int64_t windows_y, windows_x;         /* the output is cut into windows */
  int64_t depth;                        /* k: taps of a group */
  int64_t sh, sw;                       /* strides that split an axis into phases, 1 where it is not split; */
  int64_t step_y, step_x;               /* lines and floats from pixel to pixel */
  int64_t row_phases, column_phases;    /* those that are read */
  int64_t row_reach;                    /* lines behind those of the outputs, of all row phases together */
  int64_t lines, width;                 /* output lines of a window; floats of a line of a phase */
  int64_t channel;                      /* floats from channel to channel */
  int64_t offsets, floats;              /* floats of the table of offsets and of the strips of a window */
  int64_t owners;                       /* of strips: threads, or one for all, */
  int together;                         /* at the same window, of which each has a share of the output channels */
} sod2_strips;

/* A window of one image and group, with its strips filled. */
typedef struct sod2_window {
  const sod2_conv *c;
  const sod2_strips *strips;
  const int32_t *offset;
  float *strip;                         /* of this window */
  const float *base;                    /* of the first pixel: there, or in place */
  int64_t image, group;
  int64_t share, shares;                /* of the output channels, */
  int64_t threads;                      /* that are to compute it */
  int64_t y0, lines, x0, columns;
  float *scratch;                       /* of the kernel, behind the strips */
  const void *plan;                     /* of the kernel */
} sod2_window;

/* Where the window's share of `size` blocks of output channels begins; that of the next share is its end. */
SOD2_INLINE int64_t sod2_window_share(const sod2_window *w, int64_t share, int64_t size) {
  return size * share / w->shares;
}

/* Plans strips for a pool of `threads`, not split by strides up to `steps`. */
void sod2_strips_plan(const sod2_conv *c, int threads, int64_t steps, sod2_strips *s);

/* A single tap has no margins: all pixels are one line. */
SOD2_INLINE int sod2_strips_flat(const sod2_conv *c) { return c->kh == 1 && c->kw == 1; }

/* Lines of all images and pixels of one, as tiles see them. */
SOD2_INLINE int64_t sod2_strips_lines(const sod2_conv *c) { return c->n * (sod2_strips_flat(c) ? 1 : c->oh); }
SOD2_INLINE int64_t sod2_strips_pixels(const sod2_conv *c) { return c->ow * (sod2_strips_flat(c) ? c->oh : 1); }

/* Taps of a group. */
SOD2_INLINE int64_t sod2_strips_depth(const sod2_conv *c) { return c->ic / c->groups * c->kh * c->kw; }

/* Whether the image itself is read. */
int sod2_strips_in_place(const sod2_conv *c);

/* Expected cycles to fill all strips, however they are cut: versions are compared without a plan of each. */
double sod2_strips_cost(const sod2_conv *c);

/* How a kernel computes a window: in so many chunks, after `prepare`, which may be NULL, where it is read in place. */
typedef struct sod2_window_kernel {
  void (*prepare)(const sod2_window *w);
  int64_t (*chunks)(const sod2_window *w);
  void (*compute)(const sod2_window *w, int64_t chunk, int thread);
} sod2_window_kernel;

/* Fills the strips of all windows and computes them. */
void sod2_strips_run(const sod2_conv *c, const sod2_strips *s, const void *plan, float *scratch, sod2_pool *pool,
                     const sod2_window_kernel *kernel);

SOD2_INLINE void sod2_strip_zero(float *dst, int64_t n) {
  for (int64_t i = 0; i < n; i += SOD2_VL) vf_store(dst + i, (vf){0});
}

/* `lines` lines of one phase of a plane x: dst[i * width + j] = x[iy + i * row_step][shift + j * step], or 0 outside of
   the plane. Up to VL - 1 floats behind the last line are overwritten. */
void sod2_strip_phase(const sod2_conv *c, const float *x, int64_t iy, int64_t row_step, int64_t lines, int64_t shift,
                      int64_t step, int64_t width, float *dst);

/* As above, both phases of a step of 2 at once, the first of shift `shift`. */
void sod2_strip_pair(const sod2_conv *c, const float *x, int64_t iy, int64_t row_step, int64_t lines, int64_t shift,
                     int64_t width, float *even, float *odd);

/* ---- blocks of pixels of a window: some whole lines, or a piece of one; contiguous in the output ---- */

typedef struct sod2_block {
  int64_t y, lines, x, columns; /* in the window */
  int64_t first, count;         /* linear pixels of the output */
} sod2_block;

/* Number of blocks of at most `most` pixels, and one of so many; pieces of a line start at multiples of `unit`, which
   divides `most`. */
int64_t sod2_window_blocks(const sod2_window *w, int64_t most);
sod2_block sod2_window_block(const sod2_window *w, int64_t blocks, int64_t unit, int64_t index);

#endif
