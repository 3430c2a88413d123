/* For x86-64 processors with AVX-512; the rest of the extension does not require it. */

#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")
#endif
#define VECTOR_BYTES 64
#define STEP 2
#define WIDE 4
#define SUMS 12
#define VARIANT avx512
#define NAME "AVX-512"
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
