/* LSTM of doubles. */
#define SOD2_DOUBLE
#include "lstm_real.h"
