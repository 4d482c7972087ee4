/* GRU and RNN of floats. */
#include "recurrent_real.h"
