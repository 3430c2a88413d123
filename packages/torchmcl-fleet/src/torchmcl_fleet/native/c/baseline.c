/* For the instructions that every processor of an architecture has: NEON on ARM, SSE2 on x86-64. */

#define VECTOR_BYTES 16
#define STEP 4
#define VARIANT baseline
#if defined(__aarch64__)
#define WIDE 4
#define SUMS 16
#define NAME "NEON"
#else
#define WIDE 2
#define SUMS 8
#if defined(__x86_64__)
#define NAME "SSE2"
#else
#define NAME "plain C"
#endif
#endif
#include "step.h"
#include "forward.h"
#include "one_target.h"
#include "line.h"
#include "normal.h"
#include "line_groups.h"
#include "line_points.h"
#include "line_sets.h"
#include "variant.h"
