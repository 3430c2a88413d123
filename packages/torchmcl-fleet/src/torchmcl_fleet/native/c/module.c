/* An extension module without Python functions: `torchmcl_fleet.native` calls the functions below through ctypes, which
   releases the interpreter's lock. The instruction set is selected when the module is loaded. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "native.h"
#include "trees.h"
#include "trimming.h"

#define EXPORTED __attribute__((visibility("default")))

#if defined(__x86_64__)
extern const Variant avx2, avx512;
static const Variant *chosen = NULL;

/* Whether the variable TORCHMCL_INSTRUCTIONS, for tests and measurements, allows a variant; it cannot add one. */
static int allowed(const Variant *variant) {
    const char *wanted = getenv("TORCHMCL_INSTRUCTIONS");
    return !wanted || strcmp(wanted, variant->name) == 0;
}
#else
extern const Variant baseline;
static const Variant *chosen = &baseline;
#endif

double normal_table[NORMAL_SIZE][5];

static void fill_normal_table(void) {
    const double h = 1 / NORMAL_NODES;
    double f = 0, s = 0;
    for (int i = 0; i <= NORMAL_SIZE; i++) {
        const double z = i * h - NORMAL_REACH, bell = exp(-z * z / 2);
        const double to = 0.5 * erfc(-z * 0.7071067811865476), slope = bell * 0.3989422804014327 * h, rise = to - f;
        if (i) {
            double *cell = normal_table[i - 1];
            cell[2] = 3 * rise - 2 * s - slope, cell[3] = s + slope - 2 * rise;
        }
        if (i < NORMAL_SIZE) normal_table[i][0] = to, normal_table[i][1] = slope, normal_table[i][4] = bell;
        f = to, s = slope;
    }
}

static void choose(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (allowed(&avx512) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
        chosen = &avx512;
    else if (allowed(&avx2) && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        chosen = &avx2;
#endif
}

/* In trainings numbers below 1e-38 are 0: tiny posteriors and their squares are common there, and each operation on one
   takes a hundred times as long on x86. */
#if defined(__x86_64__)
#define WITHOUT_TINY_NUMBERS(call)       \
    do {                                 \
        const unsigned before = _mm_getcsr(); \
        _mm_setcsr(before | 0x8040);     \
        call;                            \
        _mm_setcsr(before);              \
    } while (0)
#else
#define WITHOUT_TINY_NUMBERS(call) call
#endif

/* NULL if this processor has none of the instruction sets. */
EXPORTED const char *torchmcl_instruction_set(void) { return chosen ? chosen->name : NULL; }

EXPORTED int64_t torchmcl_scratch_size(const Network *network) { return chosen->scratch_size(network); }

EXPORTED void torchmcl_step(const Network *network, const Rows *rows, const Batch *batch) {
    WITHOUT_TINY_NUMBERS(chosen->step(network, rows, batch));
}

EXPORTED void torchmcl_adam(const Adam *adam) { WITHOUT_TINY_NUMBERS(chosen->adam(adam)); }

EXPORTED void torchmcl_epochs(const Network *network, const Rows *rows, const Batch *batch, const Adam *adam,
                              const Epochs *epochs) {
    WITHOUT_TINY_NUMBERS(chosen->epochs(network, rows, batch, adam, epochs));
}

EXPORTED int64_t torchmcl_forward_scratch(const Network *network) { return chosen->forward_scratch(network); }

EXPORTED void torchmcl_forward(const Network *network, const Rows *rows, const Forward *forward) {
    chosen->forward(network, rows, forward);
}

EXPORTED int64_t torchmcl_one_target_rows(void) { return chosen->one_target_rows(); }

EXPORTED int64_t torchmcl_one_target_scratch(const OneTarget *step) { return chosen->one_target_scratch(step); }

EXPORTED void torchmcl_one_target(const OneTarget *step) { chosen->one_target(step); }

EXPORTED int64_t torchmcl_line_scratch(const Line *line) { return chosen->line_scratch(line); }

EXPORTED void torchmcl_line_points(const Line *line) { chosen->line_points(line); }

EXPORTED void torchmcl_line_sets(const Line *line) { chosen->line_sets(line); }

EXPORTED void torchmcl_line_above(const Line *line) { chosen->line_above(line); }

EXPORTED void torchmcl_leaves(const Trees *trees) { find_leaves(trees); }

EXPORTED void torchmcl_trim(const Trim *trim) { trim_rows(trim); }

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native", "Compiled loops.", -1, NULL};

PyMODINIT_FUNC PyInit__native(void) {
    choose();
    fill_normal_table();
    return PyModule_Create(&definition);
}
