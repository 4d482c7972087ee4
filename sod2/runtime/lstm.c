/* LSTM of floats. */
#include "lstm_real.h"
