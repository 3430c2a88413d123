/* Selection, powers of two and logarithms of vectors. Included by step.h. */

ALWAYS vec pick(ivec which, vec yes, vec no) { return (vec)(((ivec)yes & which) | ((ivec)no & ~which)); }

ALWAYS vec larger(vec a, vec b) { return pick(a > b, a, b); }

ALWAYS vec size_of(vec x) { return (vec)((ivec)x & 0x7fffffff); }

ALWAYS vec all_of(float x) { return (vec){0} + x; }

ALWAYS vec load(const float *from) { return *(const vec *)from; }

ALWAYS void store(float *to, vec x) { *(vec *)to = x; }

/* Square roots, by the hardware instruction. */
ALWAYS vec roots(vec x) {
#if defined(__aarch64__)
    return (vec)vsqrtq_f32((float32x4_t)x);
#else
    float values[LANES];
    memcpy(values, &x, sizeof x);
    for (int i = 0; i < LANES; i++) values[i] = sqrtf(values[i]);
    memcpy(&x, values, sizeof x);
    return x;
#endif
}

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

/* 2^x with x clamped to at most 62: the product of two values is finite, and 1 / (1 + 2^62) is practically 0. */
ALWAYS vec bounded_powers(vec x) { return powers_of_two(pick(x > 62.0f, all_of(62.0f), x)); }

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
