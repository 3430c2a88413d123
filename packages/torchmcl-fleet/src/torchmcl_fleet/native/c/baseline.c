/* For the instructions that every processor of an architecture has: NEON on ARM, plain C elsewhere. x86-64 processors
   without AVX2, the last of them from 2015, use the definitions in PyTorch. */

#if !defined(__x86_64__)
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
#define NAME "plain C"
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
#endif
