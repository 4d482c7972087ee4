/* From concrete input dims to the symbols of the shapes, and the sentence for dims that the model does not accept. */
#include <stdarg.h>
#include <stdio.h>

#include "program.h"

__attribute__((format(printf, 3, 4))) static int refuse(char *message, int64_t capacity, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, (size_t)capacity, format, arguments);
  va_end(arguments);
  return 1;
}

static int bind_dim(const sod2_rules *rules, const sod2_dim *rule, int64_t size, int64_t *sym, char *message,
                    int64_t capacity) {
  const char *input = rules->input[rule->input].name;
  int64_t value = sod2_floordiv(size - rule->base, rule->scale);
  if (value < 0 || value * rule->scale + rule->base != size)
    return refuse(message, capacity, "dim %d of input '%s' is %lld; the model takes %s, its symbol a whole number >= 0",
                  rule->axis, input, (long long)size, rule->text);
  if (sym[rule->symbol] >= 0 && sym[rule->symbol] != value)
    return refuse(message, capacity,
                  "dim %d of input '%s' is %lld, but another dim already gives its symbol the value %lld; the model takes "
                  "%s for both",
                  rule->axis, input, (long long)size, (long long)sym[rule->symbol], rule->text);
  sym[rule->symbol] = value;
  return 0;
}

int sod2_check_guards(const sod2_rules *rules, int32_t first, int32_t last, const char *what, const int64_t *sym,
                      char *message, int64_t capacity) {
  for (int32_t i = first; i < last; i++) {
    int64_t left = 0, right = 0;
    int overflow = 0;
    rules->sides(sym, i, &left, &right, &overflow);
    if (overflow || left != right)
      return refuse(message, capacity, "these %s are not accepted: %s; here %lld and %lld", what, rules->guard[i],
                    (long long)left, (long long)right);
  }
  return 0;
}

int sod2_bind_symbols(const sod2_rules *rules, const int64_t *dims, int64_t *sym, char *message, int64_t capacity) {
  for (int32_t i = 0; i < rules->symbols; i++) sym[i] = -1;
  for (int32_t i = 0; i < rules->dims; i++)
    if (bind_dim(rules, &rules->dim[i], dims[rules->dim[i].position], sym, message, capacity)) return 1;
  return sod2_check_guards(rules, 0, rules->guards, "input dims", sym, message, capacity);
}
