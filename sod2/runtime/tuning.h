/* Sizes of blocks on which the time of kernels depends, but no bit of a result: what `sod2 tune` searches (sod2/tune.py).
   Depths are multiples of the chains that tile.c adds up. A build may define any of them otherwise than here. */
#ifndef SOD2_TUNING_H
#define SOD2_TUNING_H

#include "kernel.h"

#ifdef SOD2_FAR_CORES
#ifndef SOD2_PANEL_COPIES_KIB
#define SOD2_PANEL_COPIES_KIB 256
#endif
#ifndef SOD2_PANEL_ROWS
#define SOD2_PANEL_ROWS 8
#endif
#ifndef SOD2_PIXEL_DEPTH /* in L1 beside the pixels */
#define SOD2_PIXEL_DEPTH 128
#endif
#ifndef SOD2_WINOGRAD_WEIGHTS_KIB
#define SOD2_WINOGRAD_WEIGHTS_KIB 65536
#endif
#ifndef SOD2_WINOGRAD_COLUMNS /* two vectors with their edge */
#define SOD2_WINOGRAD_COLUMNS 30
#endif
#endif

#ifndef SOD2_GEMM_DEPTH /* rows of a panel of B that stay in L1 while row blocks of A pass over them */
#define SOD2_GEMM_DEPTH 768
#endif
#ifndef SOD2_GEMM_ROWS /* row blocks of a piece of work */
#define SOD2_GEMM_ROWS 8
#endif
#ifndef SOD2_PANEL_PIXELS /* panels of pixels of a piece of work */
#define SOD2_PANEL_PIXELS 8
#endif
#ifndef SOD2_PANEL_COPIES_KIB /* dense copies of panels that a thread has */
#define SOD2_PANEL_COPIES_KIB 32
#endif
#ifndef SOD2_PANEL_ROWS /* row blocks, at least, of a piece of work with dense copies */
#define SOD2_PANEL_ROWS 3
#endif
#ifndef SOD2_PIXEL_DEPTH /* rows of a panel of weights that stay near while the pixels of a piece of work pass */
#if SOD2_VL == 16
#define SOD2_PIXEL_DEPTH 1024
#else
#define SOD2_PIXEL_DEPTH 128
#endif
#endif
#ifndef SOD2_PIXEL_BLOCK /* pixels of a piece of work, of which whole row blocks are taken */
#define SOD2_PIXEL_BLOCK 112
#endif
#ifndef SOD2_WINOGRAD_OWN_TILES /* most tiles of a block that one thread computes */
#define SOD2_WINOGRAD_OWN_TILES 72
#endif
#ifndef SOD2_WINOGRAD_TILES /* and of one that all threads share */
#define SOD2_WINOGRAD_TILES 48
#endif
#ifndef SOD2_WINOGRAD_OWN_KIB /* transformed image of a block that one thread computes */
#define SOD2_WINOGRAD_OWN_KIB 320
#endif
#ifndef SOD2_WINOGRAD_SHARED_KIB /* and of one that all threads share */
#define SOD2_WINOGRAD_SHARED_KIB 1280
#endif
#ifndef SOD2_WINOGRAD_WEIGHTS_KIB /* weights up to which threads have blocks of their own */
#define SOD2_WINOGRAD_WEIGHTS_KIB 4096
#endif
#ifndef SOD2_WINOGRAD_COLUMNS /* of the output, whose inputs are transformed at once */
#define SOD2_WINOGRAD_COLUMNS 60
#endif
#ifndef SOD2_STRIP_OWN_KIB /* padded rows of an image that one thread computes at a time */
#define SOD2_STRIP_OWN_KIB 640
#endif
#ifndef SOD2_STRIP_KIB /* and that all threads share */
#define SOD2_STRIP_KIB 1024
#endif
#endif
