/* Selection, powers of two and logarithms of vectors. Included by step.h. */

ALWAYS vec pick(ivec which, vec yes, vec no) { return (vec)(((ivec)yes & which) | ((ivec)no & ~which)); }

ALWAYS vec larger(vec a, vec b) { return pick(a > b, a, b); }

ALWAYS vec size_of(vec x) { return (vec)((ivec)x & 0x7fffffff); }

ALWAYS vec all_of(float x) { return (vec){0} + x; }

ALWAYS vec load(const float *from) { return *(const vec *)from; }

ALWAYS void store(float *to, vec x) { *(vec *)to = x; }

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define HAS_SHUFFLE 1
#endif
#endif

typedef float four __attribute__((vector_size(16), aligned(4)));
typedef float eight __attribute__((vector_size(32)));

/* The sum of the groups of four lanes. */
ALWAYS four folded(vec x) {
#if VECTOR_BYTES > 16 && defined(HAS_SHUFFLE)
#if VECTOR_BYTES == 64
    const eight half = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7) +
                       __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
#else
    const eight half = (eight)x;
#endif
    return __builtin_shufflevector(half, half, 0, 1, 2, 3) + __builtin_shufflevector(half, half, 4, 5, 6, 7);
#else
    four sum = {0};
    for (int i = 0; i < LANES; i++) sum[i % 4] += x[i];
    return sum;
#endif
}

/* The sum of the lanes. */
ALWAYS float sum_of(vec x) {
    const four sum = folded(x);
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* A vector without alignment. */
typedef float loose __attribute__((vector_size(VECTOR_BYTES), aligned(4)));

/* Square roots of numbers that are not negative, and inverses. The instructions of AVX-512 for them take so long that an
   estimate and a step of Newton's method, to a unit or two in the last place, are faster; at 0 and infinity, where that
   step gives NaN, one instruction sets the correct value: the table of `fixed` holds a code for each class of numbers. */
#if VECTOR_BYTES == 64
#define AT_ZERO(code) ((code) << 8)
#define AT_MINUS_INFINITY(code) ((code) << 16)
#define AT_INFINITY(code) ((code) << 20)
enum { ITSELF = 1, INFINITE = 6, MINUS_ZERO = 7, ZERO = 8 };

ALWAYS vec fixed(vec value, vec x, int table) {
    return (vec)_mm512_fixupimm_ps((__m512)value, (__m512)x, _mm512_set1_epi32(table), 0);
}

ALWAYS vec roots(vec x) {
    const vec estimate = (vec)_mm512_rsqrt14_ps((__m512)x), root = x * estimate;
    return fixed(root + 0.5f * estimate * (x - root * root), x, AT_ZERO(ITSELF) | AT_INFINITY(ITSELF));
}

ALWAYS vec inverses(vec x) {
    const vec estimate = (vec)_mm512_rcp14_ps((__m512)x), better = estimate + estimate * (1.0f - x * estimate);
    return fixed(better, x, AT_ZERO(INFINITE) | AT_INFINITY(ZERO) | AT_MINUS_INFINITY(MINUS_ZERO));
}
#else
ALWAYS vec roots(vec x) {
#if defined(__aarch64__)
    return (vec)vsqrtq_f32((float32x4_t)x);
#elif VECTOR_BYTES == 32
    return (vec)_mm256_sqrt_ps((__m256)x);
#elif defined(__x86_64__)
    return (vec)_mm_sqrt_ps((__m128)x);
#else
    for (int i = 0; i < LANES; i++) x[i] = sqrtf(x[i]);
    return x;
#endif
}

ALWAYS vec inverses(vec x) { return 1.0f / x; }
#endif

/* 2^x for |x| <= 126 to a few units in the last place: the nearest integer is the exponent, and a polynomial
   approximates the remaining factor. NaN for NaN. */
ALWAYS vec inner_powers(vec x) {
    const vec whole = x + 12582912.0f; /* the nearest integer, in the lowest bits */
    const vec rest = x - (whole - 12582912.0f);
    /* Independent parts, which can be computed in parallel. */
    const vec square = rest * rest;
    const vec low = (rest * 6.9314718e-1f + 1.0f) + square * (rest * 5.5504109e-2f + 2.4022651e-1f);
    const vec high = (rest * 1.3333558e-3f + 9.6181291e-3f) + square * (rest * 1.5252734e-5f + 1.5403530e-4f);
    const vec value = low + square * square * high;
    return value * (vec)(((ivec)whole + 127) << 23);
}

/* 2^x for x <= 126; 2^-126 below -126. */
ALWAYS vec powers_of_two(vec x) { return inner_powers(pick(x < -126.0f, all_of(-126.0f), x)); }

/* 2^x for x <= 126; 0 below -126. */
ALWAYS vec vanishing_powers(vec x) { return (vec)((ivec)powers_of_two(x) & ~(x < -126.0f)); }

/* The natural logarithm of positive normal numbers, to a few units in the last place. Other numbers give NaN or the
   logarithm of a tiny number. */
ALWAYS vec logarithms(vec x) {
    const ivec exponent = ((ivec)x - 0x3f3504f3) >> 23; /* the remaining factor is between sqrt(1/2) and sqrt(2) */
    const vec rest = (vec)((ivec)x - (exponent << 23)) - 1.0f, power = __builtin_convertvector(exponent, vec);
    const vec square = rest * rest;
    /* Independent parts of the polynomial, which can be computed in parallel. */
    const vec low = (rest * -2.4999994e-1f + 3.3333331e-1f) + square * (rest * -1.6668058e-1f + 2.0000715e-1f);
    const vec high = (rest * -1.2420141e-1f + 1.4249323e-1f) + square * (rest * -1.1514610e-1f + 1.1676999e-1f);
    const vec fourth = square * square, all = low + fourth * (high + fourth * 7.0376836e-2f);
    const vec value = all * rest * square - 2.1219444e-4f * power - 0.5f * square;
    return rest + value + 0.693359375f * power + (x - x); /* NaN for infinity and NaN */
}
