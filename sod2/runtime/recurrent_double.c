/* GRU and RNN of doubles. */
#define SOD2_DOUBLE
#include "recurrent_real.h"
