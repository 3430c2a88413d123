/* For x86-64 processors with AVX2; the rest of the extension does not require it. */

#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif
#define VECTOR_BYTES 32
#define STEP 2
#define WIDE 2
#define SUMS 12
#define VARIANT avx2
#define NAME "AVX2"
#include "step.h"
#include "forward.h"
#include "one_target.h"
#include "line.h"
#include "normal.h"
#include "line_groups.h"
#include "line_points.h"
#include "line_sets.h"
#include "variant.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
